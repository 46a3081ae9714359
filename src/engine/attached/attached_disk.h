// SPDX-License-Identifier: Apache-2.0
// A disk behind a controller, from the storage's side: open, with a channel on each I/O reactor that the controller's
// queues run on, and owned or not (block::Device::Acquire). What the guest sees of it is the guest device's business
// (guest_device.h).
//
//   made --Open--> open --Acquire--> owned --Release--> open ... --Close--> destroyed
//
// Requests come only while it is owned; one that is only open is prepared to be. Who opens it for a VM that migrates here
// acquires it late (engine/controller/disk_ownership.h). Close comes also when Open failed, and
// takes back whatever part was done. On the control reactor; one Task at a time (the controller's per-target mutex).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "block/pipeline.h"
#include "engine/attached/controller_context.h"
#include "engine/attached/storage_watch.h"
#include "engine/protocol/spec.h"
#include "observe/carried_counters.h"
#include "observe/disk_counters.h"
#include "reactor/task.h"
#include "virtio/disk_channel_ref.h"

namespace cleat::engine {

class AttachedDisk {
 public:
  // `reactors`: those that the controller's queues run on; each gets a channel. They outlive the disk. `group`: the
  // controller's, or nullptr.
  AttachedDisk(ControllerContext& context, const AttachmentSpec& attachment,
               const std::vector<Reactor*>& reactors, std::shared_ptr<qos::Group> group);
  ~AttachedDisk();  // closed

  Task<Status> Open();
  // OK also when it is owned already. What an engine before was giving to another host is acquire_pending then.
  Task<Status> Acquire();
  // How long Acquire waits for an owner that seems to be going; nullopt: as its storage thinks right.
  void SetAcquireTimeout(std::optional<uint64_t> wait_ns) { pipeline_->device().SetAcquireTimeout(wait_ns); }
  // Nothing is in flight. The same again is OK; after an error it is not known whether somebody else can acquire it.
  Task<Status> Release();
  // As Release, for another host. kAborted: not yet, and it is owned as before, but for that host: acquire_pending, also with engines to come.
  Task<Status> ReleaseToOtherHost();
  // Its guest is here, and no other host is to have it. Owned.
  void StayHere() {
    acquire_pending = false;
    pipeline_->device().SetLeaving(0);
  }
  // Its counters go on from these: of another engine that had it. Owned.
  Task<void> ImportCounters(const observe::CarriedCounters& carried);
  // The guest device has let go of it: nothing is in flight.
  Task<void> Close(block::Device::Parting parting);
  // With more of its pool's drive, if it is a pool's disk and is given any. `resize` lives until the task is over.
  Task<Status> Resize(const ResizeSpec& resize);
  // At any time, also while it is being opened or closed.
  void SetLimits(const LimitsSpec& limits);
  void SetOnNoSpace(OnNoSpace on_no_space);
  void SetInDoubt(const block::InDoubt& in_doubt);
  // What its limits have been used for, for another engine's to go on from. Open.
  std::vector<uint64_t> SaveUse() const;
  void RestoreUse(std::span<const uint64_t> use);

  // Its cells of this engine's counters.
  std::vector<uint64_t> Cells() const;

  bool owned() const { return owned_; }
  // What its storage was last seen to have grown to by somebody else's doing; 0: it was not.
  uint64_t grown_bytes() const { return grown_bytes_; }
  const block::Geometry& geometry() const { return pipeline_->geometry(); }
  block::AccessMode mode() const { return pipeline_->mode(); }
  // On `io`, the reactor that asks; without a channel when the disk has none there.
  virtio::DiskChannelRef ChannelOn(Reactor& io) const;

  // Why its storage has shut it out, if it has; for people.
  const std::string& fenced() const { return fenced_; }
  AttachmentReport Report() const;

  AttachmentSpec spec;
  AttachmentState state = AttachmentState::kOpening;
  std::string message;
  bool shown = false;                         // the guest device has it
  bool acquire_pending = false;               // to be acquired before rings start (DiskOwnership)
  DescriptorBudget::Reservation descriptors;  // for what it has open

 private:
  DiskEvents Events();
  Task<Status> OpenStorage();
  Task<Status> OpenChannels();
  void AddCounters();
  static void LogNotReleased(const Error& error);
  Task<void> CloseChannels();

  ControllerContext& context_;
  const std::shared_ptr<qos::Group> group_;
  std::unique_ptr<block::Pipeline> pipeline_;
  qos::LimitedDevice* limited_ = nullptr;  // in the pipeline
  bool owned_ = false;
  uint64_t grown_bytes_ = 0;
  std::string fenced_;
  StorageWatch storage_;
  struct Place {
    Reactor* io;
    std::unique_ptr<block::PipelineChannel> channel;  // made and destroyed on `io`
    std::unique_ptr<observe::DiskCounters> counters;  // on control; nullptr: there was none to be had
    std::shared_ptr<StorageCell> storage;             // outlives the two
  };
  std::vector<Place> places_;  // set before the guest device knows the disk, and until it has let go
};

}  // namespace cleat::engine
