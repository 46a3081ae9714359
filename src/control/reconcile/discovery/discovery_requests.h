// SPDX-License-Identifier: Apache-2.0
// Has engines ask discovery services what callers want to know (state/discovery/discoveries.h). The reconciler owns it. On the link's thread.
#pragma once

#include <memory>

#include "control/reconcile/context/context.h"
#include "control/state/discovery/discoveries.h"

namespace cleat::control {

class DiscoveryRequests {
 public:
  explicit DiscoveryRequests(const ReconcileContext& context) : context_(context) {}

  // All questions that nobody has been asked yet.
  void AskAll();

 private:
  void Ask(const std::shared_ptr<const DiscoveryQuestion>& question);

  const ReconcileContext& context_;
};

}  // namespace cleat::control
