// SPDX-License-Identifier: Apache-2.0
#include "base/tick_clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace cleat {
namespace {

constexpr uint64_t kMeasureNs = 10 * kNsPerMs;
constexpr uint64_t kTrustedNs = 100 * kNsPerUs;
// Asking the kernel takes a fiftieth of that. When it took longer, the thread was away in the middle of it, and nobody
// knows which count belongs to which time.
constexpr uint64_t kAskingNsMax = 2 * kNsPerUs;

#if defined(__x86_64__)
struct Reading {
  uint64_t ns = 0;
  uint64_t ticks = 0;
  uint64_t ticks_taken = 0;

  static Reading Take() {
    Reading reading;
    const uint64_t before = __rdtsc();
    reading.ns = MonotonicClock().NowNs();
    reading.ticks = __rdtsc();
    reading.ticks_taken = reading.ticks - before;
    return reading;
  }
  // The least disturbed of a few.
  static Reading TakeBest() {
    Reading best = Take();
    for (int i = 0; i < 8; ++i) {
      const Reading other = Take();
      if (other.ticks_taken < best.ticks_taken) best = other;
    }
    return best;
  }
};

bool HasEvenCounter() {
  constexpr unsigned kPowerLeaf =
      0x80000007;  // AMD64 Architecture Programmer's Manual 3, E.4.6; Intel SDM 2, CPUID
  constexpr unsigned kInvariantTsc = 1U << 8;  // of edx
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(kPowerLeaf, &eax, &ebx, &ecx, &edx) != 0 && (edx & kInvariantTsc) != 0;
}
#endif

}  // namespace

TickRate TickRate::Measure() {
  TickRate rate;
#if defined(__x86_64__)
  if (!HasEvenCounter()) return rate;
  const Reading from = Reading::TakeBest();
  while (MonotonicClock().NowNs() < from.ns + kMeasureNs) {
  }
  const Reading to = Reading::TakeBest();
  const uint64_t ns = to.ns - from.ns;
  const uint64_t ticks = to.ticks - from.ticks;
  // A pace that no processor has, or somebody held this one for seconds: better none.
  constexpr uint64_t kTicksPerNsMax = 16;
  if (ns > kNsPerSecond || ticks < ns / kTicksPerNsMax || ticks > ns * kTicksPerNsMax) return rate;
  rate.ns_per_tick_q32 = (ns << 32) / ticks;
  rate.ticks_trusted = ticks * kTrustedNs / ns;
  rate.ticks_asking_max = ticks * kAskingNsMax / ns;
#endif
  return rate;
}

uint64_t TickClock::Anchor() const {
#if defined(__x86_64__)
  if (rate_.ns_per_tick_q32 != 0) {
    const Reading reading = Reading::Take();
    anchor_ticks_ = reading.ticks;
    anchor_ns_ = reading.ns;
    anchored_ticks_ = reading.ticks_taken <= rate_.ticks_asking_max ? rate_.ticks_trusted : 0;
    return reading.ns;
  }
#endif
  return MonotonicClock().NowNs();
}

}  // namespace cleat
