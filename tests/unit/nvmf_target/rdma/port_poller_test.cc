// SPDX-License-Identifier: Apache-2.0
// When a port of an RDMA adapter is polled, and when it sleeps.
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "nvmf/rdma/port_poller.h"
#include "reactor/reactor.h"

namespace cleat::nvmf::port_poller_test {
namespace {

class Completions final : public rdma::CompletionQueue {
 public:
  uint32_t Poll(std::span<rdma::Completion> /*completions*/) override { return std::exchange(waiting, 0); }
  Status Arm() override {
    ++arms;
    if (fails) return Error(ErrorCode::kUnavailable, "gone");
    return {};
  }
  int descriptor() const override { return event_.get(); }
  void TakeEvents() override {
    eventfd_t value = 0;
    (void)eventfd_read(event_.get(), &value);
  }
  void Come() {
    ++waiting;
    (void)eventfd_write(event_.get(), 1);
  }

  uint32_t waiting = 0;
  uint32_t arms = 0;
  bool fails = false;

 private:
  const UniqueFd event_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
};

class Port final : public RdmaPortPoller {
 public:
  Port(Reactor& reactor, Completions& completions)
      : RdmaPortPoller(reactor, [this] { ++failures; }), completions_(completions) {
    SetCompletions(completions, 1);
  }
  bool Poll() override {
    ++polls;
    if (on_poll) on_poll();
    return Count(completions_.Poll({}));
  }

  uint32_t polls = 0;
  uint32_t failures = 0;
  std::function<void()> on_poll;

 private:
  Completions& completions_;
};

class RdmaPortPollerTest : public testing::Test {
 protected:
  RdmaPortPollerTest() { EXPECT_TRUE(port_.Start().ok()); }
  ~RdmaPortPollerTest() override {
    port_.on_poll = nullptr;
    port_.Stop();
  }
  void Turns(int count) {
    for (int turn = 0; turn < count; ++turn) {
      clock_.AdvanceBy(kNsPerMs);
      reactor_->RunOnce();
    }
  }
  // Until it sleeps.
  void UntilAsleep() {
    for (int turn = 0; turn < 1000 && !reactor_->CanSleep(); ++turn) Turns(1);
    ASSERT_TRUE(reactor_->CanSleep());
  }

  ManualClock clock_;
  std::unique_ptr<Reactor> reactor_ = std::move(Reactor::Make(clock_, {})).value();
  Completions completions_;
  Port port_{*reactor_, completions_};
};

TEST_F(RdmaPortPollerTest, SleepsUntilACompletionComesOrItIsWoken) {
  UntilAsleep();
  const uint32_t polls = port_.polls;
  Turns(10);
  EXPECT_EQ(port_.polls, polls);
  completions_.Come();
  Turns(2);
  EXPECT_GT(port_.polls, polls);
  EXPECT_EQ(completions_.waiting, 0U);
  UntilAsleep();
  const uint32_t before = port_.polls;
  port_.Wake();
  Turns(1);
  EXPECT_GT(port_.polls, before);
}

TEST_F(RdmaPortPollerTest, WhatIsWokenWithinItsLastLookIsPolledAgain) {
  UntilAsleep();
  const uint32_t arms = completions_.arms;
  uint32_t polls_when_woken = 0;
  port_.on_poll = [&] {
    if (completions_.arms == arms || polls_when_woken > 0) return;
    polls_when_woken = port_.polls;
    port_.Wake();
  };
  port_.Wake();
  UntilAsleep();
  ASSERT_GT(polls_when_woken, 0U);
  EXPECT_GT(port_.polls, polls_when_woken);
}

TEST_F(RdmaPortPollerTest, AnAdapterThatCannotBeArmedHasFailedOnce) {
  completions_.fails = true;
  UntilAsleep();
  port_.Wake();
  UntilAsleep();
  EXPECT_EQ(port_.failures, 1U);
}

}  // namespace
}  // namespace cleat::nvmf::port_poller_test
