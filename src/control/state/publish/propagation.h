// SPDX-License-Identifier: Apache-2.0
// What of a resource's spec has not reached its engines or guests yet. Questions about the tables, under the state's mutex.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "control/state/publish/engine_roles.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"

namespace cleat::control {

class Propagation {
 public:
  // Both outlive it.
  Propagation(const Tables& tables, const EngineRoles& roles) : tables_(tables), roles_(roles) {}

  // The size that all guests of the disk know.
  uint64_t KnownSize(const DiskEntry& entry) const CLEAT_REQUIRES(holds_state);
  // The attachment whose engine does not know the present limits, or on_no_space, which goes along with them; empty when there is none.
  std::string BehindLimits(const DiskEntry& entry) const CLEAT_REQUIRES(holds_state);
  // Which engines don't know the group's present limits, or the cluster's present spec, for people; empty when all do.
  std::string BehindLimits(const GroupEntry& entry) const CLEAT_REQUIRES(holds_state);
  std::string BehindSpec(const ClusterEntry& entry) const CLEAT_REQUIRES(holds_state);
  // The engines on which the cluster's disks are attached, or are to be; or are to stand by as well.
  enum class Which { kServing, kStandingByToo };
  std::set<std::string> EnginesOf(const ClusterEntry& entry, Which which) const CLEAT_REQUIRES(holds_state);

 private:
  const Tables& tables_;
  const EngineRoles& roles_;
};

}  // namespace cleat::control
