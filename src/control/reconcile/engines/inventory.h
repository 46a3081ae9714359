// SPDX-License-Identifier: Apache-2.0
// The inventory, in which an engine tells at its hello what it has: pure functions of that message.
#pragma once

#include <cstdint>

#include "cleat/engine/v1/engine.pb.h"
#include "control/model/intent.h"
#include "control/reconcile/engines/engine_view.h"

namespace cleat::control {

// What this cleatd's store says of itself.
struct OwnStore {
  uint64_t newest_revision = 0;
  uint64_t number = 0;    // that disks' identities begin with
  bool restored = false;  // from a backup, which may be another store's: disks of that one are at home here
};

// Whether the engine has something from another store: a disk whose identity says so, or a revision that was not handed out yet, since
// revisions rise for ever, over restarts too. Tearing down what another store's owner put there would take running guests' disks away.
bool IsForeign(const engine::v1::Inventory& inventory, const OwnStore& own);

HeldByEngine HeldIn(const engine::v1::Inventory& inventory);

// Things whose names can't be resource names are left out.
void FillView(const engine::v1::Inventory& inventory, EngineView& engine);

}  // namespace cleat::control
