// SPDX-License-Identifier: Apache-2.0
// The decision what to do next about a controller in one engine: a pure function of what should be, what is, and the time.
// ControllerReconciler executes the decision.
#pragma once

#include <cstdint>
#include <vector>

#include "control/model/intent.h"
#include "control/reconcile/engines/engine_view.h"
#include "control/state/disks/memfd_keeper.h"

namespace cleat::control {

// The next thing to do about a controller. Steps that concern only what cleatd stores (kForget...) are done at
// once, the others are requests to the engine.
struct Step {
  enum class Kind : uint8_t {
    kForgetAttachment,  // intent
    kForgetController,
    kDetach,  // target
    kDeleteController,
    kWaitForGroup,  // which has to be there first
    kPutController,
    kServeController,  // its disks are there, as far as they can be
    kTakeController,   // the same, of one that stands by and is to be served
    kKeepMemory,       // intent
    kAttach,           // intent
    kWaitForDisk,      // intent: its content isn't there (yet)
    kWaitForCluster,   // intent: the engine does not know its cluster yet, or not as it is now
  };
  Kind kind;
  uint32_t target = 0;
  const AttachmentIntent* intent = nullptr;  // into the ControllerIntent that was given
  bool standby = false;                      // of kPutController
};

// Everything that can be done now, in the order in which it must be done: take away what should not be,
// forget what is gone, then put what is missing. Steps that wait for a back-off are left out.
//
// What the engine has is right when it has the intent's revision and has not failed.
std::vector<Step> PlanSteps(const ControllerIntent& intent, const EngineView& engine,
                            const ControllerView& view, const MemfdKeeper& memory, uint64_t now_ns);

}  // namespace cleat::control
