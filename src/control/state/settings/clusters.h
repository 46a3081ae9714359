// SPDX-License-Identifier: Apache-2.0
// Ceph clusters. cleatd never speaks to one: it keeps how they are reached, and tells the engines that have disks of them. Any thread; what
// needs the state's mutex says so.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class Clusters {
 public:
  // Both outlive it.
  Clusters(StateCore& core, const SpecKeys& keys) : core_(core), keys_(keys) {}

  void Fill(std::vector<ClusterRow> rows) CLEAT_REQUIRES(holds_state);  // from the store

  // ---- The API
  Result<v1::Cluster> Create(const v1::CreateClusterRequest& request);
  Result<v1::Cluster> Get(const v1::GetClusterRequest& request);
  Result<v1::ListClustersResponse> List(const v1::ListClustersRequest& request);
  Result<v1::Cluster> Update(const v1::UpdateClusterRequest& request);
  Result<v1::DeleteClusterResponse> Delete(const v1::DeleteClusterRequest& request);
  // How each does, by id.
  std::map<std::string, v1::ClusterState> States();
  // For ApplyHost: whether the spec has no key, or the cluster's own.
  Result<bool> IsSameKey(const std::string& id, const v1::ClusterSpec& spec);
  // As DiskKeys', but that engines hear of it, so that they never need the older key-encryption key for a disk that is still to come.
  Status RewrapKeys();

  // ---- For disks
  // Whether the cluster that the disk's spec names is there.
  Status CheckClusterOf(const std::string& disk_id, const v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  // A stored disk's: an error when the cluster that its spec names is not there.
  Status Fill(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  // Puts a disk into the cluster that its spec names, or takes it out.
  void Join(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  void Leave(const DiskRow& row) CLEAT_REQUIRES(holds_state);

  // ---- The reconciler's questions and reports
  std::optional<ClusterRow> Row(const std::string& id);
  // Whether a disk of the cluster is attached on that engine, or is to be.
  bool IsUsedOn(const std::string& engine, const std::string& id);
  std::vector<std::string> On(const std::string& engine);
  std::vector<std::string> Controllers(const std::string& id);
  // No report: that engine does not have it.
  void Report(const std::string& engine, const std::string& id, const std::optional<ClusterReport>& report);

 private:
  // Whether callers may name its conf file.
  Status CheckConfFile(const std::string& name, const v1::ClusterSpec& spec) const
      CLEAT_EXCLUDES(holds_state);
  // The cluster that is there already, as it is asked for; nullptr when there is none.
  Result<const ClusterEntry*> CheckExisting(const std::string& id, const v1::ClusterSpec& spec,
                                            const std::optional<keys::Secret>& key) const
      CLEAT_REQUIRES(holds_state);
  Status RewrapKey(const std::string& id) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  const SpecKeys& keys_;
};

}  // namespace cleat::control
