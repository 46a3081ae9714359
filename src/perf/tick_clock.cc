// SPDX-License-Identifier: Apache-2.0
#include "perf/tick_clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cleat::perf {

TickClock::TickClock() {
#if defined(__x86_64__)
  constexpr uint64_t kMeasureNs = 10 * kNsPerMs;
  constexpr unsigned kPowerLeaf = 0x80000007;
  constexpr unsigned kInvariantTsc = 1U << 8;  // of edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(kPowerLeaf, &eax, &ebx, &ecx, &edx) == 0 || (edx & kInvariantTsc) == 0) return;
  const MonotonicClock clock;
  const uint64_t from_ns = clock.NowNs();
  const uint64_t from_ticks = __rdtsc();
  uint64_t to_ns = from_ns;
  while (to_ns < from_ns + kMeasureNs) to_ns = clock.NowNs();
  const uint64_t to_ticks = __rdtsc();
  if (to_ticks <= from_ticks) return;
  start_ns_ = to_ns;
  start_ticks_ = to_ticks;
  ns_per_tick_q32_ = static_cast<uint64_t>((Wide{to_ns - from_ns} << 32) / (to_ticks - from_ticks));
#endif
}

}  // namespace cleat::perf
