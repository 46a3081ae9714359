// SPDX-License-Identifier: Apache-2.0
// After an engine's death: the engines that have its controllers standing by take them, side by side, and the store is written once for
// all. The reconciler owns the TakeOverCoordinator. On the link's thread.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/status_reporter.h"
#include "control/reconcile/moves/move_coordinator.h"
#include "control/reconcile/moves/upgrade_coordinator.h"

namespace cleat::control {

// The taking of a dead engine's controllers.
struct TakeOver {
  uint64_t deadline_ns = 0;    // from then on they are attached the ordinary way
  uint64_t not_before_ns = 0;  // the store is not tried again
  std::set<std::string> waiting;
  std::set<std::string> taken;
  uint32_t late = 0;           // so many were stored without having been taken
  std::vector<Placement> all;  // that are not stored yet
  v1::UpgradeStatus status;

  bool IsDue(uint64_t read_until_ns) const { return waiting.empty() || read_until_ns >= deadline_ns; }
};

// An engine that might take a controller of a dead one.
struct Standby {
  std::string engine;      // empty: none
  bool answers = false;    // it is connected, and not NOT_ANSWERING
  bool may_serve = false;  // it was asked to take the controller, and may have it
  bool by_move =
      false;  // it was prepared for a move or an upgrade, and not because it stands by for the dead one
};
bool MayTakeOver(const ControllerIntent& intent, const Standby& standby);

class TakeOverCoordinator {
 public:
  TakeOverCoordinator(const ReconcileContext& context, StatusReporter& reporter, MoveCoordinator& moves,
                      UpgradeCoordinator& upgrades)
      : context_(context), reporter_(reporter), moves_(moves), upgrades_(upgrades) {}

  // The engine has died. May be called while the controllers of an earlier process of that name are still being taken, and again when a
  // standby can take what it could not.
  void Begin(const std::string& engine);
  void OnTakenOver(const std::string& controller, const Move& move, bool taken);
  // Stores the take-overs that are complete, or whose time is over.
  void ReconcileAll();
  uint64_t next_ns() const;  // when it wants to be called again

 private:
  // Which engine takes which of the dead engine's controllers, of those that no engine was asked to take yet.
  std::vector<Placement> StandbysOf(const std::string& engine);
  bool IsBegun(const std::string& engine, const std::string& controller) const;
  // Whether the engine is connected and does not answer.
  bool IsSilent(const std::string& engine) const;
  // Says that the dead engine's standby is one that does not answer, if controllers wait for that.
  void LogIfSilent(const std::string& engine) const;
  // What a silent standby was asked to take and may serve: its answer or its end says whether it does.
  std::vector<Placement> UndecidedOf(const TakeOver& take_over) const;
  void Commit(const std::string& engine);
  // All but the undecided are stored, and those say why they wait.
  void PutOff(const std::string& engine, TakeOver& take_over, std::vector<Placement> undecided);
  void EndMoves(const std::vector<Placement>& placements);
  void ReportDone(const std::string& engine, const TakeOver& take_over);
  // Shown as the engine's upgrade, unless an upgrade away from it is running.
  void Report(const std::string& engine, const v1::UpgradeStatus& status);

  const ReconcileContext& context_;
  StatusReporter& reporter_;
  MoveCoordinator& moves_;
  UpgradeCoordinator& upgrades_;
  std::map<std::string, TakeOver> take_overs_;  // by the dead engine
};

}  // namespace cleat::control
