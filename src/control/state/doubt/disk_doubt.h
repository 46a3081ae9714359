// SPDX-License-Identifier: Apache-2.0
// What of a disk over NVMe-oF is in doubt, and an operator's word that its targets are dead: read from the disk's log of doubt and written to
// it (nvme/host/doubt/doubt_log.h), which cleatd keeps as it keeps a memory disk's content. An engine that has the disk writes the log
// meanwhile, and looks for the word while anything is in doubt; without one the word waits for the disk to be attached.
//
// Any thread. Owned by the HostState.
#pragma once

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/disks/disks.h"
#include "control/state/disks/memfd_keeper.h"

namespace cleat::control {

class DiskDoubt {
 public:
  // Both outlive it.
  DiskDoubt(Disks& disks, const MemfdKeeper& memory) : disks_(disks), memory_(memory) {}

  // Says in the disk's status what is in doubt, where there is anything and the log is here.
  void AddTo(v1::Disk& disk) const;
  // The API's.
  Result<v1::Disk> ConfirmDead(const v1::ConfirmDeadRequest& request);

 private:
  Disks& disks_;
  const MemfdKeeper& memory_;
};

}  // namespace cleat::control
