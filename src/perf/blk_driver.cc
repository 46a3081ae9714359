// SPDX-License-Identifier: Apache-2.0
// Set-up, stop, reconnection and the I/O path. The synchronous helpers are in blk_driver_sync.cc.
#include "perf/blk_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "perf/deadline.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kAreaStrideBytes = 192;  // whole cache lines for each request's area
static_assert(sizeof(RequestArea) <= kAreaStrideBytes);

}  // namespace

Result<std::unique_ptr<BlkDriver>> BlkDriver::Start(Frontend& frontend, GuestMemory& memory,
                                                    const BlkOptions& options) {
  if (options.num_queues == 0) return Error(ErrorCode::kInvalidArgument, "a driver needs a queue at least");
  if (!frontend.connected()) {
    if (Status status = frontend.Accept(); !status) return std::move(status).error();
    if (Status status = frontend.Open(); !status) return std::move(status).error();
  }
  std::unique_ptr<BlkDriver> driver(new BlkDriver(frontend, memory, options));
  frontend.DropInflight();  // a driver that starts begins with a reset
  if (Status status = driver->Negotiate(); !status) return std::move(status).error();
  if (Status status = driver->MakeQueues(); !status) return std::move(status).error();
  const std::vector<uint16_t> bases(options.num_queues, 0);
  if (Status status = driver->StartRings(bases); !status) return std::move(status).error();
  return driver;
}

BlkDriver::~BlkDriver() {
  for (const Buffer& buffer : buffers_) memory_.Free(buffer.gpa, buffer.size_bytes);
}

Status BlkDriver::Negotiate() {
  features_ = options_.features & frontend_.offered_features();
  if (!has(wire::kFeatureVersion1)) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("the device does not offer VIRTIO_F_VERSION_1 ({:#x})", frontend_.offered_features()));
  }
  if ((frontend_.protocol_features() & wire::kProtocolConfig) != 0) {
    if (Status status = RefreshConfig(); !status) return status;
  }
  const uint16_t device_queues = has(wire::kBlkMq) ? config_.num_queues : uint16_t{1};
  if (options_.num_queues > std::min(device_queues, frontend_.queues_max())) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} queues wanted, the device has {} and the back end allows {}",
                             options_.num_queues, device_queues, frontend_.queues_max()));
  }
  return Ok{};
}

Status BlkDriver::RefreshConfig() {
  Result<wire::BlkConfig> config = frontend_.GetBlkConfig();
  if (!config) return std::move(config).error();
  config_ = *config;
  return Ok{};
}

Status BlkDriver::MakeQueues() {
  const bool indirect = has(wire::kFeatureIndirectDesc);
  const uint32_t seg_max = has(wire::kBlkSegMax) && config_.seg_max > 0 ? config_.seg_max : kDefaultSegMax;
  // A chain in the ring can't be longer than the ring; an indirect table is kept to that as well (2.7.5.3.1).
  const uint32_t chain_max = std::min<uint32_t>(seg_max + 2, options_.queue_size);
  const LayoutLimits limits{
      .descriptors_max = chain_max,
      .piece_bytes_max = has(wire::kBlkSizeMax) && config_.size_max > 0 ? config_.size_max : UINT32_MAX,
      .piece_alignment_bytes = options_.piece_alignment_bytes};
  planner_ = std::make_unique<LayoutPlanner>(options_.layout, options_.layout_seed, indirect, limits);
  layout_.chain.reserve(size_t{chain_max} * 2);
  const RingOptions ring_options{
      .size = options_.queue_size,
      .event_idx = has(wire::kFeatureEventIdx),
      .indirect_entries = indirect ? static_cast<uint16_t>(chain_max) : uint16_t{0}};
  queues_.resize(options_.num_queues);
  for (Queue& queue : queues_) {
    Result<std::unique_ptr<DriverRing>> ring = DriverRing::Create(memory_, ring_options);
    if (!ring) return std::move(ring).error();
    queue.ring = std::move(*ring);
    Result<uint64_t> areas = AllocateBuffer(kAreaStrideBytes * options_.queue_size);
    if (!areas) return std::move(areas).error();
    queue.slots.resize(options_.queue_size);
    for (uint16_t i = 0; i < options_.queue_size; ++i) {
      queue.slots[i].area_gpa = *areas + kAreaStrideBytes * i;
      queue.slots[i].area = memory_.At<RequestArea>(queue.slots[i].area_gpa);
      queue.free_slots.push_back(static_cast<uint16_t>(options_.queue_size - 1 - i));
    }
  }
  Result<uint64_t> sync = AllocateBuffer(kSyncChunkBytes);
  if (!sync) return std::move(sync).error();
  sync_gpa_ = *sync;
  poll_fds_.resize(queues_.size() + 1);
  return Ok{};
}

