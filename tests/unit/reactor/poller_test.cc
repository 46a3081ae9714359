// SPDX-License-Identifier: Apache-2.0
#include "reactor/poller.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "reactor/reactor.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::poller_test {
namespace {

using test::VirtualReactors;

class TestPoller : public Poller {
 public:
  bool Poll() override {
    ++polls;
    const auto now = on_poll;  // it may destroy the poller
    return now && now();
  }
  bool Arm() override {
    ++arms;
    return can_arm;
  }
  void Disarm() override { ++disarms; }
  void Hint(bool near) override {
    if (on_hint) on_hint(near);
  }

  std::function<bool()> on_poll;
  std::function<void(bool near)> on_hint;
  bool can_arm = true;
  int polls = 0;
  int arms = 0;
  int disarms = 0;
};

TEST(Poller, IsPolledUntilIdleThenArmedUntilActivated) {
  VirtualReactors reactors;
  TestPoller poller;
  int work = 3;
  poller.on_poll = [&] { return work-- > 0; };
  reactors[0].AddPoller(poller);
  reactors.RunUntilIdle();
  EXPECT_EQ(poller.polls, 4);
  EXPECT_EQ(poller.arms, 1);
  EXPECT_TRUE(reactors[0].CanSleep());
  reactors[0].RunOnce();
  EXPECT_EQ(poller.polls, 4) << "an armed poller costs nothing";

  work = 1;
  reactors[0].Activate(poller);
  reactors[0].Activate(poller);
  EXPECT_EQ(poller.disarms, 1);
  EXPECT_FALSE(reactors[0].CanSleep());
  reactors.RunUntilIdle();
  EXPECT_EQ(poller.polls, 6);
  EXPECT_EQ(poller.arms, 2);
  reactors[0].RemovePoller(poller);  // armed
  reactors[0].AddPoller(poller);
  reactors[0].RemovePoller(poller);  // active
}

TEST(Poller, IsHintedTwiceBeforeItIsPolled) {
  VirtualReactors reactors;
  std::array<TestPoller, 4> pollers;
  std::string events;
  for (size_t i = 0; i < pollers.size(); ++i) {
    const auto name = static_cast<char>('a' + i);
    pollers[i].can_arm = false;
    pollers[i].on_poll = [&events, name] {
      events += std::string(1, name) + " ";
      return false;
    };
    pollers[i].on_hint = [&events, name](bool near) {
      events += std::string(near ? "near-" : "far-") + name + " ";
    };
    reactors[0].AddPoller(pollers[i]);
  }
  reactors[0].RunOnce();
  EXPECT_EQ(events, "near-b far-c a near-c far-d b near-d c d ");
  for (TestPoller& poller : pollers) reactors[0].RemovePoller(poller);
}

TEST(Poller, ThatCannotArmStaysActive) {
  VirtualReactors reactors;
  TestPoller poller;
  poller.can_arm = false;
  reactors[0].AddPoller(poller);
  for (int i = 0; i < 3; ++i) reactors[0].RunOnce();
  EXPECT_EQ(poller.polls, 3);
  EXPECT_EQ(poller.arms, 3);
  EXPECT_FALSE(reactors[0].CanSleep());
  reactors[0].RemovePoller(poller);
}

TEST(Poller, IsNotArmedBeforeTheSpinTimeIsOver) {
  ManualClock clock;
  Reactor::Options options;
  options.spin_ns = 1000;
  auto reactor = std::move(Reactor::Make(clock, options)).value();
  TestPoller poller;
  reactor->AddPoller(poller);
  reactor->RunOnce();
  clock.AdvanceBy(999);
  reactor->RunOnce();
  EXPECT_EQ(poller.arms, 0);
  clock.AdvanceBy(1);
  reactor->RunOnce();
  EXPECT_EQ(poller.arms, 1);
  reactor->RemovePoller(poller);
}

// What comes later than the spin time is not worth polling for: half as long each time. What comes within it is: twice as
// long as that took, at most the spin time.
TEST(Poller, IsArmedSoonerWhereSpinningWasInVain) {
  ManualClock clock;
  Reactor::Options options;
  options.spin_ns = 1000;
  auto reactor = std::move(Reactor::Make(clock, options)).value();
  TestPoller poller;
  reactor->AddPoller(poller);
  const auto spins_for = [&] {
    uint64_t spun_ns = 0;
    for (const int arms = poller.arms; poller.arms == arms; ++spun_ns) {
      if (spun_ns > 0) clock.AdvanceBy(1);
      reactor->RunOnce();
    }
    return spun_ns - 1;
  };
  const auto wake_after = [&](uint64_t ns) {
    clock.AdvanceBy(ns);
    reactor->RefreshNow();
    reactor->Activate(poller);
  };
  EXPECT_EQ(spins_for(), 1000U);
  for (const uint64_t spin_ns : {500U, 250U, 125U, 62U}) {
    wake_after(2000);
    EXPECT_EQ(spins_for(), spin_ns);
  }
  wake_after(100 - 62);
  EXPECT_EQ(spins_for(), 200U);
  wake_after(1000 - 200);
  EXPECT_EQ(spins_for(), 1000U);
  for (int i = 0; i < 12; ++i) {
    wake_after(2000);
    spins_for();
  }
  EXPECT_TRUE(reactor->CanSleep()) << "armed in the turn in which it found nothing";
  wake_after(2000);
  EXPECT_EQ(spins_for(), 0U);
  reactor->RemovePoller(poller);
}

// Each of three pollers removes each of them from within its own Poll; each that is left is polled just once
// a turn.
TEST(Poller, MayRemoveAnyFromWithinPoll) {
  for (size_t actor = 0; actor < 3; ++actor) {
    for (size_t victim = 0; victim < 3; ++victim) {
      for (const bool worked : {false, true}) {
        SCOPED_TRACE(std::to_string(actor) + " removes " + std::to_string(victim));
        VirtualReactors reactors;
        std::unique_ptr<TestPoller> pollers[3];
        for (auto& poller : pollers) {
          poller = std::make_unique<TestPoller>();
          poller->can_arm = false;
          reactors[0].AddPoller(*poller);
        }
        pollers[actor]->on_poll = [&] {
          reactors[0].RemovePoller(*pollers[victim]);
          pollers[victim].reset();  // and destroys it, itself as well
          return worked;
        };
        reactors[0].RunOnce();
        for (size_t i = 0; i < 3; ++i) {
          if (i == victim) continue;
          EXPECT_EQ(pollers[i]->polls, 1);
          pollers[i]->on_poll = nullptr;
        }
        reactors[0].RunOnce();
        for (auto& poller : pollers) {
          if (poller == nullptr) continue;
          EXPECT_EQ(poller->polls, 2);
          reactors[0].RemovePoller(*poller);
        }
      }
    }
  }
}

TEST(Poller, MayAddAndActivateFromWithinPoll) {
  VirtualReactors reactors;
  TestPoller armed;
  TestPoller added;
  TestPoller actor;
  reactors[0].AddPoller(armed);
  reactors.RunUntilIdle();
  EXPECT_EQ(armed.arms, 1);
  int polls = 0;
  actor.on_poll = [&] {
    if (++polls > 1) return false;
    reactors[0].Activate(armed);
    reactors[0].AddPoller(added);
    return true;
  };
  reactors[0].AddPoller(actor);
  reactors.RunUntilIdle();
  EXPECT_EQ(armed.disarms, 1);
  EXPECT_EQ(armed.arms, 2);
  EXPECT_EQ(added.arms, 1);
  EXPECT_TRUE(reactors[0].CanSleep());
  for (TestPoller* poller : {&armed, &added, &actor}) reactors[0].RemovePoller(*poller);
}

TEST(Poller, MayDieWithinArm) {
  struct Dying : Poller {
    Dying(Reactor& r, std::unique_ptr<Dying>& s) : reactor(r), self(s) {}
    bool Poll() override { return false; }
    bool Arm() override {
      reactor.RemovePoller(*this);
      self.reset();
      return true;
    }
    Reactor& reactor;
    std::unique_ptr<Dying>& self;
  };
  VirtualReactors reactors;
  std::unique_ptr<Dying> poller;
  poller = std::make_unique<Dying>(reactors[0], poller);
  reactors[0].AddPoller(*poller);
  reactors.RunUntilIdle();
  EXPECT_EQ(poller, nullptr);
}

// ---- Watched descriptors

class Watched : public FdWatch {
 public:
  Watched() : FdWatch([](FdWatch& watch, uint32_t) { static_cast<Watched&>(watch).Happened(); }) {}
  void Signal() const {
    const uint64_t one = 1;
    ASSERT_EQ(write(fd.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  void Happened() {
    ++events;
    const auto now = on_event;
    if (now) now();
  }
  UniqueFd fd{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  std::function<void()> on_event;
  int events = 0;
};

TEST(FdWatch, TellsEachEventWithoutReadingAndWithTimeStandingStill) {
  VirtualReactors reactors;
  Watched watch;
  ASSERT_TRUE(watch.Start(reactors[0], watch.fd.get(), EPOLLIN));
  reactors.RunUntilIdle();
  for (int i = 1; i <= 3; ++i) {
    watch.Signal();
    reactors.RunUntilIdle();
    EXPECT_EQ(watch.events, i);
  }
  watch.Stop();
  watch.Signal();
  reactors.RunUntilIdle();
  EXPECT_EQ(watch.events, 3);
  ASSERT_TRUE(watch.Start(reactors[0], watch.fd.get(), EPOLLIN));  // ready already
  reactors.RunUntilIdle();
  EXPECT_EQ(watch.events, 4);
}

TEST(FdWatch, StoppedOnesOfTheSameBatchAreNotCalled) {
  VirtualReactors reactors;
  std::unique_ptr<Watched> watches[2];
  for (size_t i = 0; i < 2; ++i) {
    watches[i] = std::make_unique<Watched>();
    ASSERT_TRUE(watches[i]->Start(reactors[0], watches[i]->fd.get(), EPOLLIN));
  }
  reactors.RunUntilIdle();
  int called = 0;
  for (auto& watch : watches) {
    watch->on_event = [&] {
      ++called;
      for (auto& each : watches) each.reset();  // the other, and itself
    };
  }
  watches[0]->Signal();
  watches[1]->Signal();
  reactors.RunUntilIdle();
  EXPECT_EQ(called, 1);
}

TEST(FdWatch, RefusesWhatCannotBeWatched) {
  VirtualReactors reactors;
  Watched watch;
  const Status started = watch.Start(reactors[0], -1, EPOLLIN);
  ASSERT_FALSE(started.ok());
  EXPECT_FALSE(watch.watching());
}

}  // namespace
}  // namespace cleat::poller_test
