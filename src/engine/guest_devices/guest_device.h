// SPDX-License-Identifier: Apache-2.0
// What a controller shows its guest: the virtio device of its type, and the endpoint that connects it. The
// controller knows disks and states; a guest device knows what a guest has to be told when a disk comes, grows or
// goes.
//
//   blk   one disk, which is the device: the endpoint lives while the disk is attached
//   scsi  eight targets: the endpoint lives from Serve on, disks come and go under it
//   nvmf  no endpoint: a subsystem of the engine's NVMe/TCP target
//
// A controller on standby has its disks and no endpoint, until Serve.
//
// On the control reactor. Calls for one target come one after the other, for several side by side.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/attached/attached_disk.h"
#include "engine/attached/controller_context.h"
#include "engine/protocol/spec.h"
#include "reactor/task.h"
#include "vhost/endpoint.h"
#include "virtio/device_model.h"

namespace cleat::engine {

class GuestDevice {
 public:
  virtual ~GuestDevice() = default;  // closed

  virtual uint32_t targets() const = 0;  // disks go to targets below this

  // Before the first disk, or behind Yield.
  virtual void StandBy() = 0;
  // What another process had of the disks is this one's now, and it serves them next: what that one has left of them is read.
  virtual Task<void> Acquired();
  // The disks that belong to the controller are there. `connections`: what Yield gave in the engine that served it before, or invalid; its
  // hosts go on, or, where it can't be used, connect again. The same again is OK; an error changes nothing, and closes it.
  virtual Status Serve(UniqueFd connections) = 0;
  // Stops, drains and disconnects what is served, for another process to go on with: by that time, or an error says why
  // not (vhost::Endpoint::Yield), and it is served as before. The disks are still there. Gives the connections of its hosts
  // (hand_over/bundle.h); invalid: there are none that go on.
  virtual Task<Result<UniqueFd>> Yield(uint64_t deadline_ns) = 0;
  // Stops and drains whatever is served. The disks are still there, and nothing uses them any more. As long
  // as the storage takes.
  virtual Task<void> Close() = 0;

  // The disk is open. It, and its spec, stay until Remove.
  virtual Task<Status> Add(AttachedDisk& disk) = 0;
  // When it returns no request to the disk is in flight and none will come. Also after Close. `tell`: the guest is here, and
  // hears of it as soon as it can.
  virtual Task<void> Remove(AttachedDisk& disk, bool tell) = 0;
  virtual Task<void> Resized(AttachedDisk& disk) = 0;

  // ControllerSpec::last_disk has changed.
  virtual void LastDiskChanged() {}
  // ControllerSpec::exported has changed: which hosts are let in.
  virtual void HostsChanged() {}
  // Returns when they are let in, or it is known why one is not.
  virtual Task<void> AwaitHosts();
  // See ControllerReport.
  virtual DiskIdentity next_disk() const { return {}; }

  virtual std::optional<vhost::EndpointStatus> status() const = 0;  // nothing: it has no endpoint now
  virtual const char* idle_reason() const = 0;                      // then
};

// For guest devices: an endpoint for `model` that has begun to connect.
Result<std::unique_ptr<vhost::Endpoint>> StartEndpoint(ControllerContext& context, const ControllerSpec& spec,
                                                       const std::vector<Reactor*>& reactors,
                                                       virtio::DeviceModel& model,
                                                       vhost::Ownership& ownership,
                                                       const std::function<void()>& on_change);

// Takes it away when it has yielded. OK also when there is none.
Task<Status> YieldEndpoint(std::unique_ptr<vhost::Endpoint>& endpoint, uint64_t deadline_ns);

// Virtqueues of such a controller, the device's own with them.
uint32_t QueuesOf(const ControllerSpec& spec);
vhost::SocketMode ModeOf(const ControllerSpec& spec);

// `spec`, `reactors`, on whose [q % size] queue q runs, and `ownership` outlive the device; `on_change` is called after
// each change of status().
std::unique_ptr<GuestDevice> MakeGuestDevice(ControllerContext& context, const ControllerSpec& spec,
                                             const std::vector<Reactor*>& reactors,
                                             vhost::Ownership& ownership, std::function<void()> on_change);

}  // namespace cleat::engine
