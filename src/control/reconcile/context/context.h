// SPDX-License-Identifier: Apache-2.0
// The objects that all reconcilers are constructed with. The reconciler owns it, and everything in it outlives them. On the link's thread.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "control/reconcile/context/reconciler_options.h"
#include "control/reconcile/engines/connected_engines.h"
#include "control/reconcile/engines/engine_requests.h"
#include "control/reconcile/engines/pending_requests.h"
#include "control/state/host_state.h"

namespace cleat::control {

struct ReconcileContext {
  HostState& state;
  const Clock& clock;
  const ReconcilerOptions& options;
  ConnectedEngines& engines;
  EngineRequests& requests;
  RetryQueue& retries;
  // As the last OnTimer said. Deadlines of answers are compared with this time, pauses with the clock.
  uint64_t read_until_ns = 0;

  uint64_t now_ns() const { return clock.NowNs(); }
  // The id of the API call that changed the object last, for the lines about it; empty: not known.
  std::string LastRequest(const std::string& object) const { return state.last_requests().Of(object); }
  // Whether the store was restored from a backup, so that engines may have what it knows nothing of.
  bool IsRestored() const { return !state.lost().empty(); }
};

}  // namespace cleat::control
