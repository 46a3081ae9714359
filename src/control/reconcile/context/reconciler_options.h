// SPDX-License-Identifier: Apache-2.0
// Times and numbers of the reconciler: cleatd has the defaults, tests choose their own.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "control/reconcile/engines/heartbeat.h"

namespace cleat::control {

struct ReconcilerOptions {
  uint64_t retry_min_ns = 250 * kNsPerMs;
  uint64_t retry_max_ns = 30 * kNsPerSecond;
  // Moves: how long an engine that is to open a controller's disks may get nowhere; how long an engine that has to yield may not answer
  // after its drain time is over; and one that has to take.
  uint64_t prepare_ns = 30 * kNsPerSecond;
  uint64_t yield_grace_ns = 5 * kNsPerSecond;
  uint64_t take_ns = 30 * kNsPerSecond;
  // How long after an engine's death a controller that could not be taken is attached the ordinary way.
  uint64_t take_over_ns = 10 * kNsPerSecond;
  // How long after a restart of cleatd the engine is awaited to which an upgrade was moving controllers: it may serve those that the other
  // engine is about to be asked for.
  uint64_t recovery_ns = 30 * kNsPerSecond;
  HeartbeatTimes heartbeat = {};
  // A standby takes the controllers of an engine that has not answered for so long: the engine is killed. 0: never.
  uint64_t kill_after_ns = 0;
  uint32_t preparing_max = 32;  // controllers that an upgrade has prepared at once
  uint32_t moving_max = 1;      // and that it moves at once
  // A move that takes longer is held up by its storage, its guest or an engine, and holds up no other: the next one begins beside
  // it, unless so many are held up already.
  uint64_t turn_ns = 250 * kNsPerMs;
  uint32_t held_up_max = 32;
};

}  // namespace cleat::control
