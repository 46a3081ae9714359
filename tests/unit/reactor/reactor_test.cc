// SPDX-License-Identifier: Apache-2.0
#include "reactor/reactor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "reactor/poller.h"
#include "reactor/task.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::reactor_test {
namespace {

using test::VirtualReactors;

TEST(Reactor, DeliversCallsInOrderAndSaysWhoIsCurrent) {
  VirtualReactors reactors;
  std::vector<int> order;
  EXPECT_EQ(Reactor::Current(), nullptr);
  for (int i = 0; i < 1000; ++i) {
    reactors[0].PostCall([&, i] {
      EXPECT_EQ(Reactor::Current(), &reactors[0]);
      order.push_back(i);
    });
  }
  EXPECT_FALSE(reactors[0].CanSleep());
  reactors.RunUntilIdle();
  EXPECT_EQ(Reactor::Current(), nullptr);
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Reactor, DeliversWhatIsLeftWhenItGoes) {
  int delivered = 0;
  {
    VirtualReactors reactors;
    reactors[0].PostCall([&] { ++delivered; });
  }
  EXPECT_EQ(delivered, 1);
}

Task<void> SleepAndSay(Reactor& reactor, uint64_t for_ns, CancelToken* cancel, std::string name,
                       std::vector<std::string>& lines) {
  const uint64_t start_ns = reactor.now_ns();
  const bool slept = co_await reactor.SleepFor(for_ns, cancel);
  if (slept) {
    EXPECT_GE(reactor.now_ns() - start_ns, for_ns);
    EXPECT_LE(reactor.now_ns() - start_ns, for_ns + 1024);
  }
  lines.push_back(name + (slept ? " slept" : " cancelled"));
}

TEST(Reactor, SleepsInVirtualTime) {
  VirtualReactors reactors;
  std::vector<std::string> lines;
  CancelToken cancel;
  CancelToken unused;
  Spawn(SleepAndSay(reactors[0], 3600 * kNsPerSecond, nullptr, "hour", lines));
  Spawn(SleepAndSay(reactors[0], kNsPerMs, &unused, "ms", lines));
  Spawn(SleepAndSay(reactors[0], kNoDeadline, &cancel, "for ever", lines));  // no overflow to "now"
  Spawn(SleepAndSay(reactors[0], 0, nullptr, "zero", lines));
  EXPECT_TRUE(reactors.RunUntil([&] { return lines.size() == 3; }));
  EXPECT_EQ(lines, (std::vector<std::string>{"zero slept", "ms slept", "hour slept"}));
  unused.Cancel();
  cancel.Cancel();
  reactors.RunUntilIdle();
  EXPECT_EQ(lines.back(), "for ever cancelled");
  Spawn(SleepAndSay(reactors[0], 1, &cancel, "late", lines));
  EXPECT_EQ(lines.back(), "late cancelled");
}

// The sleep is over and its coroutine about to go on when the cancellation comes.
TEST(Reactor, CancelAfterASleepIsOverChangesNothing) {
  struct CancelTimer : Timer {
    explicit CancelTimer(CancelToken& c)
        : Timer([](Timer& timer) { static_cast<CancelTimer&>(timer).cancel.Cancel(); }), cancel(c) {}
    CancelToken& cancel;
  };
  VirtualReactors reactors;
  std::vector<std::string> lines;
  CancelToken cancel;
  CancelTimer timer(cancel);
  Spawn(SleepAndSay(reactors[0], kNsPerMs, &cancel, "a", lines));
  reactors[0].AddTimer(timer, reactors[0].now_ns() + kNsPerMs);  // in the same slot, behind it
  EXPECT_TRUE(reactors.RunUntil([&] { return !lines.empty(); }));
  EXPECT_TRUE(cancel.cancelled());
  EXPECT_EQ(lines, std::vector<std::string>{"a slept"});
}

Task<void> YieldManyTimes(Reactor& reactor, int times, int& done) {
  for (int i = 0; i < times; ++i) {
    const uint64_t turn = reactor.turns();
    co_await reactor.Yield();
    EXPECT_EQ(reactor.turns(), turn + 1);
  }
  ++done;
}

TEST(Reactor, YieldTakesATurn) {
  VirtualReactors reactors;
  int done = 0;
  Spawn(YieldManyTimes(reactors[0], 1, done));
  reactors.RunUntilIdle();
  EXPECT_EQ(done, 1);
}

Task<void> Wander(VirtualReactors& reactors, uint32_t count, int rounds, int& done) {
  for (int i = 0; i < rounds; ++i) {
    Reactor& next = reactors[static_cast<uint32_t>(i) % count];
    co_await next.Enter();
    EXPECT_EQ(Reactor::Current(), &next);
    co_await next.SleepFor(kNsPerUs);
    EXPECT_EQ(Reactor::Current(), &next);
  }
  ++done;
}

TEST(Reactor, SeveralOnOneThreadInVirtualTime) {
  VirtualReactors reactors(3);
  int done = 0;
  for (int i = 0; i < 20; ++i) Spawn(Wander(reactors, 3, 100, done));
  EXPECT_TRUE(reactors.RunUntil([&] { return done == 20; }));
}

// ---- Real threads and real time

std::unique_ptr<Reactor> RealReactor(const Clock& clock, uint64_t spin_ns = 0) {
  Reactor::Options options;
  options.spin_ns = spin_ns;
  return std::move(Reactor::Make(clock, options)).value();
}

Task<void> PingPong(Reactor& home, Reactor& away, int rounds, std::atomic<int>& running) {
  co_await home.Enter();
  const std::thread::id home_thread = std::this_thread::get_id();
  for (int i = 0; i < rounds; ++i) {
    co_await away.Enter();
    EXPECT_EQ(Reactor::Current(), &away);
    EXPECT_NE(std::this_thread::get_id(), home_thread);
    co_await home.Enter();
    EXPECT_EQ(Reactor::Current(), &home);
    EXPECT_EQ(std::this_thread::get_id(), home_thread);
  }
  if (--running == 0) {
    away.Stop();
    home.Stop();
  }
}

// A lost wake-up would hang: with one coroutine both reactors sleep between almost any two steps.
TEST(Reactor, EnterBetweenThreadsNeverLosesAWakeUp) {
  for (const int coroutines : {1, 16}) {
    const MonotonicClock clock;
    auto a = RealReactor(clock);
    auto b = RealReactor(clock);
    std::atomic<int> running = coroutines;
    for (int i = 0; i < coroutines; ++i) Spawn(PingPong(*a, *b, 10'000 / coroutines, running));
    std::thread other([&] { b->Run(); });
    a->Run();
    other.join();
    EXPECT_EQ(running.load(), 0);
  }
}

class IdlePoller : public Poller {
 public:
  bool Poll() override { return false; }
  bool Arm() override { return true; }
};

// One that polls takes many turns in that time; how many a busy machine lets it take only says how surely it is caught.
constexpr auto kIdleTime = std::chrono::milliseconds(30);

// From another thread: it falls asleep, and no turn comes while it has nothing to do.
void ExpectSleeps(const Reactor& reactor) {
  while (!reactor.asleep()) std::this_thread::yield();
  const uint64_t turns = reactor.turns();
  std::this_thread::sleep_for(kIdleTime);
  EXPECT_EQ(reactor.turns(), turns);
  EXPECT_TRUE(reactor.asleep());
}

Task<void> SleepThenStop(Reactor& reactor) {
  co_await reactor.SleepFor(static_cast<uint64_t>(std::chrono::nanoseconds(kIdleTime).count()));
  reactor.Stop();
}

TEST(Reactor, IdleSleepsUntilATimer) {
  const MonotonicClock clock;
  auto reactor = RealReactor(clock);
  IdlePoller poller;
  reactor->AddPoller(poller);
  reactor->PostCall([&] { Spawn(SleepThenStop(*reactor)); });
  reactor->Run();
  // It wakes up for the timer, and before that perhaps for a level of the wheel or two.
  EXPECT_LT(reactor->turns(), 60U);
  reactor->RemovePoller(poller);
}

TEST(Reactor, IdleSleepsUntilMail) {
  const MonotonicClock clock;
  auto reactor = RealReactor(clock);
  // (Turns after that say nothing: it looks again and again while who posts has no core in the middle of that.)
  std::thread other([&] {
    ExpectSleeps(*reactor);
    reactor->PostCall([&] { reactor->Stop(); });
  });
  reactor->Run();
  other.join();
}

TEST(Reactor, IdleSleepsUntilADescriptor) {
  struct StopWatch : FdWatch {
    explicit StopWatch(Reactor& r)
        : FdWatch([](FdWatch& watch, uint32_t) { static_cast<StopWatch&>(watch).reactor.Stop(); }),
          reactor(r) {}
    Reactor& reactor;
  };
  const MonotonicClock clock;
  auto reactor = RealReactor(clock);
  const UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  StopWatch watch(*reactor);
  ASSERT_TRUE(watch.Start(*reactor, event.get(), EPOLLIN));
  std::thread other([&] {
    ExpectSleeps(*reactor);
    EXPECT_EQ(eventfd_write(event.get(), 1), 0);
  });
  reactor->Run();
  other.join();
}

TEST(Reactor, StopBeforeRunIsNotForgotten) {
  const MonotonicClock clock;
  auto reactor = RealReactor(clock);
  reactor->Stop();
  reactor->Run();
}

TEST(Reactor, TakesMailFromManyThreadsWhileItFallsAsleep) {
  constexpr int kThreads = 4;
  constexpr int kMails = 5'000;
  const MonotonicClock clock;
  auto reactor = RealReactor(clock);
  std::atomic<int> senders = kThreads;
  int delivered = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kMails; ++i) reactor->PostCall([&] { ++delivered; });
      if (--senders == 0) reactor->PostCall([&] { reactor->Stop(); });
    });
  }
  reactor->Run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(delivered, kThreads * kMails);
}

}  // namespace
}  // namespace cleat::reactor_test
