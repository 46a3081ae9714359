// SPDX-License-Identifier: Apache-2.0
// The groups that this engine has, as cleatd asked for them: qos::Groups, and the revision of each one's limits. Control
// reactor; owned by the process, outlives the engine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "engine/protocol/spec.h"
#include "qos/group.h"

namespace cleat::engine {

class GroupStore {
 public:
  explicit GroupStore(Reactor& control) : groups_(control) {}

  // The memory in which groups count from now on.
  Status UseMemory(UniqueFd memory);
  // kFailedPrecondition when it is there in another slot, or another group is in that slot; kInvalidArgument when its
  // limits are none that can be.
  Status Put(const GroupSpec& spec);
  // kFailedPrecondition while anybody holds it. OK too when there is none.
  Status Drop(const std::string& name);
  std::shared_ptr<qos::Group> Find(const std::string& name) const { return groups_.Find(name); }
  std::vector<GroupSpec> Report() const;

 private:
  qos::Groups groups_;
  std::map<std::string, uint64_t> revisions_;  // of the limits, by name
};

}  // namespace cleat::engine
