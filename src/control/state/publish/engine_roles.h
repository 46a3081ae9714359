// SPDX-License-Identifier: Apache-2.0
// Which engine is for which controllers: its own one, one that stands by for that, one to which it is being moved; and whether an engine's
// lists of paths let it. Questions about the tables, under the state's mutex.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "control/paths/path_policy.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"

namespace cleat::control {

class EngineRoles {
 public:
  // Both outlive it. `paths`: which paths callers may name, as it is at each question.
  EngineRoles(const Tables& tables, const PathPolicy* const& paths) : tables_(tables), paths_(paths) {}

  // Whether it stands by for another engine, with or without controllers of its own.
  bool StandsBy(const std::string& engine) const CLEAT_REQUIRES(holds_state);
  // Whether it does nothing else, so that no new controllers are placed on it.
  bool OnlyStandsBy(const std::string& engine) const CLEAT_REQUIRES(holds_state);
  // The engine that has that one's controllers standing by: the first that answers, or the first; empty when there is none.
  std::string StandbyOf(const std::string& principal) const CLEAT_REQUIRES(holds_state);
  // The engines on which the controller is to stand by.
  std::set<std::string> PreparedOn(const ControllerEntry& entry) const CLEAT_REQUIRES(holds_state);
  // Whether the controller is that engine's, or is to stand by there.
  bool IsFor(const ControllerEntry& entry, const std::string& engine) const CLEAT_REQUIRES(holds_state);

  // Paths of the controller and of its disks that we list and the engine does not, for people: "file '/srv/a' of disks/a".
  std::vector<std::string> ExcludedOn(const std::string& engine, const ControllerEntry& entry) const
      CLEAT_REQUIRES(holds_state);
  // For people: how the engine's lists differ from ours, and what it does not stand by for because of that. Empty when they are the same.
  std::string PathNote(const EngineEntry& entry) const CLEAT_REQUIRES(holds_state);
  // The first of such paths, and how many there are.
  static std::string Shown(const std::vector<std::string>& excluded);

 private:
  const Tables& tables_;
  const PathPolicy* const& paths_;
};

}  // namespace cleat::control
