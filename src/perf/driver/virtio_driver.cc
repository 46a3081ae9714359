// SPDX-License-Identifier: Apache-2.0
#include "perf/driver/virtio_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "perf/wire/virtqueue.h"

namespace cleat::perf {
namespace {

constexpr uint32_t kCacheLineBytes = 64;

}  // namespace

VirtioDriver::~VirtioDriver() {
  for (const Buffer& buffer : buffers_) memory_.Free(buffer.gpa, buffer.size_bytes);
}

Status VirtioDriver::Connect(Frontend& frontend) {
  if (frontend.connected()) return Ok{};
  CLEAT_TRY(frontend.Accept());
  return frontend.Open();
}

Status VirtioDriver::Negotiate(uint64_t wanted_features) {
  frontend_.DropInflight();  // a driver that starts begins with a reset
  if (packed_) wanted_features |= wire::kFeatureRingPacked;
  features_ = wanted_features & frontend_.offered_features();
  if (packed_ && !has(wire::kFeatureRingPacked)) {
    return Error(ErrorCode::kFailedPrecondition,
                 fmt::format("the device does not offer packed rings ({:#x})", frontend_.offered_features()));
  }
  if (has(wire::kFeatureVersion1)) return Ok{};
  return Error(
      ErrorCode::kFailedPrecondition,
      fmt::format("the device does not offer VIRTIO_F_VERSION_1 ({:#x})", frontend_.offered_features()));
}

Status VirtioDriver::MakeQueues(uint16_t count, const Settings& settings) {
  const bool indirect = has(wire::kFeatureIndirectDesc);
  // A chain in the ring can't be longer than the ring; an indirect table is kept to that as well (2.7.5.3.1).
  const uint32_t chain_max = std::min<uint32_t>(settings.seg_max + 2, queue_size_);
  const LayoutLimits limits{.descriptors_max = chain_max,
                            .piece_bytes_max = settings.piece_bytes_max,
                            .piece_alignment_bytes = piece_alignment_bytes_};
  planner_ = std::make_unique<LayoutPlanner>(layout_policy_, layout_seed_, indirect, limits);
  layout_.chain.reserve(size_t{chain_max} * 2);
  ring_options_ = {.size = queue_size_,
                   .event_idx = has(wire::kFeatureEventIdx),
                   .indirect_entries = indirect ? static_cast<uint16_t>(chain_max) : uint16_t{0},
                   .packed = has(wire::kFeatureRingPacked)};
  const uint32_t stride_bytes =
      (settings.area_bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  queues_.resize(count);
  for (Queue& queue : queues_) {
    CLEAT_ASSIGN(queue.ring, DriverRing::Create(memory_, ring_options_));
    CLEAT_ASSIGN(auto areas, AllocateBuffer(uint64_t{stride_bytes} * queue_size_));
    queue.slots.resize(queue_size_);
    for (uint16_t i = 0; i < queue_size_; ++i) {
      queue.slots[i].area_gpa = areas + uint64_t{stride_bytes} * i;
      queue.slots[i].area = memory_.At(queue.slots[i].area_gpa, stride_bytes);
      queue.free_slots.push_back(static_cast<uint16_t>(queue_size_ - 1 - i));
    }
  }
  CLEAT_ASSIGN(sync_gpa_, AllocateBuffer(kSyncChunkBytes));
  poll_fds_.resize(queues_.size() + 1);
  return Ok{};
}

Status VirtioDriver::StartFresh() {
  std::vector<uint32_t> bases;
  for (const Queue& queue : queues_) bases.push_back(queue.ring->first_base());
  return StartRings(bases);
}

Status VirtioDriver::StartRings(std::span<const uint32_t> bases) {
  std::vector<RingSetup> setups;
  for (size_t i = 0; i < queues_.size(); ++i) {
    const DriverRing& ring = *queues_[i].ring;
    RingSetup setup;
    setup.size = ring.size();
    setup.base = bases[i];
    setup.desc_user = memory_.UserAddress(ring.desc_gpa());
    setup.avail_user = memory_.UserAddress(ring.avail_gpa());
    setup.used_user = memory_.UserAddress(ring.used_gpa());
    setup.log_gpa = ring.used_gpa();
    setup.kick_fd = ring.kick_fd();
    setup.call_fd = ring.call_fd();
    setup.err_fd = ring.err_fd();
    setups.push_back(setup);
  }
  bases_.assign(bases.begin(), bases.end());
  stopped_ = false;
  CLEAT_TRY(frontend_.Start(features_, memory_, setups));
  // A kick may have died with whoever had the rings before.
  for (Queue& queue : queues_) queue.ring->Kick();
  return Ok{};
}

Status VirtioDriver::Stop() {
  if (Status stopped = frontend_.Stop(bases_); !stopped) {
    // The back end may have died after it sent its last answer and before that answer arrived here. A ring that it has stopped has nothing in
    // flight, and no log that knows better. QEMU does not know as much (docs/recovery.md).
    for (size_t i = 0; i < queues_.size(); ++i) {
      if (queues_[i].ring->packed()) bases_[i] = queues_[i].ring->base_after_crash();
    }
    return stopped;
  }
  stopped_ = true;
  for (Queue& queue : queues_)
    queue.asleep = false;  // whoever has stopped a device looks at all of its rings
  return Ok{};
}

Status VirtioDriver::Resume() {
  if (!stopped_) return Error(ErrorCode::kFailedPrecondition, "the device was not stopped");
  const std::vector<uint32_t> bases = bases_;
  return StartRings(bases);
}

Status VirtioDriver::RenewRings() {
  for (Queue& queue : queues_) {
    queue.ring.reset();
    CLEAT_ASSIGN(queue.ring, DriverRing::Create(memory_, ring_options_));
    queue.free_slots.clear();
    for (uint16_t i = 0; i < queue_size_; ++i)
      queue.free_slots.push_back(static_cast<uint16_t>(queue_size_ - 1 - i));
    queue.asleep = false;
  }
  frontend_.DropInflight();
  return Ok{};
}

Status VirtioDriver::CheckLeft(uint16_t first_ring) const {
  if (!stopped_) return Error(ErrorCode::kFailedPrecondition, "the device was not stopped");
  for (uint16_t i = first_ring; i < num_queues(); ++i) {
    const DriverRing& ring = *queues_[i].ring;
    // Where nothing is left that was begun, the device stands at what it has used: a packed ring's base says so in both halves.
    if (ring.HasUsed() || bases_[i] != ring.base_after_crash()) {
      return Error(
          ErrorCode::kFailedPrecondition,
          fmt::format(
              "ring {}: {} requests are left by a device that was stopped at {:#x}, and has used up to {:#x}",
              i, in_flight(i), bases_[i], ring.base_after_crash()));
    }
  }
  return Ok{};
}

Status VirtioDriver::StartAnew() {
  CLEAT_TRY(CheckLeft(0));
  CLEAT_TRY(RenewRings());
  Status started = StartFresh();
  return !started && started.error().code == ErrorCode::kUnavailable ? Status(Ok{}) : started;
}

Status VirtioDriver::Reconnect() {
  if (Status status = frontend_.Accept(); !status) {
    // Not the caller's own deadline, after which it may well go on.
    const bool late = status.error().code == ErrorCode::kDeadlineExceeded;
    return late ? Error(ErrorCode::kInternal, "no back end came: " + status.error().message) : status;
  }
  CLEAT_TRY(frontend_.Open());
  if (inflight_use_ == InflightUse::kMakeAnew) frontend_.DropInflight();
  std::vector<uint32_t> bases = bases_;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (!queues_[i].ring->packed()) bases[i] = queues_[i].ring->base_after_crash();
  }
  CLEAT_TRY(StartRings(bases));
  ++stats_.reconnects;
  return Ok{};
}

Result<uint64_t> VirtioDriver::AllocateBuffer(uint64_t size_bytes, uint64_t alignment) {
  Result<uint64_t> gpa = memory_.Allocate(size_bytes, alignment);
  if (gpa) buffers_.push_back({*gpa, size_bytes});
  return gpa;
}

VirtioDriver::Slot* VirtioDriver::NextSlot(uint16_t queue) {
  Queue& target = queues_[queue];
  return target.free_slots.empty() ? nullptr : &target.slots[target.free_slots.back()];
}

bool VirtioDriver::Enqueue(uint16_t queue, const RequestShape& shape, std::span<const Segment> out,
                           std::span<const Segment> in, uint64_t token) {
  Queue& target = queues_[queue];
  if (target.free_slots.empty()) return false;
  const uint16_t index = target.free_slots.back();
  Slot& slot = target.slots[index];
  if (!planner_->Plan(memory_, slot.area_gpa, shape, out, in, &layout_)) return false;
  if (!target.ring->Add(layout_.chain, layout_.indirect, index)) return false;
  target.free_slots.pop_back();
  slot.token = token;
  slot.expected_written_bytes = shape.answer_bytes;
  for (const Segment& segment : in) slot.expected_written_bytes += segment.len;
  slot.bounce = layout_.bounce;
  ++stats_.submitted;
  return true;
}

const VirtioDriver::Slot* VirtioDriver::TakeUsed(uint16_t queue, uint32_t* written_bytes) {
  Queue& source = queues_[queue];
  UsedEntry used;
  if (source.ring->Pop(&used) != PopResult::kDone) return nullptr;
  const Slot& slot = source.slots[used.token];
  Unbounce(memory_, slot.bounce);
  *written_bytes = used.written_bytes;
  ++stats_.completed;
  source.free_slots.push_back(static_cast<uint16_t>(used.token));
  return &slot;
}

Status VirtioDriver::WaitRings(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  for (;;) {
    // Looked at before the rings: what the back end completed before its end must not be missed.
    const bool gone = frontend_.PeerGone();
    bool found = false;
    for (size_t i = 0; i < queues_.size(); ++i) {
      DriverRing& ring = *queues_[i].ring;
      ring.ClearCall();
      if (!ring.EnableCalls()) found = true;
      poll_fds_[i] = {.fd = ring.call_fd(), .events = POLLIN, .revents = 0};
    }
    poll_fds_.back() = {.fd = frontend_.socket().fd(), .events = POLLRDHUP, .revents = 0};
    const bool late = deadline.passed();
    if (!found && !gone && !late && poll(poll_fds_.data(), poll_fds_.size(), deadline.LeftMs()) < 0 &&
        errno != EINTR) {
      return ErrnoError(errno, "poll of a driver's queues");
    }
    for (Queue& queue : queues_) queue.ring->DisableCalls();
    if (found) return Ok{};
    if (gone) {
      if (!auto_reconnect_) return Error(ErrorCode::kUnavailable, "the back end closed the connection");
      // The new back end may be gone again before all is set up: then the next one is waited for, by the next call if need be.
      Status status = Reconnect();
      if (!status && status.error().code != ErrorCode::kUnavailable) return status;
      if (!status && late) return Error(ErrorCode::kDeadlineExceeded, "no back end came to stay in time");
    } else if (late) {
      return Error(ErrorCode::kDeadlineExceeded, "no request completed in time");
    }
  }
}

bool VirtioDriver::FallAsleep(uint16_t first_ring) {
  bool all = true;
  for (size_t i = 0; i < queues_.size(); ++i) {
    DriverRing& ring = *queues_[i].ring;
    if (!queues_[i].asleep || i < first_ring) queues_[i].asleep = ring.EnableCalls();
    all = all && queues_[i].asleep;
    poll_fds_[i] = {.fd = ring.call_fd(), .events = POLLIN, .revents = 0};
  }
  poll_fds_.back() = {.fd = frontend_.socket().fd(), .events = POLLRDHUP, .revents = 0};
  return all;
}

bool VirtioDriver::WakeCalled(uint16_t first_ring) {
  bool any = false;
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (i >= first_ring && poll_fds_[i].revents == 0) continue;
    any = any || poll_fds_[i].revents != 0;
    queues_[i].ring->ClearCall();
    queues_[i].ring->DisableCalls();
    queues_[i].asleep = false;
  }
  return any;
}