Status BlkDriver::StartRings(std::span<const uint16_t> bases) {
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
  if (Status status = frontend_.Start(features_, memory_, setups); !status) return status;
  // A kick may have died with whoever had the rings before.
  for (Queue& queue : queues_) queue.ring->Kick();
  return Ok{};
}

Status BlkDriver::Stop() {
  Result<std::vector<uint16_t>> bases = frontend_.Stop(num_queues());
  if (!bases) return std::move(bases).error();
  stopped_bases_ = std::move(*bases);
  return Ok{};
}

Status BlkDriver::Resume() {
  if (stopped_bases_.size() != queues_.size()) {
    return Error(ErrorCode::kFailedPrecondition, "the device was not stopped");
  }
  return StartRings(stopped_bases_);
}

Status BlkDriver::Reconnect() {
  if (Status status = frontend_.Accept(); !status) return status;
  if (Status status = frontend_.Open(); !status) return status;
  std::vector<uint16_t> bases;
  for (const Queue& queue : queues_) bases.push_back(queue.ring->device_used_idx());
  ++stats_.reconnects;
  return StartRings(bases);
}

Result<uint64_t> BlkDriver::AllocateBuffer(uint64_t size_bytes, uint64_t alignment) {
  Result<uint64_t> gpa = memory_.Allocate(size_bytes, alignment);
  if (gpa) buffers_.push_back({*gpa, size_bytes});
  return gpa;
}

bool BlkDriver::Submit(uint16_t queue, const BlkIo& io) {
  CLEAT_DCHECK(io.offset_bytes % wire::kSectorBytes == 0);
  Queue& target = queues_[queue];
  const uint64_t sector = io.offset_bytes / wire::kSectorBytes;
  switch (io.op) {
    case BlkOp::kRead:
    case BlkOp::kWrite: {
      const bool read = io.op == BlkOp::kRead;
      const Segment data{io.data_gpa, io.length_bytes, read};
      return Enqueue(target, read ? wire::kBlkIn : wire::kBlkOut, sector, {&data, 1}, io.token);
    }
    case BlkOp::kFlush:
      return Enqueue(target, wire::kBlkTypeFlush, 0, {}, io.token);
    case BlkOp::kGetId: {
      const Segment data{io.data_gpa, wire::kBlkIdBytes, true};
      return Enqueue(target, wire::kBlkGetId, 0, {&data, 1}, io.token);
    }
    case BlkOp::kDiscard:
    case BlkOp::kWriteZeroes: {
      if (target.free_slots.empty()) return false;
      Slot& slot = target.slots[target.free_slots.back()];
      const bool zeroes = io.op == BlkOp::kWriteZeroes;
      slot.area->range = {sector, io.length_bytes / wire::kSectorBytes,
                          zeroes && io.unmap ? wire::kBlkRangeUnmap : 0};
      const Segment data{slot.area_gpa + offsetof(RequestArea, range), sizeof(wire::BlkRange), false};
      return Enqueue(target, zeroes ? wire::kBlkTypeWriteZeroes : wire::kBlkTypeDiscard, 0, {&data, 1},
                     io.token);
    }
  }
  return false;
}

