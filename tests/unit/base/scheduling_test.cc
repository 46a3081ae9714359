// SPDX-License-Identifier: Apache-2.0
#include "base/scheduling.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <thread>

namespace cleat::scheduling_test {
namespace {

// Of this thread: sched_attr's sched_runtime. 0: a kernel that does not tell.
uint64_t TurnNs() {
  constexpr size_t kRuntimeAt = 24;
  std::array<uint8_t, 48> attr{};
  if (syscall(SYS_sched_getattr, 0, attr.data(), attr.size(), 0) != 0) return 0;
  uint64_t ns = 0;
  std::memcpy(&ns, attr.data() + kRuntimeAt, sizeof ns);
  return ns;
}

// In threads of their own: what they ask for stays theirs.
template <typename Body>
void InThread(Body body) {
  std::thread(body).join();
}

TEST(Scheduling, ShortTurnsAreThoseOfTheThreadsToComeAsWell) {
  InThread([] {
    if (TurnNs() == 0)
      GTEST_SKIP() << "SKIPPED: this kernel (before 6.12) has no time slices of a thread's own";
    ASSERT_NE(TurnNs(), kShortTurnNs);
    const auto asked = HoldCoresFor(kShortTurnNs);
    ASSERT_TRUE(asked.ok()) << asked.error().message;
    EXPECT_EQ(TurnNs(), kShortTurnNs);
    InThread([] { EXPECT_EQ(TurnNs(), kShortTurnNs); });
  });
}

TEST(Scheduling, WhatARealTimeThreadHasStays) {
  InThread([] {
    const sched_param priority{.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0)
      GTEST_SKIP() << "SKIPPED: no right to real-time threads here";
    ASSERT_TRUE(HoldCoresFor(kShortTurnNs).ok());
    EXPECT_EQ(sched_getscheduler(0), SCHED_FIFO);
  });
}

TEST(Scheduling, StaysOnTheCpusBesideOthers) {
  InThread([] {
    const auto all = CpusBeside({});
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(CpusBeside(all).size(), 0U);
    if (all.size() == 1) GTEST_SKIP() << "SKIPPED: one core";
    const auto others = CpusBeside({all.front()});
    ASSERT_EQ(others.size(), all.size() - 1);
    ASSERT_TRUE(StayOn(others).ok());
    EXPECT_EQ(CpusBeside({}), others);
    ASSERT_TRUE(StayOn({}).ok());  // no wish at all
    EXPECT_EQ(CpusBeside({}), others);
  });
}

}  // namespace
}  // namespace cleat::scheduling_test
