// SPDX-License-Identifier: Apache-2.0
// What a change of rows means for the host's objects, as audit records have it: of each object what callers can set of it, before and after.
// Made of the rows themselves where they are written, so that no call can forget one. Rows that differ only in what cleatd keeps for
// itself (revisions, who holds a memory) are no change.
//
// Of a key is said only that it was set or changed. An object whose deletion waits for its engine is `{"deleting":true}`; a deleted disk
// that is kept has `"deleted":true` and its uid.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/model/change_recorder.h"
#include "control/model/model.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"
#include "control/store/store_change.h"

namespace cleat::control {

// What becomes of the tables' objects with that change. `store_number`: Store::number().
ObjectChanges ChangesOf(const Tables& tables, uint64_t store_number, const StoreChange& change)
    CLEAT_REQUIRES(holds_state);

// What becomes of all objects when one store takes the place of another.
struct RowsOfStore {
  const Rows& rows;
  uint64_t number;
};
ObjectChanges ChangesBetween(RowsOfStore before, RowsOfStore after);

// The full names of the objects whose rows are put or erased; but for kept disks that go.
std::vector<std::string> ObjectsOf(const StoreChange& change);

}  // namespace cleat::control
