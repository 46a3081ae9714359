// SPDX-License-Identifier: Apache-2.0
// What a process asks of the kernel's scheduler: which cores its threads may have, and how long they hold one.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace cleat {

// The cores that this process may use, without `taken`.
std::vector<uint32_t> CpusBeside(const std::vector<uint32_t>& taken);

// This thread, and all that it starts from now on, stay on these cores; anywhere, if there are none.
Status StayOn(const std::vector<uint32_t>& cpus);

// What the daemons ask for. In an upgrade two engines' reactors share each core, and each step of each controller's move goes to
// and fro between them, cleatd and a few threads: with the kernel's own 3 ms each of them waits that long for a turn.
constexpr uint64_t kShortTurnNs = 100'000;

// This thread, and all that it starts from now on, hold a core for that long (0.1 to 100 ms) before another one that is ready gets
// it, and so get it sooner themselves: sched_runtime of sched_setattr(2), which Linux takes for ordinary threads since 6.12 and
// ignored before. Their part of the core stays the same. kPermissionDenied: by a filter of system calls.
Status HoldCoresFor(uint64_t ns);

}  // namespace cleat
