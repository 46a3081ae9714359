// SPDX-License-Identifier: Apache-2.0
#include "reactor/sync.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "reactor/task.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::sync_test {
namespace {

using test::VirtualReactors;
using Lines = std::vector<std::string>;

Task<void> WaitAndSay(Event& event, CancelToken* cancel, std::string name, Lines& lines) {
  const bool happened = co_await event.Wait(cancel);
  lines.push_back(name + (happened ? " happened" : " cancelled"));
}

TEST(Event, WakesWaitersInOrderAtTheNextTurn) {
  VirtualReactors reactors;
  Lines lines;
  Event event(reactors[0]);
  Spawn(WaitAndSay(event, nullptr, "a", lines));
  Spawn(WaitAndSay(event, nullptr, "b", lines));
  reactors.RunUntilIdle();
  EXPECT_TRUE(lines.empty());
  event.Set();
  EXPECT_TRUE(lines.empty());
  reactors.RunUntilIdle();
  EXPECT_EQ(lines, (Lines{"a happened", "b happened"}));
  Spawn(WaitAndSay(event, nullptr, "c", lines));  // it is set: goes straight on
  EXPECT_EQ(lines.back(), "c happened");
  event.Reset();
  Spawn(WaitAndSay(event, nullptr, "d", lines));
  event.Pulse();
  EXPECT_FALSE(event.is_set());
  reactors.RunUntilIdle();
  EXPECT_EQ(lines.back(), "d happened");
}

TEST(Event, MayDieOnceItHasWokenItsWaiters) {
  VirtualReactors reactors;
  Lines lines;
  {
    Event event(reactors[0]);
    Spawn(WaitAndSay(event, nullptr, "a", lines));
    event.Set();
  }
  reactors.RunUntilIdle();
  EXPECT_EQ(lines, Lines{"a happened"});
}

TEST(Event, CancelledWaitsEndAndOnlyThose) {
  VirtualReactors reactors;
  Lines lines;
  Event event(reactors[0]);
  CancelToken cancel;
  Spawn(WaitAndSay(event, &cancel, "a", lines));
  Spawn(WaitAndSay(event, nullptr, "b", lines));
  cancel.Cancel();
  cancel.Cancel();
  reactors.RunUntilIdle();
  EXPECT_EQ(lines, Lines{"a cancelled"});
  Spawn(WaitAndSay(event, &cancel, "c", lines));  // too late to wait
  EXPECT_EQ(lines.back(), "c cancelled");
  event.Set();
  reactors.RunUntilIdle();
  EXPECT_EQ(lines.back(), "b happened");
}

TEST(Event, CancelAfterSetChangesNothing) {
  VirtualReactors reactors;
  Lines lines;
  Event event(reactors[0]);
  CancelToken cancel;
  Spawn(WaitAndSay(event, &cancel, "a", lines));
  event.Set();
  cancel.Cancel();
  reactors.RunUntilIdle();
  EXPECT_EQ(lines, Lines{"a happened"});
}

Task<void> LockAndWork(Reactor& reactor, AsyncMutex& mutex, CancelToken* cancel, std::string name,
                       Lines& lines) {
  const auto guard = co_await mutex.Lock(cancel);
  if (!guard) {
    lines.push_back(name + " cancelled");
    co_return;
  }
  lines.push_back(name + " in");
  co_await reactor.SleepFor(kNsPerMs);
  lines.push_back(name + " out");
}

TEST(AsyncMutex, OneAtATimeFirstComeFirstServed) {
  VirtualReactors reactors;
  Lines lines;
  AsyncMutex mutex(reactors[0]);
  CancelToken cancel;
  Spawn(LockAndWork(reactors[0], mutex, nullptr, "a", lines));
  Spawn(LockAndWork(reactors[0], mutex, &cancel, "b", lines));
  Spawn(LockAndWork(reactors[0], mutex, nullptr, "c", lines));
  cancel.Cancel();
  reactors.RunUntil([] { return false; });
  EXPECT_EQ(lines, (Lines{"a in", "b cancelled", "a out", "c in", "c out"}));
}

TEST(AsyncMutex, CancelAfterTheLockWasPassedOnKeepsTheLock) {
  VirtualReactors reactors;
  Lines lines;
  AsyncMutex mutex(reactors[0]);
  CancelToken cancel;
  {
    auto taking = [](AsyncMutex& m) -> Task<AsyncMutex::Guard> { co_return co_await m.Lock(); };
    auto guard = reactors.Await(taking(mutex));
    Spawn(LockAndWork(reactors[0], mutex, &cancel, "a", lines));
  }
  cancel.Cancel();  // the guard is gone, "a" has the lock and just hasn't run yet
  reactors.RunUntil([] { return false; });
  EXPECT_EQ(lines, (Lines{"a in", "a out"}));
}

Task<void> BeInside(Reactor& reactor, Gate& gate, uint64_t for_ns, Lines& lines) {
  const Gate::Holder holder(gate);
  if (!holder) {
    lines.emplace_back("refused");
    co_return;
  }
  co_await reactor.SleepFor(for_ns);
  lines.emplace_back("left");
}

Task<void> CloseGate(Gate& gate, Lines& lines) {
  co_await gate.Close();
  lines.emplace_back("closed");
}

TEST(Gate, ClosesDrainsAndLetsNobodyIn) {
  VirtualReactors reactors;
  Lines lines;
  Gate gate(reactors[0]);
  Spawn(BeInside(reactors[0], gate, kNsPerMs, lines));
  Spawn(BeInside(reactors[0], gate, 2 * kNsPerMs, lines));
  EXPECT_EQ(gate.inside(), 2U);
  Spawn(CloseGate(gate, lines));
  Spawn(CloseGate(gate, lines));
  Spawn(BeInside(reactors[0], gate, 0, lines));
  EXPECT_TRUE(gate.closed());
  reactors.RunUntil([] { return false; });
  EXPECT_EQ(lines, (Lines{"refused", "left", "left", "closed", "closed"}));
  Spawn(CloseGate(gate, lines));  // again
  EXPECT_EQ(lines.size(), 6U);
}

}  // namespace
}  // namespace cleat::sync_test
