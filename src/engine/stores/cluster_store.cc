// SPDX-License-Identifier: Apache-2.0
#include "engine/stores/cluster_store.h"

namespace cleat::engine {

Status ClusterStore::Put(const ClusterSpec& spec) {
  if (spec.name.empty()) return Error(ErrorCode::kInvalidArgument, "a cluster has no name");
  if (!clusters_.contains(spec.name) && clusters_.size() >= kClustersMax) {
    return Error(ErrorCode::kResourceExhausted, spec.name + ": this engine knows " +
                                                    std::to_string(kClustersMax) +
                                                    " clusters, which is the most: delete one");
  }
  clusters_[spec.name] = spec;
  return Ok{};
}

const ClusterSpec* ClusterStore::Find(const std::string& name) const {
  const auto found = clusters_.find(name);
  return found == clusters_.end() ? nullptr : &found->second;
}

std::vector<ClusterSpec> ClusterStore::Report() const {
  std::vector<ClusterSpec> report;
  for (const auto& [name, spec] : clusters_) report.push_back(spec);
  return report;
}

}  // namespace cleat::engine
