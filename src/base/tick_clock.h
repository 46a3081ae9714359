// SPDX-License-Identifier: Apache-2.0
// The time for those who ask for it millions of times a second: the processor's time stamp counter, where it runs evenly
// and never stops, held to CLOCK_MONOTONIC; that clock itself elsewhere. 0.4 of what a call into the vDSO takes.
//
// The counter is trusted for a tenth of a millisecond at a time: then the kernel is asked again, so errors do not add
// up - neither those of the measured rate, some nanoseconds in that time, nor a counter that jumps or changes its pace
// when a virtual machine moves to another host (within that time it may be wrong by as much as the pace changed). A
// correction can go backwards; who needs a time that does not keeps the greatest (Reactor does).
#pragma once

#include <cstdint>

#include "base/clock.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cleat {

// How fast the counter runs. Measuring takes 10 ms, once for all clocks.
struct TickRate {
  static TickRate Measure();

  uint64_t ns_per_tick_q32 = 0;   // times 2^32; 0: there is no good counter
  uint64_t ticks_trusted = 0;     // so many after the kernel was asked
  uint64_t ticks_asking_max = 0;  // ... if that did not take longer
};

// One thread's.
class TickClock final : public Clock {
 public:
  explicit TickClock(const TickRate& rate) : rate_(rate) {}

  uint64_t NowNs() const override {
#if defined(__x86_64__)
    const uint64_t ticks = __rdtsc() - anchor_ticks_;  // wraps to huge when it ran backwards
    if (ticks < anchored_ticks_) [[likely]]
      return anchor_ns_ + (ticks * rate_.ns_per_tick_q32 >> 32);
#endif
    return Anchor();
  }

 private:
  uint64_t Anchor() const;

  TickRate rate_;
  // A cache of what the kernel said last.
  mutable uint64_t anchor_ticks_ = 0;
  mutable uint64_t anchor_ns_ = 0;
  mutable uint64_t anchored_ticks_ = 0;  // 0: ask it
};

}  // namespace cleat
