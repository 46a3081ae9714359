// SPDX-License-Identifier: Apache-2.0
#include "virtio/scsi_model.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "virtio/ring_format.h"
#include "virtio/scsi_control.h"
#include "virtio/scsi_events.h"
#include "virtio/scsi_port.h"
#include "virtio/scsi_queue.h"

namespace cleat::virtio {
namespace {

constexpr uint32_t kControlQueue = 0;
constexpr uint32_t kEventQueue = 1;
constexpr uint32_t kFirstRequestQueue = 2;

constexpr uint64_t Bit(unsigned feature) {
  return uint64_t{1} << feature;
}

// 5.6.6.3, PARAM_CHANGE: the additional sense code, then its qualifier.
constexpr uint32_t kCapacityChangedReason = static_cast<uint32_t>(scsi::SenseCode::kCapacityChanged) >> 8 |
                                            (static_cast<uint32_t>(scsi::SenseCode::kCapacityChanged) & 0xff)
                                                << 8;
static_assert(kCapacityChangedReason == 0x092a);

}  // namespace

static_assert(ScsiModel::kTargetsMax == kScsiTargetsMax);

ScsiModel::ScsiModel(std::string name, Reactor& control, std::vector<Reactor*> io_reactors,
                     uint32_t request_queues, EarlierIo* earlier)
    : name_(std::move(name)),
      control_(control),
      io_reactors_(std::move(io_reactors)),
      request_queues_(request_queues),
      events_(std::make_unique<ScsiEvents>()) {
  CLEAT_CHECK(!io_reactors_.empty() && request_queues_ >= 1 && request_queues_ <= kScsiRequestQueuesMax);
  for (Reactor* io : io_reactors_) ports_.push_back(std::make_unique<ScsiPort>(*io, earlier));
}

ScsiModel::~ScsiModel() {
  CLEAT_CHECK(std::ranges::all_of(units_, [](const auto& unit) { return unit == nullptr; }));
}

// ---- Targets

bool ScsiModel::RunsRequests(size_t position) const {
  const size_t reactors = io_reactors_.size();
  return (position + reactors - kFirstRequestQueue % reactors) % reactors < request_queues_;
}

Task<Status> ScsiModel::Add(uint32_t target, ScsiDisk disk) {
  if (target >= kTargetsMax) {
    co_return Error(ErrorCode::kInvalidArgument, name_ + ": target " + std::to_string(target) +
                                                     ": use 0 to " + std::to_string(kTargetsMax - 1));
  }
  if (units_[target] != nullptr) {
    co_return Error(ErrorCode::kAlreadyExists, name_ + ": target " + std::to_string(target) + " is " +
                                                   units_[target]->name() + ": detach it first");
  }
  CLEAT_CO_TRY(scsi::CheckIdentity(disk.identity, disk.name));

  const auto unit = std::make_shared<scsi::LogicalUnit>(disk.name, disk.identity, disk.mode);
  for (size_t i = 0; i < ports_.size(); ++i) {
    Reactor& io = *io_reactors_[i];
    co_await io.Enter();
    const DiskChannelRef ref = disk.channel_on(io);
    if (ref.channel != nullptr) ports_[i]->Add(target, unit, ref, disk.geometry);
    co_await control_.Enter();
    if (ref.channel == nullptr && RunsRequests(i)) {
      co_await RemoveParts(target, i);
      co_return Error(ErrorCode::kFailedPrecondition, name_ + ": " + disk.name + " is not open on " +
                                                          io.name() + ", which runs request queues");
    }
  }
  units_[target] = unit;
  co_await Tell(VIRTIO_SCSI_T_TRANSPORT_RESET, target, VIRTIO_SCSI_EVT_RESET_RESCAN);
  co_return Ok{};
}

Task<void> ScsiModel::Remove(uint32_t target, bool tell) {
  if (target >= kTargetsMax || units_[target] == nullptr) co_return;
  co_await RemoveParts(target, ports_.size());
  units_[target].reset();
  if (!tell) co_return;
  co_await Tell(VIRTIO_SCSI_T_TRANSPORT_RESET, target, VIRTIO_SCSI_EVT_RESET_REMOVED);
}

// From the first `reactors` ports.
Task<void> ScsiModel::RemoveParts(uint32_t target, size_t reactors) {
  for (size_t i = 0; i < reactors; ++i) {
    co_await io_reactors_[i]->Enter();
    co_await ports_[i]->Remove(target);
  }
  co_await control_.Enter();
}

Task<void> ScsiModel::SetGeometry(uint32_t target, const block::Geometry& geometry) {
  const block::Geometry changed = geometry;  // the caller's may not live as long
  if (target >= kTargetsMax || units_[target] == nullptr) co_return;
  for (const auto& port : ports_) {
    co_await port->reactor().Enter();
    if (scsi::UnitChannel* unit = port->unit(target)) unit->SetGeometry(changed);
  }
  co_await control_.Enter();
  units_[target]->Raise(scsi::Attention::kCapacityChanged);
  co_await Tell(VIRTIO_SCSI_T_PARAM_CHANGE, target, kCapacityChangedReason);
}

Task<void> ScsiModel::Tell(uint32_t event, uint32_t target, uint32_t reason) {
  co_await io_reactors_[kEventQueue % io_reactors_.size()]->Enter();
  events_->Post(event, target, reason);
  co_await control_.Enter();
}

// ---- DeviceModel

uint32_t ScsiModel::queues() const {
  return kFirstRequestQueue + request_queues_;
}

uint64_t ScsiModel::features() const {
  return kRingFeatures | Bit(VIRTIO_SCSI_F_HOTPLUG) | Bit(VIRTIO_SCSI_F_CHANGE);
}

void ScsiModel::ReadConfig(uint32_t /*offset*/, std::span<uint8_t> out) const {
  std::ranges::fill(out, uint8_t{0});
}

Status ScsiModel::WriteConfig(uint32_t offset, std::span<const uint8_t> in) {
  return Error(ErrorCode::kInvalidArgument,
               "virtio-scsi device '" + name_ + "': the driver writes " + std::to_string(in.size()) +
                   " bytes at offset " + std::to_string(offset) + " of a configuration that it has not got");
}

Result<std::unique_ptr<DeviceQueue>> ScsiModel::OpenQueue(Reactor& reactor, uint32_t index) {
  const auto name = [&] { return "virtio-scsi device '" + name_ + "', queue " + std::to_string(index); };
  if (index >= queues()) {
    return Error(ErrorCode::kInvalidArgument, name() + ": it has " + std::to_string(queues()) + " queues");
  }
  const size_t position = index % io_reactors_.size();
  if (io_reactors_[position] != &reactor) {
    return Error(ErrorCode::kInvalidArgument,
                 name() + ": it runs on " + io_reactors_[position]->name() + ", not on " + reactor.name());
  }
  if (index == kControlQueue) {
    return std::unique_ptr<DeviceQueue>(std::make_unique<ScsiControlQueue>(reactor, ports_));
  }
  if (index == kEventQueue) {
    return std::unique_ptr<DeviceQueue>(std::make_unique<ScsiEventQueue>(reactor, *events_));
  }
  return std::unique_ptr<DeviceQueue>(std::make_unique<ScsiQueue>(reactor, *ports_[position]));
}

}  // namespace cleat::virtio
