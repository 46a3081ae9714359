// SPDX-License-Identifier: Apache-2.0
// Engines: what they say of themselves, how many controllers they have, and which one a new controller gets. Any thread; what needs the
// state's mutex says so.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/publish/state_core.h"
#include "control/state/settings/cluster_faults.h"
#include "control/state/writes/row_under_way.h"

namespace cleat::control {

// Among the names of a write: to place controllers needs it, and what changes which engines may be chosen changes it.
inline constexpr char kPlacing[] = "placing of controllers";

class Engines {
 public:
  // Both outlive it.
  Engines(StateCore& core, ClusterFaults& cluster_faults) : core_(core), cluster_faults_(cluster_faults) {}

  // All that rows name have not connected yet.
  void SetUnseen() CLEAT_REQUIRES(holds_state);

  // ---- The API
  Result<v1::Engine> Get(const v1::GetEngineRequest& request);
  Result<v1::ListEnginesResponse> List(const v1::ListEnginesRequest& request);

  // ---- For controllers
  // The engine with the fewest controllers of those that take new ones; empty when there is none.
  std::string Choose() const CLEAT_REQUIRES(holds_state);
  // Whether a controller may be made on the engine that its spec names.
  Status CheckChosen(const std::string& controller, const v1::ControllerSpec& spec) const
      CLEAT_REQUIRES(holds_state);
  // The engine has so many more controllers.
  void Count(const std::string& engine, int difference) CLEAT_REQUIRES(holds_state);
  // Holds a place for one that is being written and may come to nothing: Choose counts it, nobody sees it.
  RowUnderWay HoldPlace(const std::string& engine) CLEAT_REQUIRES(holds_state);

  // ---- The reconciler's questions and reports
  // The engine that has that one's controllers standing by; empty when there is none.
  std::string StandbyFor(const std::string& engine);
  // The paths of a controller and its disks that the engine's lists exclude, for people; empty when there are none.
  std::string ExcludedFrom(const std::string& engine, const std::string& controller);
  // How the engine's lists differ from ours; empty when they don't, or it did not say.
  std::string PathDifferenceOf(const std::string& engine);
  void Report(const std::string& id, const v1::EngineStatus& status);  // `controllers` is filled in here
  // The engine's own lists of paths, as it said. Kept when it can't be read.
  void ReportPaths(const std::string& engine, const std::string& text);
  // Our lists were read again: engines are to do the same.
  void PathsChanged();

 private:
  void SetStatus(EngineEntry& entry, const v1::EngineStatus& status) CLEAT_REQUIRES(holds_state);
  // What is shown of them has changed with the engine's state.
  void PublishControllersOf(const EngineEntry& engine) CLEAT_REQUIRES(holds_state);
  uint32_t ControllersOn(const EngineEntry& entry) const CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  ClusterFaults& cluster_faults_;
  std::map<std::string, size_t> placing_
      CLEAT_GUARDED_BY(holds_state);  // by engine: rows under way, of controllers
};

}  // namespace cleat::control
