// SPDX-License-Identifier: Apache-2.0
// What a process has used, as the kernel counts it (proc(5)). Any thread; 0 of a process that is gone.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace cleat::bench {

// User and system time since its start; the kernel gives it in ticks of 10 ms.
uint64_t CpuNs(pid_t pid);
// Memory that would be free if the process ended: Private_Dirty of smaps_rollup.
uint64_t PrivateDirtyBytes(pid_t pid);

}  // namespace cleat::bench
