// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/scsi_guest_device.h"

#include <utility>

namespace cleat::engine {
namespace {

// What INQUIRY says (SPC-5, 6.6.2); udev makes names of it, so it never changes.
constexpr char kVendor[] = "CLEAT";
constexpr char kProduct[] = "Cleat disk";

}  // namespace

ScsiGuestDevice::ScsiGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                                 const std::vector<Reactor*>& reactors, vhost::Ownership& ownership,
                                 std::function<void()> on_change)
    : context_(context),
      spec_(spec),
      reactors_(reactors),
      ownership_(ownership),
      on_change_(std::move(on_change)),
      model_(spec.name, context.control, reactors, spec.queues, context.earlier_io) {}

Status ScsiGuestDevice::Serve(UniqueFd /*connections*/) {
  if (endpoint_ != nullptr) return Ok{};
  CLEAT_ASSIGN(endpoint_, StartEndpoint(context_, spec_, reactors_, model_, ownership_, on_change_));
  return Ok{};
}

Task<Result<UniqueFd>> ScsiGuestDevice::Yield(uint64_t deadline_ns) {
  CLEAT_CO_TRY(co_await YieldEndpoint(endpoint_, deadline_ns));
  co_return UniqueFd();
}

Task<void> ScsiGuestDevice::Close() {
  if (endpoint_ == nullptr) co_return;
  co_await endpoint_->Stop();
  endpoint_.reset();
}

Task<Status> ScsiGuestDevice::Add(AttachedDisk& disk) {
  virtio::ScsiDisk scsi;
  scsi.name = disk.spec.disk.name;
  scsi.identity.vendor = kVendor;
  scsi.identity.product = kProduct;
  scsi.identity.serial = disk.spec.disk.serial;
  scsi.identity.wwn = disk.spec.disk.wwn;
  scsi.geometry = disk.geometry();
  scsi.mode = disk.mode();
  scsi.channel_on = [&disk](Reactor& io) { return disk.ChannelOn(io); };
  co_return co_await model_.Add(disk.spec.target, std::move(scsi));
}

Task<void> ScsiGuestDevice::Remove(AttachedDisk& disk, bool tell) {
  co_await model_.Remove(disk.spec.target, tell);
}

Task<void> ScsiGuestDevice::Resized(AttachedDisk& disk) {
  co_await model_.SetGeometry(disk.spec.target, disk.geometry());
}

std::optional<vhost::EndpointStatus> ScsiGuestDevice::status() const {
  if (endpoint_ == nullptr) return std::nullopt;
  return endpoint_->status();
}

}  // namespace cleat::engine
