// SPDX-License-Identifier: Apache-2.0
// The time for latencies, cheap enough to be read for every request at queue depth 1: the processor's time stamp
// counter where that runs evenly and never stops, measured against CLOCK_MONOTONIC when the clock is made (10 ms);
// CLOCK_MONOTONIC itself elsewhere. Nanoseconds of CLOCK_MONOTONIC, to about 10 us a second. Any thread.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/random.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace cleat::perf {

class TickClock final : public Clock {
 public:
  TickClock();

  uint64_t NowNs() const override {
#if defined(__x86_64__)
    if (ns_per_tick_q32_ != 0) [[likely]] {
      return start_ns_ + static_cast<uint64_t>((Wide{__rdtsc() - start_ticks_} * ns_per_tick_q32_) >> 32);
    }
#endif
    return MonotonicClock().NowNs();
  }

 private:
  uint64_t start_ns_ = 0;
  uint64_t start_ticks_ = 0;
  uint64_t ns_per_tick_q32_ = 0;  // times 2^32; 0: there is no good counter
};

}  // namespace cleat::perf
