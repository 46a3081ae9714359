// SPDX-License-Identifier: Apache-2.0
// Finds out which engine has a controller after cleatd, or an engine, was restarted in the middle of an upgrade. An engine that serves a
// controller has it, whatever its row says: cleatd may have ended before the store was written. And as long as another engine may have
// the controller, the engine that its row names is not asked to serve it. The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <string>

#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/reconcile/context/context.h"
#include "control/reconcile/context/status_reporter.h"

namespace cleat::control {

// Whether the engine serves a controller that is another engine's by its row, just as the intent has it.
bool MayAdopt(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view);
// Whether another engine than its own serves the controller, or may be about to.
bool IsServedElsewhere(const ConnectedEngines& engines, const EngineView& engine,
                       const std::string& controller);

class UpgradeRecovery {
 public:
  UpgradeRecovery(const ReconcileContext& context, StatusReporter& reporter)
      : context_(context),
        reporter_(reporter),
        started_ns_(context.now_ns()),
        started_revision_(context.state.NewestRevision()) {}

  // Makes a controller that the engine serves that engine's. Returns true when nothing else is to be done about it now.
  bool Adopt(EngineView& engine, const std::string& controller, const ControllerView& view,
             const ControllerIntent& intent);
  // Whether another engine than the controller's own has it, or may have.
  bool MayBeElsewhere(const EngineView& engine, const ControllerRow& row, const ControllerView& view);
  // The engine has said what it has, and is awaited no more.
  void OnEngine(const std::string& engine) { context_.state.upgrades().EndRecovery(engine); }
  // Ends the wait for the others when its time is over.
  void OnTimer();

 private:
  uint64_t until_ns() const { return started_ns_ + context_.options.recovery_ns; }

  const ReconcileContext& context_;
  StatusReporter& reporter_;
  const uint64_t started_ns_;
  const uint64_t started_revision_;  // what is younger was made under this cleatd
  bool over_ = false;
};

}  // namespace cleat::control
