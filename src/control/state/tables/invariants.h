// SPDX-License-Identifier: Apache-2.0
// What the tables say of one another, written down once. Checked when the store was loaded, and in tests after each change.
#pragma once

#include "base/result.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"

namespace cleat::control {

//   a disk's cluster is there and lists it, and lists no disk that is not its own;
//   a disk's subsystem is there and lists it, and lists no other; no two subsystems have the same NQN;
//   a disk's pool is there and lists it, and lists no other, and no extent is two disks', or a disk's and free, or to be erased;
//   a controller's group is there and lists it, and lists no other; no two groups have the same slot;
//   an attachment's disk is there and knows of it, detaching or not, and knows of no other;
//   no two attachments of a controller have the same target;
//   an engine counts the controllers that are its own;
//   a running upgrade's engine is known.
// An error names the first resource of which that is not so.
Status CheckTables(const Tables& tables) CLEAT_REQUIRES(holds_state);

}  // namespace cleat::control
