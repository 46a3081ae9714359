// SPDX-License-Identifier: Apache-2.0
#include "base/tick_clock.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace cleat::tick_clock_test {
namespace {

constexpr int kLooks = 200'000;
constexpr uint64_t kOffNsMax = 20 * kNsPerUs;

// The kernel's time is asked before and after: how far outside of the two the clock is, at most.
uint64_t MostOff(const TickClock& clock) {
  const MonotonicClock kernel;
  uint64_t off_ns = 0;
  for (int i = 0; i < kLooks; ++i) {
    const uint64_t before_ns = kernel.NowNs();
    const uint64_t now_ns = clock.NowNs();
    const uint64_t after_ns = kernel.NowNs();
    if (now_ns < before_ns) off_ns = std::max(off_ns, before_ns - now_ns);
    if (now_ns > after_ns) off_ns = std::max(off_ns, now_ns - after_ns);
  }
  return off_ns;
}

TEST(TickClockTest, GoesAsTheKernelsClockGoes) {
  const TickClock clock(TickRate::Measure());
  EXPECT_LT(MostOff(clock), kOffNsMax);
}

// What a virtual machine sees that has moved to a host with another pace: wrong, but never for long enough to add up.
TEST(TickClockTest, AWrongRateDoesNotAddUp) {
  TickRate rate = TickRate::Measure();
  if (rate.ns_per_tick_q32 == 0) GTEST_SKIP() << "this processor has no even time stamp counter";
  rate.ns_per_tick_q32 += rate.ns_per_tick_q32 / 20;  // 5 %: of 100 us that are trusted
  const TickClock clock(rate);
  EXPECT_LT(MostOff(clock), kOffNsMax);
  // That the look would see it: trusted for a second.
  rate.ticks_trusted *= 10'000;
  const TickClock never_asks(rate);
  EXPECT_GE(MostOff(never_asks), kOffNsMax);
}

TEST(TickClockTest, WithoutACounterItIsTheKernels) {
  const TickClock clock(TickRate{});
  EXPECT_LT(MostOff(clock), 1U);
}

}  // namespace
}  // namespace cleat::tick_clock_test
