// SPDX-License-Identifier: Apache-2.0
// The inventory, in which an engine tells at its hello what it has: pure functions of that message.
#pragma once

#include <cstdint>

#include "cleat/engine/v1/engine.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/engines/engine_view.h"

namespace cleat::control {

// Whether the engine has something from another store. Revisions rise for ever, over restarts too, so that one that was not handed out yet
// is such a thing. Tearing down what another store's owner put there would take running guests' disks away.
bool IsForeign(const engine::v1::Inventory& inventory, uint64_t newest_revision);

HeldByEngine HeldIn(const engine::v1::Inventory& inventory);

// Things whose names can't be resource names are left out.
void FillView(const engine::v1::Inventory& inventory, EngineView& engine);

}  // namespace cleat::control
