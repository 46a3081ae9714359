// SPDX-License-Identifier: Apache-2.0
// Controllers and their disks: compares what an engine should have of a controller with what it has (PlanSteps), and asks for the
// difference. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>

#include "cleat/engine/v1/engine.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/controller_requests.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/controllers/attachment_requests.h"
#include "control/reconcile/controllers/controller_plan.h"
#include "control/reconcile/controllers/unclaimed_controllers.h"
#include "control/reconcile/moves/move_coordinator.h"
#include "control/reconcile/moves/upgrade_recovery.h"
#include "control/state/disks/memfd_keeper.h"

namespace cleat::control {

class ControllerReconciler {
 public:
  // The other kinds that a controller depends on.
  struct Parts {
    const MemfdKeeper& memory;
    ControllerRequests& requests;
    AttachmentRequests& attachments;
    MoveCoordinator& moves;
    UpgradeRecovery& recovery;
    UnclaimedControllers& unclaimed;
  };
  ControllerReconciler(const ReconcileContext& context, const Parts& parts, Reconcile& reconcile)
      : context_(context), parts_(parts), reconcile_(reconcile) {}

  // The caller reconciles the controller's move afterwards.
  void ReconcileOn(EngineView& engine, const std::string& controller);
  // A controller may stand by with its own engine after a move was given up. Such a controller waits as long as another engine may serve
  // it (UpgradeRecovery::MayBeElsewhere), and that engine's death ends the wait.
  void ReconcileStandbys();

  // What waited for an engine to let it go that has ended is done, as far as no other one has it: the dead has nothing.
  void EndDeletionsOfDead(const std::string& controller);

  // Status events of the engine.
  void OnStatus(EngineView& engine, const engine::v1::ControllerStatus& status);
  void OnStatus(EngineView& engine, const engine::v1::AttachmentStatus& status);
  void OnGone(EngineView& engine, const std::string& name);
  void OnGone(EngineView& engine, const engine::v1::AttachmentKey& gone);

 private:
  // The id of the API call for which something is done about the object, the controller or one of its attachments; for the log.
  std::string RequestFor(const EngineView& engine, const std::string& object,
                         const std::string& controller) const;
  void RecordNextDisk(const EngineView& engine, const std::string& controller, ControllerIntent& intent);
  // Returns false when the rest of the steps must wait for this one.
  bool Execute(EngineView& engine, const std::string& controller, ControllerView& view,
               const ControllerIntent& intent, const Step& step);
  void ForgetAttachment(const EngineView& engine, ControllerView& view, const std::string& controller,
                        const Step& step);
  void ForgetController(EngineView& engine, const std::string& controller);
  void WaitForCluster(EngineView& engine, const ControllerView& view, const std::string& controller,
                      const Step& step);
  void WaitForDisk(const EngineView& engine, const std::string& controller, const Step& step);
  void AttachOrWait(EngineView& engine, const std::string& controller, const Step& step);
  void AskPut(EngineView& engine, const std::string& controller, const ControllerIntent& intent,
              bool standby);
  void OnPut(EngineView& engine, ControllerView& view, const std::string& controller,
             const engine::v1::Controller& put, bool standby);
  // An export is nothing for an engine of before. `why`: as what follows the engine's name.
  void RefuseExport(EngineView& engine, const std::string& controller, const std::string& why);
  void AskServe(EngineView& engine, const std::string& controller);
  void AskDelete(EngineView& engine, const std::string& controller);
  void OnDeleted(EngineView& engine, ControllerView& view);
  void OnNotDeleted(EngineView& engine, ControllerView& view, const std::string& controller,
                    const Status& why);

  const ReconcileContext& context_;
  const Parts parts_;
  Reconcile& reconcile_;
};

}  // namespace cleat::control
