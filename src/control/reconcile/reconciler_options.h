// SPDX-License-Identifier: Apache-2.0
// How patient the reconciler is. cleatd and tests choose it.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace cleat::control {

struct ReconcilerOptions {
  uint64_t retry_min_ns = 250 * kNsPerMs;
  uint64_t retry_max_ns = 30 * kNsPerSecond;
  // Moves: how long is waited for an engine that is to open what a controller has, as long as it gets nowhere; for the
  // answer of one that has to yield, after its time is over; of one that has to take.
  uint64_t prepare_ns = 30 * kNsPerSecond;
  uint64_t yield_grace_ns = 5 * kNsPerSecond;
  uint64_t take_ns = 30 * kNsPerSecond;
  // After an engine's death: from then on, what could not be taken is attached the ordinary way.
  uint64_t take_over_ns = 10 * kNsPerSecond;
  // After a restart of cleatd, how long the engine is waited for to which an upgrade was moving: it may have what the other
  // one is about to be asked for.
  uint64_t recovery_ns = 30 * kNsPerSecond;
  uint32_t preparing_max = 32;  // controllers that an upgrade has prepared at once
  uint32_t moving_max = 1;      // and that it moves at once
};

}  // namespace cleat::control
