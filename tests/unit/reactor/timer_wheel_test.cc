// SPDX-License-Identifier: Apache-2.0
#include "reactor/timer_wheel.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/random.h"

namespace cleat::timer_wheel_test {
namespace {

constexpr uint64_t kSlotNs = 1024;

// A deadline or a jump whose size is spread over all the wheel's levels.
uint64_t AnySize(Random& random, uint32_t bits_max) {
  return random.Next() >> (64 - random.Between(1, bits_max));
}

struct TestTimer : Timer {
  explicit TestTimer(std::vector<TestTimer*>& f)
      : Timer([](Timer& timer) {
          auto& self = static_cast<TestTimer&>(timer);
          self.fired.push_back(&self);
        }),
        fired(f) {}
  std::vector<TestTimer*>& fired;
  uint64_t added_ns = 0;
};

class Model {
 public:
  Model(uint64_t seed, uint64_t start_ns) : random_(seed), now_ns_(start_ns), wheel_(start_ns) {
    for (int i = 0; i < 300; ++i) timers_.emplace_back(fired_);
  }

  void Step(uint32_t bits_max) {
    TestTimer& timer = timers_[random_.Below(timers_.size())];
    const uint64_t what = random_.Below(10);
    if (what < 5) {
      if (!timer.pending()) Add(timer, AnySize(random_, bits_max));
    } else if (what < 7) {
      timer.Cancel();
      Forget(timer);
    } else if (what < 9) {
      AdvanceTo(now_ns_ + AnySize(random_, bits_max));
    } else if (wheel_.NextNs() != kNoDeadline) {
      AdvanceTo(std::max(now_ns_, wheel_.NextNs()));
    }
  }

  // By NextNs alone, as a sleeping reactor does: everything fires, in few steps.
  void Drain() {
    uint64_t steps = 0;
    const uint64_t steps_max = 16 * timers_.size() * 2;
    while (!pending_.empty()) {
      ASSERT_NE(wheel_.NextNs(), kNoDeadline);
      ASSERT_LE(wheel_.NextNs(), (pending_.begin()->first | (kSlotNs - 1)) + 2 * kSlotNs)
          << "would be slept through";
      AdvanceTo(std::max(now_ns_, wheel_.NextNs()));
      ASSERT_LT(++steps, steps_max);
    }
  }

 private:
  void Add(TestTimer& timer, uint64_t ahead_ns) {
    const uint64_t deadline_ns = now_ns_ + ahead_ns - std::min(now_ns_ + ahead_ns, random_.Below(3000));
    timer.added_ns = now_ns_;
    wheel_.Add(timer, deadline_ns);
    pending_.emplace(std::max(deadline_ns, now_ns_), &timer);
  }

  void Forget(const TestTimer& timer) {
    std::erase_if(pending_, [&](const auto& entry) { return entry.second == &timer; });
  }

  void AdvanceTo(uint64_t now_ns) {
    now_ns_ = now_ns;
    fired_.clear();
    const uint32_t fired = wheel_.Advance(now_ns);
    ASSERT_EQ(fired, fired_.size());
    for (TestTimer* timer : fired_) {
      ASSERT_LE(timer->deadline_ns(), now_ns) << "early";
      ASSERT_FALSE(timer->pending());
      Forget(*timer);
    }
    if (!pending_.empty()) {
      ASSERT_LT(now_ns, pending_.begin()->first + kSlotNs) << "late";
    }
  }

  Random random_;
  uint64_t now_ns_;
  TimerWheel wheel_;
  std::vector<TestTimer*> fired_;
  std::deque<TestTimer> timers_;
  std::multimap<uint64_t, TestTimer*> pending_;  // by when it may fire at the earliest
};

TEST(TimerWheel, AgreesWithASortedMap) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Model model(seed, seed * 1'000'003'777);
    const auto bits_max = static_cast<uint32_t>(12 + seed);  // from microseconds to weeks
    for (int i = 0; i < 2000 && !testing::Test::HasFailure(); ++i) model.Step(bits_max);
    model.Drain();
    ASSERT_FALSE(testing::Test::HasFailure());
  }
}

struct CallTimer : Timer {
  explicit CallTimer(std::function<void()> f)
      : Timer([](Timer& timer) {
          const std::function<void()> function = static_cast<CallTimer&>(timer).call;  // the timer may go
          function();
        }),
        call(std::move(f)) {}
  std::function<void()> call;
};

TEST(TimerWheel, CallbackMayAddCancelAndDestroy) {
  TimerWheel wheel(0);
  int cancelled_fired = 0;
  int again = 0;
  CallTimer victim([&] { ++cancelled_fired; });
  std::unique_ptr<CallTimer> suicidal;
  suicidal = std::make_unique<CallTimer>([&] {
    victim.Cancel();
    suicidal.reset();
  });
  CallTimer repeating([&] {
    if (++again < 5) wheel.Add(repeating, 0);  // in the past: at the next slot, not in an endless loop
  });
  // All in one slot; the one that kills comes first.
  wheel.Add(*suicidal, 5000);
  wheel.Add(victim, 5001);
  wheel.Add(repeating, 5002);
  EXPECT_EQ(wheel.Advance(5120), 2U);
  EXPECT_EQ(suicidal, nullptr);
  EXPECT_EQ(again, 1);
  EXPECT_EQ(wheel.Advance(1'000'000), 4U);
  EXPECT_EQ(again, 5);
  EXPECT_EQ(cancelled_fired, 0);
  EXPECT_EQ(wheel.Advance(2'000'000), 0U);
}

TEST(TimerWheel, FarDeadlinesWait) {
  std::vector<TestTimer*> fired;
  TimerWheel wheel(kSlotNs);
  TestTimer never(fired);
  wheel.Add(never, kNoDeadline);
  TestTimer century(fired);
  const uint64_t century_ns = uint64_t{100} * 365 * 86'400 * 1'000'000'000;
  wheel.Add(century, century_ns);
  wheel.Advance(century_ns - 1);
  EXPECT_TRUE(fired.empty());
  wheel.Advance(century_ns + kSlotNs);
  EXPECT_EQ(fired, std::vector<TestTimer*>{&century});
  EXPECT_TRUE(never.pending());
}

TEST(TimerWheel, AtTheEndOfTime) {
  std::vector<TestTimer*> fired;
  const uint64_t start_ns = kNoDeadline - 1'000'000;
  TimerWheel wheel(start_ns);
  TestTimer near(fired);
  TestTimer never(fired);
  wheel.Add(near, start_ns + 500'000);
  wheel.Add(never, kNoDeadline);
  for (uint64_t now_ns = start_ns; now_ns < kNoDeadline - 2000; now_ns += 1000) wheel.Advance(now_ns);
  EXPECT_EQ(fired, std::vector<TestTimer*>{&near});
  wheel.Advance(kNoDeadline);
  EXPECT_EQ(fired.size(), 1U);
}

}  // namespace
}  // namespace cleat::timer_wheel_test
