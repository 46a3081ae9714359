// SPDX-License-Identifier: Apache-2.0
// Has engines read their lists of paths again after cleatd's were changed. The reconciler owns it. On the link's thread.
#pragma once

#include "control/reconcile/context/context.h"

namespace cleat::control {

class PathListReconciler {
 public:
  explicit PathListReconciler(const ReconcileContext& context) : context_(context) {}

  // Engines of before lists of paths are not asked.
  void AskRead(EngineView& engine);
  void AskReadEverywhere();

 private:
  const ReconcileContext& context_;
};

}  // namespace cleat::control
