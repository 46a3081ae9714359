// SPDX-License-Identifier: Apache-2.0
#include "engine/blk_front.h"

#include <utility>

namespace cleat::engine {

BlkFront::BlkFront(ControllerContext& context, const ControllerSpec& spec,
                   const std::vector<Reactor*>& reactors, vhost::Ownership& ownership,
                   std::function<void()> on_change)
    : context_(context),
      spec_(spec),
      reactors_(reactors),
      ownership_(ownership),
      on_change_(std::move(on_change)) {}

Task<void> BlkFront::Close() {
  if (endpoint_ == nullptr) co_return;
  auto stop = endpoint_->Stop();
  co_await std::move(stop);
  endpoint_.reset();
}

Status BlkFront::Serve() {
  if (endpoint_ == nullptr && model_ != nullptr) {
    Status connected = Connect();
    if (!connected) return connected;
  }
  stands_by_ = false;
  return Ok{};
}

Status BlkFront::Connect() {
  auto endpoint = StartEndpoint(context_, spec_, reactors_, *model_, *guard_, on_change_);
  if (!endpoint) return std::move(endpoint).error();
  endpoint_ = std::move(endpoint).value();
  return Ok{};
}

Task<Status> BlkFront::Yield(uint64_t deadline_ns) {
  auto yield = YieldEndpoint(endpoint_, deadline_ns);
  co_return co_await std::move(yield);
}

Task<Status> BlkFront::Add(AttachedDisk& disk) {
  const auto entrance = [&disk](Reactor& io) { return disk.EntranceOn(io); };
  model_ = std::make_unique<virtio::BlkModel>(disk.geometry(), disk.mode(), disk.spec.disk.serial,
                                              spec_.queues, entrance, disk.spec.disk.identity);
  guard_ = std::make_unique<SwapGuard>(spec_, disk.spec, ownership_, on_change_);
  co_return stands_by_ ? Status(Ok{}) : Connect();
}

Task<void> BlkFront::Remove(AttachedDisk& /*disk*/, bool /*tell*/) {
  auto close = Close();
  co_await std::move(close);
  guard_.reset();
  model_.reset();
}

Task<void> BlkFront::Resized(AttachedDisk& disk) {
  model_->SetGeometry(disk.geometry());
  if (endpoint_ != nullptr) endpoint_->ConfigChanged();
  co_return;
}

void BlkFront::LastDiskChanged() {
  if (guard_ != nullptr) guard_->LastDiskChanged();
}

DiskIdentity BlkFront::next_disk() const {
  return guard_ != nullptr ? guard_->next_disk() : DiskIdentity();
}

std::optional<vhost::EndpointStatus> BlkFront::status() const {
  if (endpoint_ == nullptr) return std::nullopt;
  return endpoint_->status();
}

}  // namespace cleat::engine
