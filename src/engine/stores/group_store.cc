// SPDX-License-Identifier: Apache-2.0
#include "engine/stores/group_store.h"

#include <utility>

namespace cleat::engine {

Status GroupStore::UseMemory(UniqueFd memory) {
  if (!memory.valid()) return Error(ErrorCode::kInvalidArgument, "sharing groups: no memory came with it");
  return groups_.UseTable(std::move(memory));
}

Status GroupStore::Put(const GroupSpec& spec) {
  Status put = groups_.Put({spec.name, spec.slot, spec.limits.limits});
  if (put) revisions_[spec.name] = spec.limits.revision;
  return put;
}

Status GroupStore::Drop(const std::string& name) {
  Status dropped = groups_.Drop(name);
  if (dropped) revisions_.erase(name);
  return dropped;
}

std::vector<GroupSpec> GroupStore::Report() const {
  std::vector<GroupSpec> report;
  for (const qos::GroupSpec& group : groups_.Report()) {
    report.push_back({group.name, group.slot, {group.limits, revisions_.at(group.name)}});
  }
  return report;
}

}  // namespace cleat::engine
