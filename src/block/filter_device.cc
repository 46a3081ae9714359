// SPDX-License-Identifier: Apache-2.0
#include "block/filter_device.h"

namespace cleat::block {

FilterDevice::FilterDevice(std::unique_ptr<Device> below)
    : Device(below->name(), below->geometry()), below_(std::move(below)) {}

FilterDevice::FilterDevice(std::unique_ptr<Device> below, const Geometry& geometry)
    : Device(below->name(), geometry), below_(std::move(below)) {}

Task<Status> FilterDevice::Resize(uint64_t size_bytes) {
  Status grown = co_await below_->Resize(size_bytes);
  if (grown) SetSize(size_bytes);
  co_return grown;
}

}  // namespace cleat::block