Status VirtioDriver::WaitCalls(uint16_t first_ring, uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  for (;;) {
    // Looked at before the calls: a back end that is gone may have called.
    const bool gone = frontend_.PeerGone();
    // Calls of the others are looked at also when one has something: a ring that always has would keep them waiting for ever.
    const bool all = FallAsleep(first_ring);
    if (poll(poll_fds_.data(), poll_fds_.size(), gone || !all ? 0 : deadline.LeftMs()) < 0 &&
        errno != EINTR) {
      return ErrnoError(errno, "poll of a driver's calls");
    }
    if (WakeCalled(first_ring) || !all) return Ok{};
    if (gone) {
      if (!auto_reconnect_) return Error(ErrorCode::kUnavailable, "the back end closed the connection");
      Status status = Reconnect();
      if (!status && status.error().code != ErrorCode::kUnavailable) return status;
      // A back end that comes and goes for ever is no answer either; the next call waits for another.
      if (!status && deadline.passed())
        return Error(ErrorCode::kDeadlineExceeded, "no back end came to stay in time");
    } else if (deadline.passed()) {
      return Error(ErrorCode::kDeadlineExceeded, "no request completed in time");
    }
  }
}

std::string VirtioDriver::Describe(uint16_t index) const {
  const DriverRing& ring = *queues_[index].ring;
  std::string text = fmt::format("ring {}: {} in flight", index, ring.in_flight());
  if (ring.HasUsed()) text += ", answers lie in it";
  if (ring.kick_pending()) text += ", the last kick was not taken";
  text += queues_[index].asleep ? ", no call has come" : ", the guest is awake";
  return text;
}

Status VirtioDriver::Health() const {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].ring->broken()) {
      return Error(ErrorCode::kDataLoss, fmt::format("queue {}: {}", i, queues_[i].ring->broken_reason()));
    }
  }
  return Ok{};
}

}  // namespace cleat::perf
