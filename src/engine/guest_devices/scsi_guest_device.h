// SPDX-License-Identifier: Apache-2.0
// The guest device of a virtio-scsi controller: it is there as long as its controller, and connected from Serve on;
// disks come and go at its targets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/guest_devices/guest_device.h"
#include "virtio/scsi_model.h"

namespace cleat::engine {

class ScsiGuestDevice final : public GuestDevice {
 public:
  ScsiGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                  const std::vector<Reactor*>& reactors, vhost::Ownership& ownership,
                  std::function<void()> on_change);

  uint32_t targets() const override { return kTargetsMax; }
  void StandBy() override {}  // nobody is let in before Serve
  Status Serve(UniqueFd connections) override;
  Task<Result<UniqueFd>> Yield(uint64_t deadline_ns) override;
  Task<void> Close() override;
  Task<Status> Add(AttachedDisk& disk) override;
  Task<void> Remove(AttachedDisk& disk, bool tell) override;
  Task<void> Resized(AttachedDisk& disk) override;
  std::optional<vhost::EndpointStatus> status() const override;
  const char* idle_reason() const override { return "its disks are attached first"; }

 private:
  ControllerContext& context_;
  const ControllerSpec& spec_;
  const std::vector<Reactor*>& reactors_;
  vhost::Ownership& ownership_;
  const std::function<void()> on_change_;
  virtio::ScsiModel model_;
  std::unique_ptr<vhost::Endpoint> endpoint_;
};

}  // namespace cleat::engine
