// SPDX-License-Identifier: Apache-2.0
// QEMU's part of a pretend VM: the conversation with a session.
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "perf/wire/vhost_user.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtqueue.h"
#include "sim_guest.h"

namespace cleat::sim {
namespace wire = perf::wire;

namespace {

constexpr uint16_t kRingSizes[] = {16, 32, 64, 128};
constexpr uint64_t kPluggedGpa = 16ULL << 30;
constexpr uint64_t kPluggedBytes = 8ULL << 20;
constexpr uint64_t kBlkFeatures = wire::kBlkSegMax | wire::kBlkBlkSize | wire::kBlkMq | wire::kBlkReadOnly |
                                  wire::kBlkDiscard | wire::kBlkWriteZeroes | wire::kBlkFlush |
                                  wire::kBlkTopology;

Error ConnectionOver() {
  return {ErrorCode::kCancelled, "the connection is over"};
}

Task<Status> Done(Status status) {
  co_return status;
}

// As if it had gone through a socket.
UniqueFd Copy(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

}  // namespace

// ---- One connection

Task<Status> SimGuest::Serve(Connection& connection) {
  connection_ = &connection;
  hang_up_ = inflight_given_ = false;
  auto converse = Converse(connection);
  Status served = co_await std::move(converse);
  connection_ = nullptr;
  up_ = false;
  actions_.clear();
  messages_left_ = UINT64_MAX;
  if (served.ok() || served.error().code == ErrorCode::kCancelled) co_return Ok{};
  world_.Violation(options_.name + ": the session refused a message: " + served.error().message);
  co_return served;
}

bool SimGuest::Over(const Connection& connection) {
  if (messages_left_ == 0) hang_up_ = true;
  return connection.closed || hang_up_;
}

Task<Status> SimGuest::Send(Connection& connection, Task<Status> message) {
  Status sent = co_await std::move(message);
  if (messages_left_ != UINT64_MAX && messages_left_ > 0) --messages_left_;
  if (!sent) co_return sent;
  if (Over(connection)) co_return ConnectionOver();
  co_return Ok{};
}

Task<Status> SimGuest::Converse(Connection& connection) {
  if (Over(connection)) co_return Ok{};
  if (connection.endpoint_id != device_id_) {
    // After the drain, what was not answered was never fetched, unless the guest itself had broken its ring.
    DropQueues(misbehaved_ ? DiskModel::Fate::kUnknown : DiskModel::Fate::kNever);
    device_id_ = connection.endpoint_id;
  } else if (misbehaved_) {
    DropQueues(DiskModel::Fate::kUnknown);
  }
  auto negotiate = Negotiate(connection);
  Status status = co_await std::move(negotiate);
  if (!status) co_return status;
  auto rings = SetUpRings(connection);
  status = co_await std::move(rings);
  if (!status) co_return status;
  for (;;) {
    if (Over(connection)) co_return Ok{};
    if (actions_.empty()) {
      co_await connection.wake.Wait();
      continue;
    }
    const Action action = actions_.front();
    actions_.pop_front();
    acting_ = true;
    auto act = Act(connection, action);
    status = co_await std::move(act);
    acting_ = false;
    if (!status) co_return status;
  }
}

Task<Status> SimGuest::Act(Connection& connection, Action action) {
  switch (action) {
    case Action::kReset:
      return Reset(connection);
    case Action::kPause:
      return Pause(connection);
    case Action::kResume:
      return Resume(connection);
    case Action::kHotPlug:
      return HotPlug(connection);
    case Action::kMisbehave:
      if (std::none_of(paused_.begin(), paused_.end(), [](bool paused) { return paused; })) Misbehave();
      return Done(Ok{});
  }
  return Done(Ok{});
}

// ---- Set-up

Task<Status> SimGuest::Negotiate(Connection& connection) {
  const uint64_t offered = connection.session.offer().features;
  if (queues_.empty()) {
    const bool lean = random_.Chance(1, 4);
    uint64_t wanted = wire::kFeatureVersion1 | kBlkFeatures | wire::kFeatureProtocolFeatures;
    if (!lean || random_.Chance(1, 2)) wanted |= wire::kFeatureIndirectDesc;
    if (!lean || random_.Chance(1, 2)) wanted |= wire::kFeatureEventIdx;
    if (lean && random_.Chance(1, 2)) wanted &= ~wire::kFeatureProtocolFeatures;
    if (random_.Chance(1, 4)) wanted &= ~wire::kBlkFlush;
    if (random_.Chance(1, 3)) wanted |= wire::kFeatureRingPacked;
    features_ = offered & wanted;
    // A session that was given a log goes on using it: it has to fit the new rings.
    use_inflight_ =
        inflight_given_ || ((features_ & wire::kFeatureProtocolFeatures) != 0 && random_.Chance(2, 3));
  }
  if ((features_ & wire::kFeatureProtocolFeatures) != 0) {
    auto protocol =
        Send(connection,
             Done(connection.session.SetProtocolFeatures(connection.session.offer().protocol_features)));
    Status status = co_await std::move(protocol);
    if (!status) co_return status;
  }
  auto features = Send(connection, connection.session.SetFeatures(features_));
  Status status = co_await std::move(features);
  if (!status) co_return status;
  if (queues_.empty()) MakeQueues(connection);
  auto map = MapMemory(connection);
  status = co_await std::move(map);
  if (!status || !use_inflight_) co_return status;
  auto inflight = SetInflight(connection);
  co_return co_await std::move(inflight);
}

void SimGuest::MakeQueues(Connection& connection) {
  if (memory_ == nullptr) MakeMemory();
  wire::BlkConfig config{};
  connection.model.ReadConfig(0, {reinterpret_cast<uint8_t*>(&config), sizeof(config)});
  const uint32_t offered = connection.model.queues();
  const bool mq = (features_ & wire::kBlkMq) != 0;
  if (mq && config.num_queues != offered)
    world_.Violation(options_.name + ": num_queues is not the number of queues");
  const uint64_t count = mq ? std::min<uint64_t>(offered, options_.queues_max) : 1;
  const bool indirect = (features_ & wire::kFeatureIndirectDesc) != 0;
  const bool packed = (features_ & wire::kFeatureRingPacked) != 0;
  uint16_t size = kRingSizes[random_.Below(std::size(kRingSizes))];
  if (packed) size = static_cast<uint16_t>(size - random_.Below(size / 4));  // not only powers of two
  perf::LayoutLimits limits;
  limits.descriptors_max = std::min<uint32_t>(size, 128);
  constexpr std::array kPolicies = {perf::LayoutPolicy::kClassic, perf::LayoutPolicy::kIndirect,
                                    perf::LayoutPolicy::kAnyLayout, perf::LayoutPolicy::kAnyLayout};
  planner_ = std::make_unique<perf::LayoutPlanner>(kPolicies[random_.Below(kPolicies.size())], random_.Next(),
                                                   indirect, limits);
  GuestQueue::Options options;
  options.ring.size = size;
  options.ring.event_idx = (features_ & wire::kFeatureEventIdx) != 0;
  options.ring.indirect_entries = indirect ? static_cast<uint16_t>(limits.descriptors_max) : uint16_t{0};
  options.ring.packed = packed;
  options.interrupts = random_.Chance(3, 4);
  options.slots = static_cast<uint32_t>(random_.Between(2, GuestQueue::kSlotsMax));
  options.defect = options_.defect;
  for (uint64_t i = 0; i < count; ++i) {
    options.name = options_.name + " queue " + std::to_string(i);
    queues_.push_back(std::make_unique<GuestQueue>(world_, *memory_, *planner_, options));
  }
  queues_.front()->IssueGetId();
  queues_.front()->Submit();
  inflight_known_ = false;
}

Task<Status> SimGuest::MapMemory(Connection& connection) {
  std::vector<vhost::MemoryTableRegion> regions;
  for (const wire::MemoryRegion& region : memory_->Table()) {
    regions.push_back({region.gpa, region.size_bytes, region.user_addr, region.mmap_offset_bytes});
  }
  std::vector<UniqueFd> files;
  for (const int fd : memory_->Fds()) files.push_back(Copy(fd));
  auto map = Send(connection, connection.session.MapMemory(regions, files));
  co_return co_await std::move(map);
}

Task<Status> SimGuest::SetInflight(Connection& connection) {
  if (!inflight_known_) {
    auto area = connection.session.MakeInflight(static_cast<uint16_t>(queues_.size()),
                                                queues_.front()->ring().size());
    if (!area) co_return std::move(area).error();
    inflight_ = std::move(area).value();
    inflight_known_ = true;
  }
  inflight_given_ = true;
  const UniqueFd file = inflight_.file.Duplicate();
  auto set = Send(connection, connection.session.SetInflight(inflight_.description, file));
  co_return co_await std::move(set);
}

Task<Status> SimGuest::SetUpRings(Connection& connection) {
  paused_.assign(queues_.size(), false);
  for (uint32_t i = 0; i < queues_.size(); ++i) {
    auto set_up = SetUpRing(connection, i);
    Status status = co_await std::move(set_up);
    if (!status) co_return status;
  }
  up_ = true;
  co_return Ok{};
}

// The messages of one ring, in any order, as long as the ring does not begin before the last one of those that say
// where it is: a session still knows what it was told of the ring before a reset.
Task<Status> SimGuest::SetUpRing(Connection& connection, uint32_t index) {
  vhost::Session& session = connection.session;
  std::array<uint32_t, 6> order = {0, 1, 2, 3, 4, 5};
  for (uint32_t i = 5; i > 0; --i) std::swap(order[i], order[random_.Below(i + 1)]);
  constexpr uint32_t kKick = 3;
  const auto* const last =
      std::find_if(order.rbegin(), order.rend(), [](uint32_t step) { return step <= kKick; }).base() - 1;
  std::swap(*std::find(order.begin(), order.end(), kKick), order[static_cast<size_t>(last - order.begin())]);
  for (const uint32_t step : order) {
    if (queues_.empty()) co_return ConnectionOver();  // killed meanwhile
    const perf::DriverRing& ring = queues_[index]->ring();
    Task<Status> message = [&]() -> Task<Status> {
      switch (step) {
        case 0:
          return session.SetRingSize(index, ring.size());
        case 1:
          return session.SetRingBase(index, ring.base_after_crash());
        case 2:
          return session.SetRingAddresses({index, 0, memory_->UserAddress(ring.desc_gpa()),
                                           memory_->UserAddress(ring.used_gpa()),
                                           memory_->UserAddress(ring.avail_gpa()), ring.used_gpa()});
        case 3: {
          const bool lost = options_.defect == Defect::kLoseKick;
          return session.SetRingKick(index, Copy(lost ? ring.err_fd() : ring.kick_fd()));
        }
        case 4:
          return session.SetRingCall(index, Copy(ring.call_fd()));
        default:
          if ((features_ & wire::kFeatureProtocolFeatures) == 0) return Done(Ok{});
          return session.EnableRing(index, true);
      }
    }();
    auto send = Send(connection, std::move(message));
    Status status = co_await std::move(send);
    if (!status) co_return status;
  }
  co_return Ok{};
}

// ---- What a VM goes through

// The guest's driver starts anew: every ring is stopped, which waits for the storage, and made again.
Task<Status> SimGuest::Reset(Connection& connection) {
  for (uint32_t i = 0; i < queues_.size(); ++i) {
    auto stop = connection.session.StopRing(i);
    const Result<uint32_t> base = co_await std::move(stop);
    if (!base) co_return base.error();
    if (Over(connection)) co_return ConnectionOver();
    queues_[i]->Collect(/*must_look=*/true);
    if (!misbehaved_ && *base != queues_[i]->ring().base_after_crash()) {
      world_.Violation(options_.name + " queue " + std::to_string(i) + ": stopped at " +
                       std::to_string(*base) + " with " +
                       std::to_string(queues_[i]->ring().base_after_crash()) + " used: not drained");
    }
  }
  DropQueues(misbehaved_ ? DiskModel::Fate::kUnknown : DiskModel::Fate::kNever);
  auto negotiate = Negotiate(connection);
  Status status = co_await std::move(negotiate);
  if (!status) co_return status;
  auto rings = SetUpRings(connection);
  co_return co_await std::move(rings);
}

Task<Status> SimGuest::Pause(Connection& connection) {
  // A broken ring that is stopped and started is whole again, and this guest would no longer know.
  if ((features_ & wire::kFeatureProtocolFeatures) == 0 || misbehaved_) co_return Ok{};
  const auto index = static_cast<uint32_t>(random_.Below(queues_.size()));
  paused_[index] = true;
  auto pause = Send(connection, connection.session.EnableRing(index, false));
  co_return co_await std::move(pause);
}

Task<Status> SimGuest::Resume(Connection& connection) {
  for (uint32_t i = 0; i < paused_.size(); ++i) {
    if (!paused_[i]) continue;
    auto resume = Send(connection, connection.session.EnableRing(i, true));
    Status status = co_await std::move(resume);
    if (!status) co_return status;
    paused_[i] = false;
  }
  co_return Ok{};
}

// A region of memory comes, and with it all buffers; or it goes, if they can leave it.
Task<Status> SimGuest::HotPlug(Connection& connection) {
  if (!plugged_) {
    const Status added = memory_->AddRegion({kPluggedGpa, kPluggedBytes, perf::GuestMemory::kPageBytes});
    CLEAT_CHECK(added.ok());
    plugged_ = true;
    auto map = MapMemory(connection);
    Status status = co_await std::move(map);
    if (!status) co_return status;
    for (const auto& queue : queues_) queue->MoveBuffers(kPluggedGpa);
    co_return Ok{};
  }
  for (const auto& queue : queues_) queue->MoveBuffers(0);
  if (!memory_->RemoveRegion(kPluggedGpa).ok()) co_return Ok{};  // still in use
  plugged_ = false;
  auto map = MapMemory(connection);
  co_return co_await std::move(map);
}

}  // namespace cleat::sim
