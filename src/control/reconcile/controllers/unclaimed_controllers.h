// SPDX-License-Identifier: Apache-2.0
// Keeps the set of unclaimed controllers of each engine (unclaimed.h), reports them, and lets nobody else have their disks. Without a
// restored store there are none. The reconciler owns it. On the link's thread.
#pragma once

#include <string>

#include "cleat/engine/v1/engine.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/reconcile.h"
#include "control/reconcile/context/status_reporter.h"

namespace cleat::control {

class UnclaimedControllers {
 public:
  UnclaimedControllers(const ReconcileContext& context, StatusReporter& reporter, Reconcile& reconcile)
      : context_(context), reporter_(reporter), reconcile_(reconcile) {}

  // Called for every engine that says what it has, foreign ones too: a store that is restored may be theirs.
  void ReportHeld(const std::string& engine, const engine::v1::Inventory& inventory);
  // Returns true when the controller is unclaimed in that engine, so that nothing may be done about it.
  bool LeaveAlone(EngineView& engine, const std::string& controller, const ControllerIntent& intent);
  // Returns true when an unclaimed controller has the disk, so that the attachment has to wait.
  bool MakeWait(const EngineView& engine, const std::string& controller, const AttachmentIntent& intent);
  // The engine has let go of the disk: others may have waited for it, and the engine may not need the cluster any more.
  void OnReleased(EngineView& engine, const std::string& disk);
  // The engine is connected no more: the locks of the disks decide from here on.
  void OnEngineGone(const EngineView& engine);

 private:
  void SetUnclaimed(EngineView& engine, const std::string& controller, bool unclaimed);
  void ReportUnclaimed(const EngineView& engine, const std::string& controller, const ControllerView& view,
                       const ControllerIntent& intent);
  // Reports the controllers that the store does not know: only their engine can say that they are there.
  void ReportUnknownTo(const EngineView& engine);

  const ReconcileContext& context_;
  StatusReporter& reporter_;
  Reconcile& reconcile_;
};

}  // namespace cleat::control
