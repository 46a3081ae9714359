// SPDX-License-Identifier: Apache-2.0
// An upgrade: all controllers of an engine are prepared on another one, and then moved there one by one; a move that is held up
// does not hold up the next one. One upgrade at a time. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/moves/move_coordinator.h"

namespace cleat::control {

// Each controller that is still to be dealt with is in one of the sets.
struct Upgrade {
  UpgradeIntent intent;
  v1::UpgradeStatus status;
  std::set<std::string> waiting;
  std::set<std::string> preparing;
  std::set<std::string> prepared;
  std::set<std::string> moving;
  std::set<std::string> held_up;  // moving, for longer than a turn
  uint64_t longest_pause_ns = 0;
};

struct UpgradeStep {
  enum class Kind : uint8_t {
    kNothing,
    kPrepare,  // controller
    kMove,     // controller
    kGiveUp,   // the upgrade was cancelled: what was not moved yet stays
    kEnd,
  };
  Kind kind = Kind::kNothing;
  std::string controller = {};
};
// Decides what to do next. All controllers are prepared before the first one is moved, so that a guest waits for nothing but its own move.
struct UpgradeLimits {
  uint32_t preparing_max = 0;
  uint32_t moving_max = 0;  // beside those that are held up
  uint32_t held_up_max = 0;
};
UpgradeStep PlanUpgrade(const Upgrade& upgrade, const UpgradeLimits& limits);

// Notes in the status, which is for people, that a controller stays.
void AddFailure(v1::UpgradeStatus& status, const std::string& controller, const std::string& why);
v1::UpgradeState EndOf(const v1::UpgradeStatus& status);

class UpgradeCoordinator {
 public:
  UpgradeCoordinator(const ReconcileContext& context, MoveCoordinator& moves)
      : context_(context), moves_(moves) {}

  // An upgrade is to be done, or the running one was cancelled.
  void OnIntent(UpgradeIntent intent);
  // Called at the end of each round of the link's thread, when nothing that this calls is on the stack.
  void ReconcileUpgrade();

  void OnPrepared(const std::string& controller);
  void OnMoved(const std::string& controller, const Move& move, const Status& status);
  // The engine from which the controller was to be moved has died: its move goes on without that engine.
  void OnTakenOverFrom(const std::string& engine, const std::string& controller);

  // The upgrade away from that engine; null when there is none.
  const UpgradeIntent* RunningFrom(const std::string& engine) const;
  // Whether an engine was asked to let a controller go or to take it, and has not answered.
  bool GuestWaits() const;

 private:
  void Prepare(const std::string& controller);
  void MoveNow(const std::string& controller);
  void NoteHeldUp();
  void GiveUp();
  void End();
  void Report();

  const ReconcileContext& context_;
  MoveCoordinator& moves_;
  std::optional<Upgrade> upgrade_;
};

}  // namespace cleat::control
