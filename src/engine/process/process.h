// SPDX-License-Identifier: Apache-2.0
// All that a cleat-engine is made of, and its life from the start to the end of its draining.
#pragma once

#include "base/result.h"
#include "engine/process/settings.h"

namespace cleat::engine {

// Serves until it is told to end (termination.h) and has drained; the calling thread is the control reactor's. An error
// when it can't begin. Before: the log, the secrets' arena, the limit of descriptors, block::MemoryGuard, and signals
// blocked (Termination::BlockSignals). May leave the process instead of returning, when threads are stuck in Ceph.
Status Serve(const Settings& settings);

}  // namespace cleat::engine
