// SPDX-License-Identifier: Apache-2.0
// The gate before a blk controller's rings when another disk is attached to it than its guest had before. The device does not change for the
// guest: what its driver has under way and its page cache are the first disk's, and would be written to the second. So the second
// disk is served only when the driver has forgotten the first, and the connection shows that: no ring begins in the middle, and no
// in-flight region comes along that was ever used (QEMU lets go of it when the guest resets the device). A stop, a pause, a closed
// connection or a dead engine are no proof.
//
//   attached --rings want to start--> same disk as the last, or none before ----------------> may start
//                                     another one, forgotten --cleatd has noted this one-----> may start
//                                     another one, not forgotten ------------------------------ waits; the status says for what
//
// Where the in-flight region says whose requests it has, that is believed before cleatd's word: it is as new as the last request. cleatd
// notes the disk before its first request, so that whatever dies in between, one of the two knows. The VM of an incoming attachment
// has been elsewhere, and its rings begin where they were there: it is proof enough when its QEMU has a region that was never used.
//
// A DiskOwnership stands behind it, which hears of the rings when they may start. Belongs to the guest device, made for one
// disk. On the control reactor.
#pragma once

#include <functional>
#include <string>

#include "engine/protocol/spec.h"
#include "vhost/ownership.h"

namespace cleat::engine {

class SwapGuard final : public vhost::Ownership {
 public:
  // All outlive it. `on_change` is called after each change of pending_reason() and next_disk().
  SwapGuard(const ControllerSpec& controller, const AttachmentSpec& attachment, vhost::Ownership& behind,
            std::function<void()> on_change);

  // ControllerSpec::last_disk is another one now.
  void LastDiskChanged();
  // That cleatd is to note as the last one; not known: nothing is to be noted.
  DiskIdentity next_disk() const;

  void Learn(const vhost::DriverMemory& memory) override;
  bool owned() const override { return allowed() && behind_.owned(); }
  void AcquireAsync(std::function<void()> on_owned) override;
  void CancelAcquire() override;
  void HandOff() override;
  std::string pending_reason() const override;

 private:
  bool is_last() const { return !controller_.last_disk.known() || controller_.last_disk == disk_.identity; }
  bool forgotten() const;
  bool allowed() const;
  void AcquireBehind();
  void Forget();

  const ControllerSpec& controller_;
  const DiskSpec& disk_;
  const bool incoming_;
  vhost::Ownership& behind_;
  const std::function<void()> on_change_;
  vhost::DriverMemory memory_;
  // Another disk was the last one when these rings came, or those of a connection before that took its proof back: each ring has to
  // show that it is forgotten.
  bool swaps_ = false;
  std::function<void()> on_owned_;  // since AcquireAsync
  bool acquiring_behind_ = false;
};

}  // namespace cleat::engine
