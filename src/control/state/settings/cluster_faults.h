// SPDX-License-Identifier: Apache-2.0
// Notices what is wrong with Ceph clusters: from what engines say of them (EngineStatus.ceph) and from how the storage of their
// attached disks does. An episode is kept in the cluster's entry, told to watchers, and logged when it begins and when it ends.
// cleatd itself never speaks to a cluster. Under the state's mutex.
#pragma once

#include <string>

#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class ClusterFaults {
 public:
  explicit ClusterFaults(StateCore& core) : core_(core) {}  // which outlives it

  // The engine's status has changed, from `before`.
  void OnEngine(const v1::EngineStatus& before, const v1::EngineStatus& now) CLEAT_REQUIRES(holds_state);
  // How the attachment's storage does; UNSPECIFIED: it is not open, or the attachment goes.
  void OnStorage(const AttachmentRow& row, v1::StorageState storage) CLEAT_REQUIRES(holds_state);
  // The attachment has another state: its disk may wait for its cluster, or wait no more.
  void OnAttachment(DiskEntry& disk) CLEAT_REQUIRES(holds_state);

 private:
  void Look(ClusterEntry& entry) CLEAT_REQUIRES(holds_state);
  void LookAt(const std::string& name) CLEAT_REQUIRES(holds_state);
  FaultEpisodes FaultsOf(const ClusterEntry& entry) const CLEAT_REQUIRES(holds_state);
  bool IsTold(const ClusterEntry& entry) const CLEAT_REQUIRES(holds_state);
  // What is shown of those that wait has changed with what they wait for.
  void PublishWaiting(const ClusterEntry& entry) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
};

}  // namespace cleat::control
