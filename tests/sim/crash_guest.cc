// SPDX-License-Identifier: Apache-2.0
#include "crash_guest.h"
#include "perf/wire/vhost_user.h"
#include "perf/wire/virtio_blk.h"
#include "perf/wire/virtio_scsi.h"
#include "perf/wire/virtqueue.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace cleat::sim {
namespace wire = perf::wire;

namespace {

constexpr uint64_t kBlkFeatures = wire::kBlkSegMax | wire::kBlkBlkSize | wire::kBlkMq | wire::kBlkDiscard |
                                  wire::kBlkWriteZeroes | wire::kBlkFlush;
constexpr uint16_t kRingSizes[] = {8, 16, 32};
constexpr uint32_t kIoBlocks = 4;

Error ConnectionOver() {
  return {ErrorCode::kCancelled, "the connection is over"};
}

// As if it had gone through a socket.
UniqueFd Copy(int fd) {
  return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

bool Signalled(int eventfd) {
  pollfd look{eventfd, POLLIN, 0};
  return poll(&look, 1, 0) == 1;
}

void SetSignal(int eventfd, bool signalled) {
  if (Signalled(eventfd) == signalled) return;
  uint64_t count = 1;
  const ssize_t done =
      signalled ? write(eventfd, &count, sizeof(count)) : read(eventfd, &count, sizeof(count));
  CLEAT_CHECK(done == sizeof(count));
}

}  // namespace

CrashGuest::CrashGuest(World& world, const KillSwitch& kill, const Options& options)
    : world_(world), kill_(kill), options_(options), random_(options.seed) {
  const perf::RegionSpec all{0, kCrashGuestBytes, 0};
  auto memory = perf::GuestMemory::Create({&all, 1});
  CLEAT_CHECK(memory.ok());
  memory_ = std::move(memory).value();
  world_.AddActor(*this);
}

CrashGuest::~CrashGuest() {
  queues_.clear();
  if (inflight_bytes_ != nullptr) munmap(inflight_bytes_, inflight_.description.size_bytes);
  world_.RemoveActor(*this);
}

void CrashGuest::GiveUp() {
  for (const auto& queue : queues_) {
    for (const OpenIo& io : queue->TakeOpen()) io.Abandon(DiskModel::Fate::kUnknown);
  }
}

uint64_t CrashGuest::open() const {
  uint64_t open = 0;
  for (const auto& queue : queues_) open += queue->open();
  return open;
}

uint64_t CrashGuest::completed() const {
  uint64_t completed = completed_before_;
  for (const auto& queue : queues_) completed += queue->completed();
  return completed;
}

void CrashGuest::CheckIdle() {
  for (const auto& queue : queues_) queue->CheckIdle();
}

RingPlaces CrashGuest::places() const {
  RingPlaces places;
  places.packed = options_.packed;
  for (const auto& queue : queues_) {
    places.size = queue->ring().size();
    places.descriptors_gpa.push_back(queue->ring().desc_gpa());
    places.used_gpa.push_back(queue->ring().used_gpa());
  }
  return places;
}

// ---- The guest

bool CrashGuest::Collect(bool must_look) {
  bool any = false;
  for (const auto& queue : queues_) any |= queue->Collect(must_look);
  if (any) full_ = false;
  if (unit_resetting_) {
    if (const auto answer = queues_[wire::kScsiControlQueue]->TakeResetAnswer()) CheckUnitReset(*answer);
  }
  return any;
}

void CrashGuest::ResetUnit() {
  if (!queues_[wire::kScsiControlQueue]->IssueReset()) return;
  unit_resetting_ = unit_was_reset_ = true;
  for (const auto& queue : queues_) queue->BeginReset();
  queues_[wire::kScsiControlQueue]->Submit();
}

// The driver takes every command of before for ended, whoever served it.
void CrashGuest::CheckUnitReset(uint8_t answer) {
  unit_resetting_ = false;
  uint32_t left = 0;
  for (const auto& queue : queues_) {
    queue->Collect(/*must_look=*/true);
    left += queue->EndReset();
  }
  world_.Note(options_.name + " unit reset: " + std::to_string(answer));
  if (answer == wire::kScsiOk) {  // FUNCTION COMPLETE
    if (left > 0)
      world_.Violation(options_.name + ": unit reset, but " + std::to_string(left) + " commands are open");
  } else if (answer != wire::kScsiFailure) {  // the rings were stopped meanwhile
    world_.Violation(options_.name + ": unit reset answered " + std::to_string(answer));
  }
}

void CrashGuest::ReplaceDisk(Replacement next) {
  next_ = std::move(next);
  for (const auto& queue : queues_) queue->LoseDisk();
}

void CrashGuest::KnowNextDisk() {
  disk_ = next_->disk;
  next_.reset();
  world_.Note(options_.name + " knows " + disk_.model->name());
}

uint64_t CrashGuest::NextNs() const {
  if (ToBeReset()) return next_->reset_ns;
  return wants_more() && !full_ ? next_burst_ns_ : kNoDeadline;
}

bool CrashGuest::Step() {
  bool any = Collect(/*must_look=*/false);
  const bool reset_now = replacing() ? ToBeReset() && world_.now_ns() >= next_->reset_ns
                                     : random_.Chance(options_.resets_per_thousand, 1000);
  if (made_ && connection_ != nullptr && reset_now) {
    any = resetting_ = true;
    connection_->wake.Pulse();
  }
  if (replacing() && scsi() && open() == 0) {
    KnowNextDisk();
    any = true;
  }
  if (wants_more() && !unit_resetting_ && random_.Chance(options_.unit_resets_per_thousand, 1000))
    ResetUnit();
  if (!wants_more() || full_ || world_.now_ns() < next_burst_ns_) return any;
  Burst();
  next_burst_ns_ = world_.now_ns() + 1 + random_.Below(options_.think_ns_max);
  return true;
}

// Also while nobody serves the rings.
void CrashGuest::Burst() {
  const uint64_t before = budget_;
  const uint64_t first = options_.device == GuestDeviceType::kScsi ? wire::kScsiFirstRequestQueue : 0;
  for (uint64_t left = random_.Between(1, options_.burst_max); left > 0 && budget_ > 0; --left) {
    if (queues_[random_.Between(first, queues_.size() - 1)]->Issue(disk_, random_)) --budget_;
  }
  full_ = budget_ == before && open() > 0;
  for (const auto& queue : queues_) queue->Submit();
}

std::string CrashGuest::Describe() const {
  std::string text = options_.name + ": budget " + std::to_string(budget_);
  for (const auto& queue : queues_) {
    if (queue->open() > 0) text += "\n      " + queue->Describe();
  }
  return text;
}

// ---- Death of a process

void CrashGuest::Freeze() {
  const auto memory = memory_->Span(0, kCrashGuestBytes);
  kept_memory_.assign(memory.begin(), memory.end());
  kept_inflight_.clear();
  if (inflight_bytes_ != nullptr) {
    kept_inflight_.assign(inflight_bytes_, inflight_bytes_ + inflight_.description.size_bytes);
  }
  kept_signals_.clear();
  for (const auto& queue : queues_) {
    kept_signals_.push_back({Signalled(queue->ring().call_fd()), Signalled(queue->ring().kick_fd())});
  }
}

void CrashGuest::Thaw() {
  std::copy(kept_memory_.begin(), kept_memory_.end(), memory_->Span(0, kCrashGuestBytes).begin());
  std::copy(kept_inflight_.begin(), kept_inflight_.end(), inflight_bytes_);
  CLEAT_CHECK(kept_signals_.size() == queues_.size());
  for (size_t i = 0; i < queues_.size(); ++i) {
    SetSignal(queues_[i]->ring().call_fd(), kept_signals_[i].call);
    SetSignal(queues_[i]->ring().kick_fd(), kept_signals_[i].kick);
  }
  for (const auto& queue : queues_) queue->Survive();
  // Most guests have seen what they were told of by the time that a successor is there.
  if (random_.Chance(3, 4)) Collect(/*must_look=*/true);
}

// ---- QEMU's part. What a dead process still says is not heard.

Task<Status> CrashGuest::Serve(Connection& connection) {
  connection_ = &connection;
  auto converse = Converse(connection);
  Status served = co_await std::move(converse);
  connection_ = nullptr;
  if (served.ok() || served.error().code == ErrorCode::kCancelled || kill_.dead()) co_return Ok{};
  world_.Violation(options_.name + ": the session refused a message: " + served.error().message);
  co_return served;
}

void CrashGuest::Disconnected() {
  if (!kill_.dead()) Collect(/*must_look=*/true);
}

// The engine may want its rings for another one, and the connection may be over.
Task<Status> CrashGuest::BetweenMessages(Connection& connection) {
  if (connection.yield.wanted() && !connection.closed && !kill_.dead()) {
    auto take = connection.yield.Take(connection.session);
    if (co_await std::move(take)) connection.closed = true;
  }
  if (connection.session.may_start() && !connection.closed && !kill_.dead()) {
    auto start = connection.session.StartWaiting();
    if (Status started = co_await std::move(start); !started) co_return started;
  }
  co_return connection.closed || kill_.dead() ? Status(ConnectionOver()) : Status(Ok{});
}

Task<Status> CrashGuest::Converse(Connection& connection) {
  auto negotiate = Negotiate(connection);
  Status status = co_await std::move(negotiate);
  for (uint32_t i = 0; status && i < queues_.size(); ++i) {
    auto set_up = SetUpRing(connection, i);
    status = co_await std::move(set_up);
  }
  while (status) {
    auto between = BetweenMessages(connection);
    status = co_await std::move(between);
    if (!status) break;
    if (resetting_) {
      auto reset = Reset(connection);
      status = co_await std::move(reset);
    } else {
      co_await connection.wake.Wait();
    }
  }
  co_return status;
}

// The driver begins anew: its rings are stopped, which waits for the storage, and made again. QEMU keeps the in-flight
// memory (vhost-user-scsi) or has it made again (vhost-user-blk). A process that dies meanwhile leaves rings stopped
// and others not: the driver has to ask its successor.
Task<Status> CrashGuest::Reset(Connection& connection) {
  for (uint32_t i = 0; i < queues_.size(); ++i) {
    auto between = BetweenMessages(connection);
    if (Status goes_on = co_await std::move(between); !goes_on) co_return goes_on;
    auto stop = connection.session.StopRing(i);
    const Result<uint32_t> base = co_await std::move(stop);
    if (!base) co_return base.error();
    if (kill_.dead()) co_return ConnectionOver();
    queues_[i]->Collect(/*must_look=*/true);
    if (*base != queues_[i]->ring().base_after_crash()) {
      world_.Violation(options_.name + " queue " + std::to_string(i) + ": stopped at " +
                       std::to_string(*base) + " with " +
                       std::to_string(queues_[i]->ring().base_after_crash()) + " used: not drained");
    }
  }
  DropQueues();
  // With the disk everything begins anew, as after a reset of the VM under QEMU's vhost-user-blk.
  const bool forgets = replacing() && !scsi();
  if (forgets) KnowNextDisk();
  if ((forgets || random_.Chance(1, 2)) && inflight_bytes_ != nullptr) {
    munmap(inflight_bytes_, inflight_.description.size_bytes);
    inflight_bytes_ = nullptr;
  }
  resetting_ = false;
  auto negotiate = Negotiate(connection);
  Status status = co_await std::move(negotiate);
  for (uint32_t i = 0; status && i < queues_.size(); ++i) {
    auto set_up = SetUpRing(connection, i);
    status = co_await std::move(set_up);
  }
  co_return status;
}

void CrashGuest::DropQueues() {
  for (const auto& queue : queues_) {
    queue->CheckIdle();
    completed_before_ += queue->completed();
    queue->ForgetOpen();
  }
  queues_.clear();
  made_ = full_ = unit_resetting_ = false;
}

Task<Status> CrashGuest::Negotiate(Connection& connection) {
  auto before = BetweenMessages(connection);
  Status status = co_await std::move(before);
  if (!status) co_return status;
  const vhost::Offer& offer = connection.session.offer();
  if (!made_ && features_ == 0) {
    features_ = wire::kFeatureVersion1 | wire::kFeatureProtocolFeatures;
    if (options_.device == GuestDeviceType::kBlk) features_ |= offer.features & kBlkFeatures;
    if (random_.Chance(1, 2)) features_ |= wire::kFeatureIndirectDesc;
    if (random_.Chance(2, 3)) features_ |= wire::kFeatureEventIdx;
    if (options_.packed) features_ |= wire::kFeatureRingPacked;
  }
  status = connection.session.SetProtocolFeatures(offer.protocol_features);
  if (!status) co_return status;
  auto features = connection.session.SetFeatures(features_);
  status = co_await std::move(features);
  if (!status) co_return status;
  auto between = BetweenMessages(connection);
  status = co_await std::move(between);
  if (!status) co_return status;
  if (!made_) MakeQueues(connection);
  auto map = MapMemory(connection);
  status = co_await std::move(map);
  if (!status || options_.defect == Defect::kNoInflightLog) co_return status;
  auto inflight = SetInflight(connection);
  co_return co_await std::move(inflight);
}

void CrashGuest::MakeQueues(Connection& connection) {
  const uint32_t count = connection.model.queues();
  const bool indirect = (features_ & wire::kFeatureIndirectDesc) != 0;
  uint16_t size = kRingSizes[random_.Below(std::size(kRingSizes))];
  if (inflight_bytes_ != nullptr) size = inflight_.description.queue_size;  // which has to fit
  if (options_.packed && inflight_bytes_ == nullptr)
    size = static_cast<uint16_t>(size - random_.Below(size / 4));  // not only powers of two
  perf::LayoutLimits limits;
  limits.descriptors_max = std::min<uint32_t>(size, 8);
  constexpr std::array kPolicies = {perf::LayoutPolicy::kClassic, perf::LayoutPolicy::kIndirect,
                                    perf::LayoutPolicy::kAnyLayout};
  planner_ = std::make_unique<perf::LayoutPlanner>(kPolicies[random_.Below(kPolicies.size())], random_.Next(),
                                                   indirect, limits);
  GuestQueue::Options options;
  options.device = options_.device;
  options.ring.size = size;
  options.ring.event_idx = (features_ & wire::kFeatureEventIdx) != 0;
  options.ring.indirect_entries = indirect ? static_cast<uint16_t>(limits.descriptors_max) : uint16_t{0};
  options.ring.packed = options_.packed;
  options.interrupts = random_.Chance(1, 2);
  options.slots = static_cast<uint32_t>(random_.Between(2, options_.slots_max));
  options.io_blocks_max = kIoBlocks;
  options.was_reset = unit_was_reset_;
  options.watch_idle = true;
  options.defect = options_.defect;
  for (uint32_t i = 0; i < count; ++i) {
    options.name = options_.name + " queue " + std::to_string(i);
    queues_.push_back(std::make_unique<GuestQueue>(world_, *memory_, *planner_, options));
  }
  made_ = true;
}

Task<Status> CrashGuest::MapMemory(Connection& connection) {
  std::vector<vhost::MemoryTableRegion> regions;
  for (const wire::MemoryRegion& region : memory_->Table()) {
    regions.push_back({region.gpa, region.size_bytes, region.user_addr, region.mmap_offset_bytes});
  }
  std::vector<UniqueFd> files;
  for (const int fd : memory_->Fds()) files.push_back(Copy(fd));
  auto map = connection.session.MapMemory(regions, files);
  co_return co_await std::move(map);
}

Task<Status> CrashGuest::SetInflight(Connection& connection) {
  auto between = BetweenMessages(connection);
  if (Status goes_on = co_await std::move(between); !goes_on) co_return goes_on;
  if (inflight_bytes_ == nullptr) {
    auto area = connection.session.MakeInflight(static_cast<uint16_t>(queues_.size()),
                                                queues_.front()->ring().size());
    if (!area) co_return std::move(area).error();
    inflight_ = std::move(area).value();
    void* bytes = mmap(nullptr, inflight_.description.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                       inflight_.file.get(), 0);
    CLEAT_CHECK(bytes != MAP_FAILED);
    inflight_bytes_ = static_cast<uint8_t*>(bytes);
  }
  const UniqueFd file = inflight_.file.Duplicate();
  auto set = connection.session.SetInflight(inflight_.description, file);
  co_return co_await std::move(set);
}

// QEMU asks nobody where to go on: it tells the used index, as the ring has it.
Task<Status> CrashGuest::SetUpRing(Connection& connection, uint32_t index) {
  vhost::Session& session = connection.session;
  const perf::DriverRing& ring = queues_[index]->ring();
  for (uint32_t step = 0; step < 6; ++step) {
    auto between = BetweenMessages(connection);
    Status status = co_await std::move(between);
    if (!status) co_return status;
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
        case 3:
          return session.SetRingKick(index, Copy(ring.kick_fd()));
        case 4:
          return session.SetRingCall(index, Copy(ring.call_fd()));
        default:
          return session.EnableRing(index, true);
      }
    }();
    status = co_await std::move(message);
    if (!status) co_return status;
  }
  co_return Ok{};
}

}  // namespace cleat::sim
