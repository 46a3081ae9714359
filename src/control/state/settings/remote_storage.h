// SPDX-License-Identifier: Apache-2.0
// Where disks are whose storage is beyond this host: in a Ceph cluster, or in an NVMe-oF subsystem. Each such disk names an object of one of
// the two kinds, which lists it and stays as long as it is there. Under the state's mutex.
#pragma once

#include <string>

#include "base/result.h"
#include "control/model/model.h"
#include "control/state/settings/clusters.h"
#include "control/state/settings/subsystems.h"

namespace cleat::control {

class RemoteStorage {
 public:
  // Both outlive it.
  RemoteStorage(Clusters& clusters, Subsystems& subsystems) : clusters_(clusters), subsystems_(subsystems) {}

  // A stored disk is put where its spec says; an error when that is not there.
  Status Fill(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  // Whether what the disk's spec names is there.
  Status Check(const std::string& disk_id, const v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  // Puts a disk where its spec says, or takes it out.
  void Join(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  void Leave(const DiskRow& row) CLEAT_REQUIRES(holds_state);

 private:
  Clusters& clusters_;
  Subsystems& subsystems_;
};

}  // namespace cleat::control