bool BlkDriver::SubmitRaw(uint16_t queue, uint32_t type, uint64_t sector, std::span<const Segment> data,
                          uint64_t token) {
  return Enqueue(queues_[queue], type, sector, data, token);
}

bool BlkDriver::Enqueue(Queue& queue, uint32_t type, uint64_t sector, std::span<const Segment> data,
                        uint64_t token) {
  if (queue.free_slots.empty()) return false;
  const uint16_t index = queue.free_slots.back();
  Slot& slot = queue.slots[index];
  slot.area->header = {type, 0, sector};
  slot.area->status = BlkCompletion::kNoStatus;
  if (!planner_->Plan(memory_, slot.area_gpa, data, &layout_)) return false;
  if (!queue.ring->Add(layout_.chain, layout_.indirect, index)) return false;
  queue.free_slots.pop_back();
  slot.token = token;
  slot.expected_written_bytes = 1;
  for (const Segment& segment : data) slot.expected_written_bytes += segment.writable ? segment.len : 0;
  slot.tail_bytes = layout_.tail_bytes;
  if (slot.tail_bytes > 0) slot.tail = memory_.Span(layout_.tail_gpa, slot.tail_bytes).data();
  ++stats_.submitted;
  return true;
}

bool BlkDriver::PopOne(Queue& queue, BlkCompletion* completion) {
  UsedEntry used;
  if (queue.ring->Pop(&used) != PopResult::kDone) return false;
  Slot& slot = queue.slots[used.token];
  const RequestArea& area = *slot.area;
  if (slot.tail_bytes > 0) {
    std::memcpy(slot.tail, area.tail_bounce + RequestArea::kBounceBytes - slot.tail_bytes, slot.tail_bytes);
  }
  *completion = {slot.token, area.status, used.written_bytes};
  ++stats_.completed;
  if (area.status != wire::kBlkOk) {
    ++stats_.failed;
  } else if (used.written_bytes != slot.expected_written_bytes) {
    ++stats_.used_length_mismatches;
  }
  queue.free_slots.push_back(static_cast<uint16_t>(used.token));
  return true;
}

size_t BlkDriver::Poll(uint16_t queue, std::span<BlkCompletion> completions) {
  Queue& source = queues_[queue];
  size_t count = 0;
  while (count < completions.size() && !source.kept.empty()) {
    completions[count++] = source.kept.front();
    source.kept.pop_front();
  }
  while (count < completions.size() && PopOne(source, &completions[count])) ++count;
  return count;
}

Status BlkDriver::Wait(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  for (;;) {
    // Looked at before the rings: what the back end completed before its end must not be missed.
    const bool gone = frontend_.PeerGone();
    bool found = false;
    for (size_t i = 0; i < queues_.size(); ++i) {
      DriverRing& ring = *queues_[i].ring;
      ring.ClearCall();
      if (!ring.EnableCalls() || !queues_[i].kept.empty()) found = true;
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
      if (!options_.auto_reconnect)
        return Error(ErrorCode::kUnavailable, "the back end closed the connection");
      // It may be gone again before all is set up: then the next one is waited for.
      Status status = Reconnect();
      if (!status && (status.error().code != ErrorCode::kUnavailable || late)) return status;
    } else if (late) {
      return Error(ErrorCode::kDeadlineExceeded, "no request completed in time");
    }
  }
}

Status BlkDriver::Health() const {
  for (size_t i = 0; i < queues_.size(); ++i) {
    if (queues_[i].ring->broken()) {
      return Error(ErrorCode::kDataLoss, fmt::format("queue {}: {}", i, queues_[i].ring->broken_reason()));
    }
  }
  return Ok{};
}

}  // namespace cleat::perf
