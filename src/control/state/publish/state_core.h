// SPDX-License-Identifier: Apache-2.0
// What all kinds of resources share: the mutex, the store, the tables, and how a change is written and published. HostState owns it.
#pragma once

#include <cstdint>

#include "control/paths/path_policy.h"
#include "control/state/publish/api_view.h"
#include "control/state/publish/engine_roles.h"
#include "control/state/publish/propagation.h"
#include "control/state/publish/publisher.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"
#include "control/state/writes/store_writes.h"
#include "control/store/store.h"

namespace cleat::control {

struct StateCore {
  // `store` outlives it.
  StateCore(Store& its_store, size_t watch_queue_max)
      : store(its_store),
        publisher(its_store, tables, view, watch_queue_max),
        writes(its_store, mutex, tables) {}

  Store& store;
  StateMutex mutex;
  const PathPolicy all_paths = {};
  const PathPolicy* paths = &all_paths;  // which paths callers may name. Set once, before the first request
  Tables tables CLEAT_GUARDED_BY(holds_state);
  EngineRoles roles{tables, paths};
  Propagation propagation{tables, roles};
  ApiView view{tables, roles, propagation, paths, store.number()};
  Publisher publisher;
  StoreWrites writes;
};

}  // namespace cleat::control
