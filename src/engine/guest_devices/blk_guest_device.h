// SPDX-License-Identifier: Apache-2.0
// The guest device of a virtio-blk controller: its one disk is the device, so there is nothing to connect for without it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/guest_devices/guest_device.h"
#include "engine/guest_devices/swap_guard.h"
#include "virtio/blk_model.h"

namespace cleat::engine {

class BlkGuestDevice final : public GuestDevice {
 public:
  BlkGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                 const std::vector<Reactor*>& reactors, vhost::Ownership& ownership,
                 std::function<void()> on_change);

  uint32_t targets() const override { return 1; }
  void StandBy() override { stands_by_ = true; }
  Status Serve(UniqueFd connections) override;
  Task<Result<UniqueFd>> Yield(uint64_t deadline_ns) override;
  Task<void> Close() override;
  Task<Status> Add(AttachedDisk& disk) override;
  Task<void> Remove(AttachedDisk& disk, bool tell) override;
  Task<void> Resized(AttachedDisk& disk) override;
  void LastDiskChanged() override;
  DiskIdentity next_disk() const override;
  std::optional<vhost::EndpointStatus> status() const override;
  const char* idle_reason() const override {
    return "no disk attached: a blk controller connects to its peer once it has one";
  }

 private:
  Status Connect();

  ControllerContext& context_;
  const ControllerSpec& spec_;
  const std::vector<Reactor*>& reactors_;
  vhost::Ownership& ownership_;
  const std::function<void()> on_change_;
  bool stands_by_ = false;
  std::unique_ptr<virtio::BlkModel> model_;
  std::unique_ptr<SwapGuard> guard_;  // as long as the model
  std::unique_ptr<vhost::Endpoint> endpoint_;
};

}  // namespace cleat::engine
