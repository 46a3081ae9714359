// SPDX-License-Identifier: Apache-2.0
#include "reactor/stall_breaker.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>

#include "base/unique_fd.h"

namespace cleat::stall_breaker_test {
namespace {

constexpr uint64_t kFull = UINT64_MAX - 1;

void Write(const UniqueFd& eventfd, uint64_t count) {
  ASSERT_EQ(write(eventfd.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
}

// A reactor with its thread, watched.
class StallBreakerTest : public testing::Test {
 protected:
  StallBreakerTest() : reactor_(Reactor::Make(clock_, {}).value()) {
    std::promise<pid_t> tid;
    thread_ = std::thread([&] {
      tid.set_value(gettid());
      reactor_->Run();
    });
    EXPECT_TRUE(breaker_.Start({{reactor_.get(), tid.get_future().get()}}, 1).ok());
  }
  ~StallBreakerTest() override {
    breaker_.Stop();
    reactor_->Stop();
    thread_.join();
  }

  // Runs on the reactor, in one turn.
  template <typename Function>
  void Call(Function function) {
    std::promise<void> done;
    reactor_->PostCall([&] {
      function();
      done.set_value();
    });
    done.get_future().get();
  }

  // What the reactor's write to it ends with.
  int ErrorOfSignal(const UniqueFd& eventfd) {
    int error = 0;
    Call([&] {
      const uint64_t one = 1;
      error = write(eventfd.get(), &one, sizeof one) < 0 ? errno : 0;
    });
    return error;
  }

  const MonotonicClock clock_;
  const std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
  StallBreaker breaker_;
};

TEST_F(StallBreakerTest, EndsAWriteThatWouldWaitForEver) {
  const UniqueFd full(eventfd(0, EFD_CLOEXEC));
  Write(full, kFull);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ErrorOfSignal(full), EINTR);  // every time
  // The breaker's thread counts an interruption after it has sent the signal.
  while (breaker_.interruptions() < 3) std::this_thread::yield();
}

// Who lets it go before anybody looks twice would have the reactor wait for ever all the same.
TEST_F(StallBreakerTest, MeetsOneThatWaitsForShortWhilesOnly) {
  constexpr int kWaitsMax = 1000;  // of 5 ms: some hundred looks
  const UniqueFd full(eventfd(0, EFD_CLOEXEC));
  int waits = 0;
  int error = 0;
  for (; waits < kWaitsMax; ++waits) {
    Write(full, kFull);
    std::thread releasing([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      uint64_t count = 0;
      EXPECT_EQ(read(full.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
    });
    error = ErrorOfSignal(full);
    releasing.join();
    if (error != 0) break;
    uint64_t count = 0;
    ASSERT_EQ(read(full.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
  }
  EXPECT_EQ(error, EINTR) << "never met in " << waits << " waits";
}

TEST_F(StallBreakerTest, LeavesAReactorAloneThatSleeps) {
  while (!reactor_->asleep()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::nanoseconds(10 * StallBreaker::kLookMaxNs));
  EXPECT_TRUE(reactor_->asleep());
  EXPECT_EQ(breaker_.interruptions(), 0U);
}

// Its registers are nobody's business.
TEST_F(StallBreakerTest, LeavesALongTurnAloneThatComputes) {
  const uint64_t end_ns = clock_.NowNs() + 10 * StallBreaker::kLookMaxNs;
  uint64_t rounds = 0;
  Call([&] {
    while (clock_.NowNs() < end_ns) ++rounds;
  });
  EXPECT_GT(rounds, 0U);
  EXPECT_EQ(breaker_.interruptions(), 0U);
}

}  // namespace
}  // namespace cleat::stall_breaker_test
