// SPDX-License-Identifier: Apache-2.0
// Has engines ask discovery services what callers want to know (state/discovery/discoveries.h). The reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "control/reconcile/context/context.h"
#include "control/state/discovery/discoveries.h"

namespace cleat::control {

class DiscoveryRequests {
 public:
  explicit DiscoveryRequests(const ReconcileContext& context) : context_(context) {}

  // All questions that nobody has been asked yet. Engines that ask for callers who have gone are told to end that.
  void AskAll();

 private:
  struct Asked {
    std::weak_ptr<const DiscoveryQuestion> question;  // gone: it was answered, or its engine has gone
    PeerId engine = 0;
    uint64_t request = 0;
  };
  void Ask(const std::shared_ptr<const DiscoveryQuestion>& question);
  void StopAbandoned();

  const ReconcileContext& context_;
  std::vector<Asked> asked_;
};

}  // namespace cleat::control
