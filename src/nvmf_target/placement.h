// SPDX-License-Identifier: Apache-2.0
// Which reactor a connection's I/O queue runs on: the one whose core the kernel has just processed the connection's packets on, so that what comes
// is in that core's cache and wakes nobody on another one. But for that, and never against the balance, reactors have queues in turn.
//
// Source: socket(7), SO_INCOMING_CPU. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cleat::nvmf_target {

inline constexpr int kAnyCpu = -1;

struct ReactorLoad {
  int cpu = kAnyCpu;  // that it is bound to; kAnyCpu: to none, or to several
  uint32_t queues = 0;
};

// So many queues more than the least loaded reactor the chosen one may have had.
inline constexpr uint32_t kImbalanceMax = 1;

// The index of the reactor. `incoming_cpu`: of the connection, kAnyCpu: not known. `in_turn`: whose turn it is.
size_t ChooseReactor(std::span<const ReactorLoad> reactors, int incoming_cpu, size_t in_turn);

}  // namespace cleat::nvmf_target
