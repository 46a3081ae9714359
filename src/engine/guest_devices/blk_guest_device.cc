// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/blk_guest_device.h"

#include <utility>

namespace cleat::engine {

BlkGuestDevice::BlkGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                               const std::vector<Reactor*>& reactors, vhost::Ownership& ownership,
                               std::function<void()> on_change)
    : context_(context),
      spec_(spec),
      reactors_(reactors),
      ownership_(ownership),
      on_change_(std::move(on_change)) {}

Task<void> BlkGuestDevice::Close() {
  if (endpoint_ == nullptr) co_return;
  co_await endpoint_->Stop();
  endpoint_.reset();
}

Status BlkGuestDevice::Serve(UniqueFd /*connections*/) {
  if (endpoint_ == nullptr && model_ != nullptr) {
    CLEAT_TRY(Connect());
  }
  stands_by_ = false;
  return Ok{};
}

Status BlkGuestDevice::Connect() {
  CLEAT_ASSIGN(endpoint_, StartEndpoint(context_, spec_, reactors_, *model_, *guard_, on_change_));
  return Ok{};
}

Task<Result<UniqueFd>> BlkGuestDevice::Yield(uint64_t deadline_ns) {
  CLEAT_CO_TRY(co_await YieldEndpoint(endpoint_, deadline_ns));
  co_return UniqueFd();
}

Task<Status> BlkGuestDevice::Add(AttachedDisk& disk) {
  const auto channel_on = [&disk](Reactor& io) { return disk.ChannelOn(io); };
  model_ = std::make_unique<virtio::BlkModel>(disk.geometry(), disk.mode(), disk.spec.disk.serial,
                                              spec_.queues, channel_on, disk.spec.disk.identity);
  guard_ = std::make_unique<SwapGuard>(spec_, disk.spec, ownership_, on_change_);
  co_return stands_by_ ? Status(Ok{}) : Connect();
}

Task<void> BlkGuestDevice::Remove(AttachedDisk& /*disk*/, bool /*tell*/) {
  co_await Close();
  guard_.reset();
  model_.reset();
}

Task<void> BlkGuestDevice::Resized(AttachedDisk& disk) {
  model_->SetGeometry(disk.geometry());
  if (endpoint_ != nullptr) endpoint_->ConfigChanged();
  co_return;
}

void BlkGuestDevice::LastDiskChanged() {
  if (guard_ != nullptr) guard_->LastDiskChanged();
}

DiskIdentity BlkGuestDevice::next_disk() const {
  return guard_ != nullptr ? guard_->next_disk() : DiskIdentity();
}

std::optional<vhost::EndpointStatus> BlkGuestDevice::status() const {
  if (endpoint_ == nullptr) return std::nullopt;
  return endpoint_->status();
}

}  // namespace cleat::engine
