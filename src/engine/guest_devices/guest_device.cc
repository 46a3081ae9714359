// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/guest_device.h"

#include <utility>

#include "engine/guest_devices/blk_guest_device.h"
#include "engine/guest_devices/nvmf_guest_device.h"
#include "engine/guest_devices/scsi_guest_device.h"

namespace cleat::engine {

Task<void> GuestDevice::Acquired() {
  co_return;
}

Task<void> GuestDevice::AwaitHosts() {
  co_return;
}

Result<std::unique_ptr<vhost::Endpoint>> StartEndpoint(ControllerContext& context, const ControllerSpec& spec,
                                                       const std::vector<Reactor*>& reactors,
                                                       virtio::DeviceModel& model,
                                                       vhost::Ownership& ownership,
                                                       const std::function<void()>& on_change) {
  vhost::EndpointOptions options;
  options.name = spec.name;
  options.socket_path = spec.socket_path;
  options.mode = ModeOf(spec);
  options.io_reactors = reactors;
  options.ownership = &ownership;
  options.memory_pinned = spec.memory_pinned;
  auto endpoint = context.endpoints.Make(options, model, on_change);
  CLEAT_TRY(endpoint);
  CLEAT_TRY((*endpoint)->Start());
  return endpoint;
}

Task<Status> YieldEndpoint(std::unique_ptr<vhost::Endpoint>& endpoint, uint64_t deadline_ns) {
  if (endpoint == nullptr) co_return Ok{};
  Status yielded = co_await endpoint->Yield(deadline_ns);
  if (yielded) endpoint.reset();
  co_return yielded;
}

vhost::SocketMode ModeOf(const ControllerSpec& spec) {
  return spec.socket_mode == SocketMode::kClient ? vhost::SocketMode::kClient : vhost::SocketMode::kServer;
}

uint32_t QueuesOf(const ControllerSpec& spec) {
  constexpr uint32_t kScsiOwnQueues = 2;  // control and event (virtio 1.2, 5.6.2)
  return spec.type == ControllerType::kScsi ? spec.queues + kScsiOwnQueues : spec.queues;
}

std::unique_ptr<GuestDevice> MakeGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                                             const std::vector<Reactor*>& reactors,
                                             vhost::Ownership& ownership, std::function<void()> on_change) {
  if (spec.type == ControllerType::kNvmf)
    return std::make_unique<NvmfGuestDevice>(context, spec, reactors, std::move(on_change));
  if (spec.type == ControllerType::kScsi) {
    return std::make_unique<ScsiGuestDevice>(context, spec, reactors, ownership, std::move(on_change));
  }
  return std::make_unique<BlkGuestDevice>(context, spec, reactors, ownership, std::move(on_change));
}

}  // namespace cleat::engine
