// SPDX-License-Identifier: Apache-2.0
#include "engine/process/watchdog.h"

#include <gtest/gtest.h>

#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::engine::watchdog_test {
namespace {

constexpr uint64_t kLimitNs = 30 * kNsPerSecond;
constexpr uint64_t kIntervalNs = kLimitNs / Watchdog::kRoundsPerLimit;

Task<void> StopAndTell(Watchdog& watchdog, bool& stopped) {
  co_await watchdog.Stop();
  stopped = true;
}

// The first reactor is the control reactor; the others are watched.
class WatchdogTest : public testing::Test {
 protected:
  // `seconds` pass; reactors that hang do nothing meanwhile.
  void Pass(uint64_t seconds, size_t hanging = 0) {
    for (uint64_t second = 0; second < seconds; ++second) {
      RunBut(hanging);
      reactors_.clock().AdvanceTo(reactors_.clock().NowNs() + kNsPerSecond);
    }
    RunBut(hanging);
  }
  void RunBut(size_t hanging) {
    for (bool worked = true; worked;) {
      worked = false;
      for (size_t i = 0; i < 3; ++i) {
        if (i != hanging || hanging == 0) worked |= reactors_[i].RunOnce();
      }
    }
  }
  void Start(Watchdog& watchdog) {
    reactors_[0].PostCall([&] { watchdog.Start(); });
  }
  bool Stops(Watchdog& watchdog) {
    bool stopped = false;
    reactors_[0].PostCall([&] { Spawn(StopAndTell(watchdog, stopped)); });
    Pass(0);
    return stopped;
  }

  test::VirtualReactors reactors_{3};
  int alive_ = 0;
  const std::function<void()> count_ = [this] { ++alive_; };
};

TEST_F(WatchdogTest, SaysThatAllIsWellAtAThirdOfTheLimit) {
  Watchdog watchdog(reactors_[0], {&reactors_[1], &reactors_[2]}, kLimitNs, count_);
  Start(watchdog);
  Pass(0);
  EXPECT_EQ(alive_, 1);
  const uint64_t begun_ns = reactors_.clock().NowNs();
  constexpr int kRounds = 6;
  EXPECT_TRUE(reactors_.RunUntil([&] { return alive_ == 1 + kRounds; }));
  const uint64_t passed_ns = reactors_.clock().NowNs() - begun_ns;
  EXPECT_GE(passed_ns, kRounds * kIntervalNs);
  EXPECT_LT(passed_ns, kRounds * kIntervalNs + kNsPerMs);
  EXPECT_TRUE(Stops(watchdog));  // at once, not at the next round
}

TEST_F(WatchdogTest, SaysNothingWhileAReactorHangs) {
  for (const size_t hanging : {1, 2}) {
    Watchdog watchdog(reactors_[0], {&reactors_[1], &reactors_[2]}, kLimitNs, count_);
    alive_ = 0;
    Start(watchdog);
    Pass(0);
    EXPECT_EQ(alive_, 1);
    Pass(300, hanging);
    EXPECT_EQ(alive_, 1);
    Pass(0);  // it goes on
    EXPECT_EQ(alive_, 2);
    EXPECT_TRUE(Stops(watchdog));
  }
}

TEST_F(WatchdogTest, WithoutALimitNobodyIsAsked) {
  Watchdog watchdog(reactors_[0], {&reactors_[1], &reactors_[2]}, 0, count_);
  Start(watchdog);
  Pass(60, 1);
  EXPECT_EQ(alive_, 0);
}

}  // namespace
}  // namespace cleat::engine::watchdog_test
