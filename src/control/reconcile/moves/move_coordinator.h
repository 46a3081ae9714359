// SPDX-License-Identifier: Apache-2.0
// Brings controllers from one engine to another (move.h). As all of the reconciler it is driven by levels: whatever happens, the
// move is looked at with what both engines are known to have, and goes on from there. The reconciler owns it. On the link's thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "control/observe/counters.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/controller_requests.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/context/status_reporter.h"
#include "control/reconcile/moves/move.h"

namespace cleat::control {

// Told what becomes of moves. The move may be gone when a call returns.
class MoveEvents {
 public:
  virtual ~MoveEvents() = default;
  virtual void OnPrepared(const std::string& controller) = 0;
  // `status`: OK, or why the controller stays. NOT_FOUND: nobody wants it to be moved any more.
  virtual void OnMoved(const std::string& controller, const Move& move, const Status& status) = 0;
  // `taken`: the engine that had the controller standing by has it, or need not have it any more. Otherwise that engine is lost as well.
  virtual void OnTakenOver(const std::string& controller, const Move& move, bool taken) = 0;
};

class MoveCoordinator {
 public:
  // All of them outlive it. Without `counters`, those of a controller begin anew when it was moved.
  MoveCoordinator(const ReconcileContext& context, ControllerRequests& requests, StatusReporter& reporter,
                  Reconcile& reconcile, MoveEvents& events, Counters* counters)
      : context_(context),
        requests_(requests),
        reporter_(reporter),
        reconcile_(reconcile),
        events_(events),
        counters_(counters) {}

  const Move* Find(const std::string& controller) const;
  bool Has(const std::string& controller) const { return moves_.contains(controller); }
  // Whether the controller's move forbids ordinary steps in that engine.
  bool Holds(const EngineView& engine, const std::string& controller) const;
  // Whether one of the controllers is between two engines.
  bool IsMoving(const std::vector<std::string>& controllers) const;
  bool MayServe(const std::string& controller);  // MayStillServe
  // Whether controllers of that engine, which has died, are being taken over.
  bool IsTakingOverFrom(const std::string& engine) const;

  void Begin(const std::string& controller, const UpgradeIntent& upgrade);
  // The controller is prepared, and it is its turn to be moved.
  void Settle(const std::string& controller);
  // `from` has died: the move goes on without it, or begins. The caller reconciles the move later.
  void TakeOver(const std::string& from, const Placement& standby);
  void NoteTakenOver(const std::string& controller);  // the move waits for End
  void End(const std::string& controller, const Status& status);
  void ReconcileMove(const std::string& controller);
  void ReconcileAll();

  // What an engine is given when it is asked to take a controller. Each may be missing.
  struct Given {
    std::optional<engine::v1::HandOver> hand_over = std::nullopt;
    UniqueFd counters = {};
    UniqueFd connections = {};
  };
  // Asks the engine, which has the controller standing by, to take it: a step of a move, or an ordinary step.
  void AskTake(EngineView& engine, const std::string& controller, Given given);

 private:
  MoveSides SidesOf(const Move& move) const;
  MoveStep Plan(const Move& move) const;
  void Execute(Move& move, const MoveStep& step);
  void Yield(Move& move);
  void Take(Move& move);
  void Commit(Move& move);
  void StoreCommit(Move& move);
  void TakeBack(Move& move, const std::string& why);
  void AskTakeBack(Move& move);
  void OnYielded(EngineView& from, const std::string& controller, const engine::v1::Reply& reply,
                 UniqueFd connections);
  void OnTakeAnswer(EngineView& engine, ControllerView& view, const std::string& controller,
                    const Status& status);
  void OnTaken(EngineView& engine, const std::string& controller, const Status& status);
  void ReportIfLate(Move& move, const Error& why);
  void WakeFor(Move& move);

  const ReconcileContext& context_;
  ControllerRequests& requests_;
  StatusReporter& reporter_;
  Reconcile& reconcile_;
  MoveEvents& events_;
  Counters* const counters_;
  std::map<std::string, Move> moves_;  // by controller
};

}  // namespace cleat::control
