// SPDX-License-Identifier: Apache-2.0
#include "reactor/stall_breaker.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>

#include "base/unique_fd.h"

namespace cleat {
namespace {

// A reactor with its thread, watched.
class StallBreakerTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = Reactor::Make(clock_, {});
    ASSERT_TRUE(made.ok());
    reactor_ = std::move(made).value();
    thread_ = std::thread([this] { reactor_->Run(); });
    ASSERT_TRUE(breaker_.Start({{reactor_.get(), thread_.native_handle()}}).ok());
  }

  void TearDown() override {
    breaker_.Stop();
    reactor_->Stop();
    thread_.join();
  }

  // Runs on the reactor, in one turn.
  template <typename Function>
  void Call(Function function) {
    std::atomic<bool> done{false};
    reactor_->PostCall([&] {
      function();
      done = true;
      done.notify_one();
    });
    done.wait(false);
  }

  const MonotonicClock clock_;
  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
  StallBreaker breaker_;
};

TEST_F(StallBreakerTest, EndsAWriteThatWouldWaitForEver) {
  const UniqueFd full(eventfd(0, EFD_CLOEXEC));
  const uint64_t most = UINT64_MAX - 1;
  ASSERT_EQ(write(full.get(), &most, sizeof most), static_cast<ssize_t>(sizeof most));
  for (int i = 0; i < 3; ++i) {  // every time
    int error = 0;
    Call([&] {
      const uint64_t one = 1;
      error = write(full.get(), &one, sizeof one) < 0 ? errno : 0;
    });
    EXPECT_EQ(error, EINTR);
  }
  EXPECT_GE(breaker_.interruptions(), 3U);
}

TEST_F(StallBreakerTest, LeavesAReactorAloneThatSleepsOrTurns) {
  Call([] {});
  const uint64_t before = breaker_.interruptions();
  std::this_thread::sleep_for(std::chrono::nanoseconds(10 * StallBreaker::kLookNs));
  EXPECT_TRUE(reactor_->asleep());
  EXPECT_EQ(breaker_.interruptions(), before);
}

// A turn that computes for long is disturbed by nothing but the signal.
TEST_F(StallBreakerTest, ALongTurnGoesOn) {
  const uint64_t before = breaker_.interruptions();
  const uint64_t end_ns = clock_.NowNs() + 10 * StallBreaker::kLookNs;
  uint64_t rounds = 0;
  Call([&] {
    while (clock_.NowNs() < end_ns || breaker_.interruptions() == before) ++rounds;
  });
  EXPECT_GT(rounds, 0U);
  Call([] {});  // and it still answers
}

}  // namespace
}  // namespace cleat
