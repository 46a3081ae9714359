// SPDX-License-Identifier: Apache-2.0
// What an engine tells at its hello: pure functions of that message.
#pragma once

#include <cstdint>

#include "cleat/engine/v1/engine.pb.h"
#include "control/intent.h"
#include "control/reconcile/engine_view.h"

namespace cleat::control {

// Revisions rise for ever, over restarts too: one that was not handed out yet comes from another store.
// Tearing down what another store's owner put there would take running guests' disks away.
bool IsForeign(const engine::v1::Inventory& inventory, uint64_t newest_revision);

HeldByEngine HeldIn(const engine::v1::Inventory& inventory);

// What has a name that can't be one of ours is left out.
void FillView(const engine::v1::Inventory& inventory, EngineView& engine);

}  // namespace cleat::control
