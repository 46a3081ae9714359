// SPDX-License-Identifier: Apache-2.0
// A controller: the device that a guest sees on one vhost-user socket, and the disks behind it.
//
// A blk controller has one disk and nothing to show without it: its endpoint lives while the disk is
// attached.
//
//   attach:  open the disk -> acquire it -> a channel on each I/O reactor -> device model -> endpoint
//   connects detach:  endpoint stops (rings drained) -> channels closed -> disk released -> disk closed
//
// On the control reactor, one operation at a time (a mutex); I/O goes on beside them. Every step of an attach
// that fails takes the earlier ones back. Kept by shared_ptr: an operation that waits for its turn keeps it
// alive, and finds it closed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/pipeline.h"
#include "engine/disk_factory.h"
#include "engine/spec.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/endpoint.h"
#include "virtio/device_model.h"

namespace cleat::engine {

// What controllers are made of; everything in it outlives them.
struct ControllerContext {
  Reactor& control;
  const std::vector<Reactor*>& io_reactors;
  DiskFactory& disks;
  vhost::EndpointFactory& endpoints;
  // After each change of a report. An attachment that is gone is one that Attachment() no longer reports.
  std::function<void(const std::string& controller)> on_controller_changed;
  std::function<void(const std::string& controller, uint32_t target)> on_attachment_changed;
};

class Controller {
 public:
  Controller(ControllerContext& context, const ControllerSpec& spec);
  ~Controller();  // closed

  ControllerReport Report() const;
  std::optional<AttachmentReport> Attachment() const;
  void SetRevision(uint64_t revision) { spec_.revision = revision; }
  const ControllerSpec& spec() const { return spec_; }

  // OK once the disk is open and the endpoint is connecting. An error leaves the controller as it was. The
  // same attachment again is OK. `attachment` lives until the task is over.
  Task<Status> Attach(const AttachmentSpec& attachment);
  // OK when nothing of it is left. Lasts as long as the storage takes for what is in flight.
  Task<Status> Detach(uint32_t target);
  // For good: detaches what is left; refuses everything afterwards. `keep_attached`: refused
  // (failed_precondition) while a disk is attached.
  enum class CloseMode { kRefuseIfAttached, kDetach };
  Task<Status> Close(CloseMode mode);

 private:
  struct AttachedDisk;

  Task<Status> OpenDisk(AttachedDisk& disk);
  Task<Status> OpenChannels(AttachedDisk& disk);
  Task<void> CloseChannels(AttachedDisk& disk);
  Task<void> TakeDown();
  Status CheckAttachable(const AttachmentSpec& attachment) const;
  void SetState(AttachedDisk& disk, AttachmentState state, const std::string& message);
  void Changed() const;

  ControllerContext& context_;
  ControllerSpec spec_;
  Mutex operations_;
  bool closed_ = false;
  bool closing_ = false;
  std::unique_ptr<AttachedDisk> disk_;  // blk: the one
};

}  // namespace cleat::engine
