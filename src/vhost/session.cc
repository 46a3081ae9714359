// SPDX-License-Identifier: Apache-2.0
#include "vhost/session.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "reactor/for_each_concurrently.h"
#include "virtio/inflight_log.h"
#include "virtio/packed_inflight_log.h"
#include "virtio/ring_format.h"

namespace cleat::vhost {
namespace {

constexpr uint64_t kDescriptorAlignment = 16;  // virtio 1.2, 2.7
constexpr uint64_t kAvailableAlignment = 2;
constexpr uint64_t kUsedAlignment = 4;

// One ring's part of the in-flight log: rounded up to a cache line, which is how every implementation lays the parts
// out side by side.
uint64_t InflightBytes(uint16_t queue_size, bool packed) {
  const uint64_t bytes =
      packed ? virtio::PackedInflightLog::Bytes(queue_size) : virtio::InflightLog::Bytes(queue_size);
  return (bytes + 63) / 64 * 64;
}

Status CheckInflight(uint16_t queues, uint16_t queue_size) {
  if (queues == 0 || queues > kRingsMax || queue_size == 0 || queue_size > virtio::kQueueSizeMax) {
    return Error(ErrorCode::kInvalidArgument, "in-flight memory for " + std::to_string(queues) +
                                                  " queues of " + std::to_string(queue_size) + ": at most " +
                                                  std::to_string(kRingsMax) + " of " +
                                                  std::to_string(virtio::kQueueSizeMax));
  }
  return Ok{};
}

}  // namespace

Offer OfferFor(const virtio::DeviceModel& model) {
  Offer offer;
  offer.features = model.features() | kFeatureLogAll | kFeatureProtocolFeatures;
  offer.protocol_features = kProtocolMq | kProtocolLogShmfd | kProtocolReplyAck | kProtocolInflightShmfd;
  // A change of the configuration space is the one thing that a back end of ours has to say by itself.
  if (model.has_config()) offer.protocol_features |= kProtocolConfig | kProtocolBackendRequests;
  return offer;
}

Session::Session(Options options, Reactor& control, BlockingPool& pool, virtio::DeviceModel& model,
                 std::function<void()> on_change)
    : options_(std::move(options)),
      control_(control),
      pool_(pool),
      on_change_(std::move(on_change)),
      offer_(OfferFor(model)),
      log_disk_(model.log_disk()) {
  CLEAT_CHECK(!options_.io_reactors.empty() && model.queues() <= kRingsMax);
  for (uint32_t i = 0; i < model.queues(); ++i) {
    Reactor& io = *options_.io_reactors[i % options_.io_reactors.size()];
    rings_.push_back(std::make_unique<Ring>(
        control, io, model, i, [this](Ring& /*ring*/) { on_change_(); }, blocked_));
  }
}

Session::~Session() {
  CLEAT_CHECK(ended_);
}

// ---- Negotiation

Task<Status> Session::SetFeatures(uint64_t features) {
  if ((features & ~offer_.features) != 0) {
    co_return Error(ErrorCode::kInvalidArgument,
                    "features that were not offered: bits " + std::to_string(features & ~offer_.features));
  }
  const uint64_t changed = features ^ features_;
  if (AnyRunning() && (changed & ~kFeatureLogAll) != 0) {
    co_return Error(ErrorCode::kInvalidArgument, "features changed while rings are running");
  }
  // A log of one format's makes no sense for the other; a front end that goes on with other features makes a new one.
  if (features_ != 0 && virtio::IsPacked(changed)) inflight_.reset();
  features_ = features;
  if ((changed & kFeatureLogAll) != 0) {
    co_await UpdateDirtyLog();
  }
  co_return Ok{};
}

Status Session::SetProtocolFeatures(uint64_t protocol_features) {
  if ((protocol_features & ~offer_.protocol_features) != 0) {
    return Error(ErrorCode::kInvalidArgument,
                 "protocol features that were not offered: bits " +
                     std::to_string(protocol_features & ~offer_.protocol_features));
  }
  protocol_features_ = protocol_features;
  return Ok{};
}

// ---- Memory

Task<Status> Session::MapMemory(std::span<const MemoryTableRegion> regions, std::span<const UniqueFd> files) {
  BlockingPool* const pool = &pool_;
  const MemoryTable::ReleaseFn release = [pool](std::shared_ptr<block::MemoryRegion> region) {
    pool->Post([region = std::move(region)] {});
  };
  const std::function<Result<std::shared_ptr<const MemoryTable>>()> map = [&] {
    return MemoryTable::Map(regions, files, memory_.get(), release,
                            options_.memory_pinned ? options_.name : std::string());
  };
  CLEAT_CO_ASSIGN(auto table, co_await pool_.Run(map));
  co_return co_await SetMemory(std::move(table));
}

Task<Status> Session::SetMemory(std::shared_ptr<const MemoryTable> table) {
  // All or nothing: a running ring that the new table doesn't hold any more is the front end's mistake.
  std::vector<std::pair<Ring*, virtio::RingMemory>> running;
  for (const auto& ring : rings_) {
    if (!ring->running()) continue;
    CLEAT_CO_ASSIGN(auto memory, RingMemoryOf(*ring, *table));
    running.emplace_back(ring.get(), memory);
  }
  memory_ = std::move(table);
  for (auto& [ring, memory] : running) {
    co_await ring->SetMemory(memory_->map(), &memory);
  }
  for (const auto& ring : rings_) {
    CLEAT_CO_TRY(co_await StartIfComplete(*ring));
  }
  co_return Ok{};
}

Task<Result<std::shared_ptr<block::MemoryRegion>>> Session::MapFile(const UniqueFd& file,
                                                                    uint64_t offset_bytes,
                                                                    uint64_t size_bytes) {
  const std::function<Result<std::shared_ptr<block::MemoryRegion>>()> map = [&] {
    return block::MemoryRegion::Map(file, offset_bytes, size_bytes);
  };
  co_return co_await pool_.Run(map);
}

// ---- In-flight log

Result<Session::InflightArea> Session::MakeInflight(uint16_t queues, uint16_t queue_size) {
  CLEAT_TRY(CheckInflight(queues, queue_size));
  InflightArea area;
  // Enough for either format while nothing is negotiated.
  area.description.size_bytes = queues * InflightBytes(queue_size, packed() || features_ == 0);
  area.description.queues = queues;
  area.description.queue_size = queue_size;
  area.file = UniqueFd(memfd_create("cleat-inflight", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!area.file) return ErrnoError(errno, "memfd_create for the in-flight log");
  // Sealed: nobody can pull it away from under a running ring.
  if (ftruncate(area.file.get(), static_cast<off_t>(area.description.size_bytes)) != 0 ||
      fcntl(area.file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return ErrnoError(errno, "sizing the in-flight log");
  }
  // What the guest queues from now on is for this disk, even if another disk is attached before anybody fetches it. So the region names
  // this disk before any ring is served; in the first ring's log only, since where the others begin is open until features are
  // negotiated.
  const uint64_t owner = log_disk_.value();
  if (pwrite(area.file.get(), &owner, sizeof(owner), virtio::kInflightOwnerAt) != sizeof(owner))
    return ErrnoError(errno, "writing the in-flight log's owner");
  return area;
}

Task<Status> Session::SetInflight(InflightDescription description, const UniqueFd& file) {
  CLEAT_CO_TRY(CheckInflight(description.queues, description.queue_size));
  if (AnyRunning()) {
    co_return Error(ErrorCode::kInvalidArgument, "in-flight memory changed while rings are running");
  }
  const uint64_t needed = description.queues * InflightBytes(description.queue_size, packed());
  if (description.size_bytes < needed) {
    co_return Error(ErrorCode::kInvalidArgument,
                    "in-flight memory of " + std::to_string(description.size_bytes) + " bytes where " +
                        std::to_string(needed) + " are needed");
  }
  CLEAT_CO_ASSIGN(inflight_, co_await MapFile(file, description.offset_bytes, description.size_bytes));
  inflight_description_ = description;
  co_return Ok{};
}

virtio::InflightMemory Session::InflightOf(uint32_t index) const {
  if (inflight_ == nullptr || index >= inflight_description_.queues) return {};
  virtio::InflightMemory memory;
  memory.size_bytes = InflightBytes(inflight_description_.queue_size, packed());
  const uint64_t offset_bytes = index * memory.size_bytes;
  // The region may have been made before the features were known: the log refuses one that is too small.
  if (offset_bytes + memory.size_bytes > inflight_->size_bytes()) memory.size_bytes = 0;
  memory.base = inflight_->base() + (memory.size_bytes > 0 ? offset_bytes : 0);
  memory.disk = log_disk_;
  memory.keep = inflight_;
  return memory;
}

// ---- Dirty log

Task<Status> Session::SetLog(LogDescription description, const UniqueFd& file) {
  CLEAT_CO_ASSIGN(log_.keep, co_await MapFile(file, description.offset_bytes, description.size_bytes));
  log_.base = log_.keep->base();
  log_.size_bytes = description.size_bytes;
  co_await UpdateDirtyLog();
  co_return Ok{};
}

Task<void> Session::UpdateDirtyLog() {
  const virtio::DirtyLogMemory log = logging() ? log_ : virtio::DirtyLogMemory();
  for (const auto& ring : rings_) {
    if (!ring->running()) continue;
    co_await ring->SetDirtyLog(&log);
  }
}

// ---- Rings

Result<Ring*> Session::FindRing(uint32_t index) {
  if (index < rings_.size()) return rings_[index].get();
  return Error(ErrorCode::kInvalidArgument,
               "ring " + std::to_string(index) + " of a device with " + std::to_string(rings_.size()) +
                   " queues: give the VM's device no more queues than the controller has");
}

Error Session::RingError(uint32_t index, const std::string& what) const {
  return {ErrorCode::kInvalidArgument, "ring " + std::to_string(index) + ": " + what};
}

Task<Status> Session::SetRingSize(uint32_t index, uint32_t size) {
  CLEAT_CO_ASSIGN(auto ring, FindRing(index));
  if (ring->running()) co_return RingError(index, "its size changed while it is running");
  CLEAT_CO_TRY(CheckRingSize(index, size));
  ring->config.size = static_cast<uint16_t>(size);
  co_return co_await StartIfComplete(*ring);
}

Status Session::CheckRingSize(uint32_t index, uint32_t size) const {
  const bool power_of_two = (size & (size - 1)) == 0;
  if (size > 0 && size <= virtio::kQueueSizeMax && (power_of_two || packed())) return Ok{};
  return RingError(index, "a size of " + std::to_string(size) + "; it has to be " +
                              (packed() ? "1 up to " : "a power of two up to ") +
                              std::to_string(virtio::kQueueSizeMax));
}

Task<Status> Session::SetRingBase(uint32_t index, uint32_t base) {
  CLEAT_CO_ASSIGN(auto ring, FindRing(index));
  if (ring->running()) co_return RingError(index, "its base changed while it is running");
  if (!packed() && base > UINT16_MAX) co_return RingError(index, "a base of " + std::to_string(base));
  ring->config.base = base;
  co_return co_await StartIfComplete(*ring);
}

// When the ring starts: what is right depends on its size and format.
Status Session::CheckRingBase(const Ring& ring) const {
  const uint32_t base = *ring.config.base;
  const uint16_t size = ring.config.size;
  const bool fits =
      packed() ? virtio::PackedPosition::FromWord(base).InUse(size) <= size : base <= UINT16_MAX;
  if (fits) return Ok{};
  return RingError(ring.index(), "a base of " + std::to_string(base) + ", which is no position in a " +
                                     (packed() ? "packed" : "split") + " ring of " + std::to_string(size));
}

Task<Status> Session::SetRingAddresses(VringAddresses addresses) {
  CLEAT_CO_ASSIGN(auto ring, FindRing(addresses.index));
  const auto before = std::exchange(ring->config.addresses, addresses);
  if (!ring->running()) {
    co_return co_await StartIfComplete(*ring);
  }
  // A front end sends them again to switch the log on and off, which is no change for us.
  if (before->descriptors == addresses.descriptors && before->available == addresses.available &&
      before->used == addresses.used) {
    co_return Ok{};
  }
  CLEAT_CO_ASSIGN(auto memory, RingMemoryOf(*ring, *memory_));
  co_await ring->SetMemory(memory_->map(), &memory);
  co_return Ok{};
}

Result<virtio::RingMemory> Session::RingMemoryOf(const Ring& ring, const MemoryTable& table) const {
  const VringAddresses& addresses = *ring.config.addresses;
  const uint16_t size = ring.config.size;
  // The features may have changed since the size was set.
  CLEAT_TRY(CheckRingSize(ring.index(), size));
  const auto refuse = [&](const char* part, const Error& error) {
    return RingError(ring.index(), part + (": " + error.message));
  };
  auto descriptors =
      table.FromUser(addresses.descriptors, virtio::DescriptorBytes(size), kDescriptorAlignment);
  if (!descriptors) return refuse(packed() ? "descriptor ring" : "descriptor table", descriptors.error());
  auto available =
      packed() ? table.FromUser(addresses.available, virtio::kEventSuppressionBytes,
                                virtio::kEventSuppressionAlignment)
               : table.FromUser(addresses.available, virtio::AvailableBytes(size), kAvailableAlignment);
  if (!available) return refuse(packed() ? "driver event suppression" : "available ring", available.error());
  auto used = packed() ? table.FromUser(addresses.used, virtio::kEventSuppressionBytes,
                                        virtio::kEventSuppressionAlignment)
                       : table.FromUser(addresses.used, virtio::UsedBytes(size), kUsedAlignment);
  if (!used) return refuse(packed() ? "device event suppression" : "used ring", used.error());
  virtio::RingMemory memory;
  memory.size = size;
  memory.descriptors = descriptors->host;
  memory.available = available->host;
  memory.used = used->host;
  memory.used_guest_address = used->guest_address;
  memory.descriptors_guest_address = descriptors->guest_address;
  return memory;
}

Task<Status> Session::SetRingKick(uint32_t index, UniqueFd kick) {
  CLEAT_CO_ASSIGN(auto ring, FindRing(index));
  Status taken = co_await ring->SetKick(std::move(kick));
  if (!taken) co_return RingError(index, "kick: " + taken.error().message);
  ring->config.kick = true;
  co_return co_await StartIfComplete(*ring);
}

Task<Status> Session::SetRingCall(uint32_t index, UniqueFd call) {
  CLEAT_CO_ASSIGN(auto ring, FindRing(index));
  Status taken = co_await ring->SetCall(std::move(call));
  if (!taken) co_return RingError(index, "call: " + taken.error().message);
  co_return Ok{};
}

Status Session::SetRingError(uint32_t index, UniqueFd error) {
  CLEAT_ASSIGN(auto ring, FindRing(index));
  Status taken = ring->SetError(std::move(error));
  return taken ? Status(Ok{}) : Status(RingError(index, "error: " + taken.error().message));
}

Task<Status> Session::EnableRing(uint32_t index, bool enable) {
  CLEAT_CO_ASSIGN(auto ring, FindRing(index));
  ring->config.enabled = enable;
  if (enable) {
    co_return co_await StartIfComplete(*ring);
  }
  if (ring->running()) {
    co_await StopOne(*ring);
  }
  OnRingsStopped(false);
  co_return Ok{};
}

Task<Result<uint32_t>> Session::StopRing(uint32_t index) {
  auto ring = FindRing(index);
  CLEAT_CO_TRY(ring);
  if ((*ring)->running()) {
    co_await StopOne(**ring);
  }
  (*ring)->DropDescriptors();
  // Not of a ring that never ran here: what a predecessor left in its log is still to be run again.
  if (std::exchange((*ring)->config.served, false)) virtio::ForgetInflight(InflightOf(index));
  const uint32_t base = (*ring)->config.base.value_or(packed() ? virtio::kPackedStart : 0);
  (*ring)->config.base.reset();
  OnRingsStopped((features_ & kFeatureLogAll) != 0);
  co_return base;
}

bool Session::Complete(const Ring& ring) const {
  const RingConfig& config = ring.config;
  const bool enabled = config.enabled || (features_ & kFeatureProtocolFeatures) == 0;
  return memory_ != nullptr && config.size != 0 && config.addresses && config.base && config.kick && enabled;
}

Task<Status> Session::StartIfComplete(Ring& ring) {
  if (ring.running() || !Complete(ring) || !MayStart()) co_return Ok{};
  CLEAT_CO_ASSIGN(auto memory, RingMemoryOf(ring, *memory_));
  CLEAT_CO_TRY(CheckRingBase(ring));
  virtio::QueueSetup setup;
  setup.features = features_;
  setup.memory = memory_->map();
  setup.ring = memory;
  setup.next_available = *ring.config.base;
  setup.inflight = InflightOf(ring.index());
  if (logging()) setup.dirty_log = log_;
  Status started = co_await ring.Start(&setup);
  if (!started) co_return RingError(ring.index(), started.error().message);
  ring.config.served = ring.config.ever_served = true;
  on_change_();
  co_return Ok{};
}

Task<void> Session::StopOne(Ring& ring, StopFor stop_for) {
  co_await ring.Stop(stop_for);
  on_change_();
}

Task<void> Session::StopAllRings(StopFor stop_for) {
  const auto stop = [this, stop_for](const std::unique_ptr<Ring>& ring) -> Task<void> {
    ring->config.enabled = false;
    ring->config.kick = false;
    if (!ring->running()) co_return;
    co_await StopOne(*ring, stop_for);
  };
  co_await ForEachConcurrently(control_, rings_, stop);
}

Task<Status> Session::YieldRings(uint64_t deadline_ns) {
  uint32_t left = 0;
  const auto stop = [deadline_ns, &left](const std::unique_ptr<Ring>& ring) -> Task<void> {
    if (!ring->running()) co_return;
    left += co_await ring->StopBy(deadline_ns, StopFor::kSuccessor);
  };
  co_await ForEachConcurrently(control_, rings_, stop);
  if (!AnyRunning()) co_return Ok{};
  CLEAT_CO_TRY(co_await StartAll());
  on_change_();
  co_return Error(ErrorCode::kDeadlineExceeded, std::to_string(left) + " requests are still in the storage");
}

Task<Status> Session::StartAll() {
  for (const auto& ring : rings_) {
    CLEAT_CO_TRY(co_await StartIfComplete(*ring));
  }
  co_return Ok{};
}

// ---- Ownership

DriverMemory Session::WhatDriverRemembers() const {
  DriverMemory memory;
  const uint32_t start = packed() ? virtio::kPackedStart : 0;
  for (const auto& ring : rings_) {
    if (!ring->config.ever_served && ring->config.base && *ring->config.base != start)
      memory.at_start = false;
    const virtio::InflightMemory log = InflightOf(ring->index());
    if (log.size_bytes < virtio::InflightLog::kHeaderBytes) continue;
    if (reinterpret_cast<uintptr_t>(log.base) % alignof(uint64_t) != 0) continue;  // the ring will refuse it
    const virtio::InflightOwner owner = virtio::OwnerOf(log.base);
    if (owner.disk == log_disk_ && log_disk_.known()) {
      memory.of_this_disk |= owner.used;
    } else if (owner.disk.known() && owner.disk.store() == log_disk_.store()) {
      memory.of_another_disk = true;
    }
    (owner.used ? memory.used_log : memory.new_log) = true;
  }
  return memory;
}

// The first ring of a connection asks, and all wait for the answer.
bool Session::MayStart() {
  if (options_.ownership == nullptr) return true;
  options_.ownership->Learn(WhatDriverRemembers());
  if (!acquire_requested_) {
    acquire_requested_ = true;
    options_.ownership->AcquireAsync([this] {
      may_start_ = true;
      wake_();
    });
  }
  if (options_.ownership->owned()) return true;
  on_change_();
  return false;
}

Task<Status> Session::StartWaiting() {
  may_start_ = false;
  co_return co_await StartAll();
}

// Nothing, unless it was the last one that counts: a ring counts from when it is complete until its GET_VRING_BASE, also
// while it is disabled.
void Session::OnRingsStopped(bool migrating) {
  if (!acquire_requested_) return;
  for (const auto& ring : rings_) {
    if (ring->running() || ring->config.served || Complete(*ring)) return;
  }
  acquire_requested_ = may_start_ = false;
  if (migrating) {
    options_.ownership->HandOff();
  } else {
    options_.ownership->CancelAcquire();
  }
}

Task<void> Session::End(StopFor stop_for) {
  CLEAT_CHECK(!ended_);
  co_await StopAllRings(stop_for);
  if (std::exchange(acquire_requested_, false)) options_.ownership->CancelAcquire();
  may_start_ = false;
  for (const auto& ring : rings_) {
    co_await ring->Close();
  }
  memory_.reset();
  inflight_.reset();
  log_ = {};
  ended_ = true;
}

// ---- State

bool Session::AnyRunning() const {
  for (const auto& ring : rings_) {
    if (ring->running()) return true;
  }
  return false;
}

uint32_t Session::rings_up() const {
  uint32_t up = 0;
  for (const auto& ring : rings_) up += ring->running() && ring->broken().empty() ? 1 : 0;
  return up;
}

uint32_t Session::draining_requests() const {
  uint32_t requests = 0;
  for (const auto& ring : rings_) requests += ring->draining_requests();
  return requests;
}

std::string Session::broken() const {
  for (const auto& ring : rings_) {
    if (!ring->broken().empty()) return "ring " + std::to_string(ring->index()) + ": " + ring->broken();
  }
  return {};
}

bool Session::blocked() const {
  return blocked_.load(std::memory_order_relaxed);
}

bool Session::untracked() const {
  for (const auto& ring : rings_) {
    if (ring->running() && InflightOf(ring->index()).base == nullptr) return true;
  }
  return false;
}

std::string Session::broken_memory() const {
  constexpr std::string_view kAdvice =
      ": the file behind it was made shorter under a running guest, or its file system is full; give the VM "
      "memory-backend-memfd, which can't shrink, or a file system with room";
  if (memory_ != nullptr) {
    const auto regions = memory_->regions();
    for (size_t i = 0; i < regions.size(); ++i) {
      if (regions[i].memory->broken())
        return "guest memory region " + std::to_string(i) + " lost pages" + std::string(kAdvice);
    }
  }
  if (inflight_ != nullptr && inflight_->broken())
    return "the in-flight log lost pages" + std::string(kAdvice);
  if (log_.keep != nullptr && log_.keep->broken()) return "the dirty log lost pages" + std::string(kAdvice);
  return {};
}

}  // namespace cleat::vhost
