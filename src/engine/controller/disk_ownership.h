// SPDX-License-Identifier: Apache-2.0
// Which of a controller's disks are still to be acquired before its guest may run: those of a VM that migrates here
// (AttachmentSpec::incoming), and those that were handed off when it migrated away, be it from an engine before this one. All of them or none: a guest is let in
// only with all its disks, and what was acquired in vain is released before it is tried again, so that two sides can't
// each hold half.
//
//   acquire_pending, not owned  --AcquireAsync, acquired--> owned, ACTIVE  --HandOff--> acquire_pending, RELEASED ...
//
// One coroutine does it, when there is something to do: acquires all at once, takes the sizes that the disks have grown
// to, or releases them. What fails is tried again with back-off as long as a front end waits. It holds a
// target's mutex for each disk it works on, as everybody does; nobody who holds one may wait for it.
//
// Of a Controller, which closes it before it goes. On the control reactor.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/attached/controller_context.h"
#include "engine/attached/target.h"
#include "engine/guest_devices/guest_device.h"
#include "engine/protocol/spec.h"
#include "reactor/cancel.h"
#include "reactor/sync.h"
#include "reactor/task.h"
#include "vhost/ownership.h"

namespace cleat::engine {

class DiskOwnership final : public vhost::Ownership {
 public:
  // A disk's owner that is there is named after this time, and a new attempt made after the next pause.
  static constexpr uint64_t kAcquireTimeoutNs = 250 * kNsPerMs;
  static constexpr uint64_t kRetryMinNs = 10 * kNsPerMs;
  static constexpr uint64_t kRetryMaxNs = 500 * kNsPerMs;

  // All outlive it. `on_change` is called after each change of pending_reason().
  DiskOwnership(ControllerContext& context, const ControllerSpec& spec,
                const std::vector<std::unique_ptr<Target>>& targets, std::function<void()> on_change);
  ~DiskOwnership() override;  // closed, or never used
  void SetGuestDevice(GuestDevice& device) { guest_device_ = &device; }

  bool owned() const override;
  void AcquireAsync(std::function<void()> on_owned) override;
  void CancelAcquire() override;
  void HandOff() override;
  std::string pending_reason() const override;

  // A disk was acquired that an engine before was giving to another host (AttachedDisk::Acquire): that goes on, unless rings want it.
  void GoOnReleasing() { Kick(); }
  // Rings run, or want to: a disk that comes now has to be acquired before the guest sees it.
  bool wanted() const { return wanted_; }
  // Returns when nothing is being acquired or released any more. No front end is left, and every target's mutex is held.
  Task<void> Close();

 private:
  using DiskTask = Task<Status> (DiskOwnership::*)(Target&);

  void Kick();
  Task<void> Run();
  // Of all disks that wait for their owner, each under its target's mutex.
  Task<Status> ForEachPending(DiskTask task);
  Task<Status> AcquireOne(Target& target);
  Task<Status> ReleaseOne(Target& target);
  Task<Status> ReleaseUnlessWanted(Target& target);
  Task<void> AcquireAll();
  Task<void> Pause();
  void TakeAll();
  bool AnyInVain() const;
  void SetState(AttachedDisk& disk, AttachmentState state, const char* message);

  ControllerContext& context_;
  const ControllerSpec& spec_;
  const std::vector<std::unique_ptr<Target>>& targets_;
  const std::function<void()> on_change_;
  GuestDevice* guest_device_ = nullptr;
  std::function<void()> on_owned_;
  bool wanted_ = false;
  bool running_ = false;  // Run
  bool waiting_ = false;  // for on_owned_
  Event idle_;
  CancelToken* pause_ = nullptr;  // Run's, between two attempts
  CancelToken closing_;
  std::string failure_;  // of the last attempt
  uint64_t retry_ns_ = kRetryMinNs;
};

}  // namespace cleat::engine
