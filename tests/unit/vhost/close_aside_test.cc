// SPDX-License-Identifier: Apache-2.0
// Files that are closed on threads, when none can be made: they wait, and so does nobody else. In virtual time, but for the threads.
#include "vhost/close_aside.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "host.h"

namespace cleat::vhost::test::close_aside_test {
namespace {

class CloseAsideTest : public testing::Test {
 protected:
  Status Start(std::function<void()> main) {
    ++asked_;
    if (no_threads_) return ErrnoError(EAGAIN, "making a thread");
    threads_.emplace_back(std::move(main));
    return Ok{};
  }
  ~CloseAsideTest() override {
    peers_.clear();
    aside_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  // A file of a further peer's. The other end shows that it is closed.
  void CloseOne() {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    other_ends_.emplace_back(ends[0]);
    peers_.push_back(std::make_unique<PeerFiles>(*aside_, [this] { ++told_; }));
    peers_.back()->Close(UniqueFd(ends[1]));
  }
  bool IsClosed(size_t file) {
    char byte = 0;
    return read(other_ends_[file].get(), &byte, 1) == 0;
  }
  bool RunUntil(const std::function<bool()>& done) {
    return WaitFor([&] {
      while (control_->RunOnce()) {
      }
      return done();
    });
  }

  ManualClock clock_;
  std::unique_ptr<Reactor> control_ = Reactor::Make(clock_, Reactor::Options{}).value();
  bool no_threads_ = false;
  int asked_ = 0;
  int told_ = 0;
  std::vector<std::thread> threads_;
  std::vector<UniqueFd> other_ends_;
  std::unique_ptr<CloseAside> aside_ = std::make_unique<CloseAside>(
      *control_, [this](std::function<void()> main) { return Start(std::move(main)); });
  std::vector<std::unique_ptr<PeerFiles>> peers_;
};

TEST_F(CloseAsideTest, WithoutAThreadFilesWaitForOne) {
  constexpr size_t kPeers = 3;
  no_threads_ = true;
  for (size_t i = 0; i < kPeers; ++i) CloseOne();
  clock_.AdvanceBy(CloseAside::kThreadRetryNs + kNsPerMs);
  const int asked_before = asked_;
  ASSERT_TRUE(RunUntil([&] { return asked_ > asked_before; })) << "it is tried again by itself";
  EXPECT_EQ(aside_->closing(), kPeers);
  for (size_t i = 0; i < kPeers; ++i) EXPECT_FALSE(IsClosed(i));
  no_threads_ = false;
  clock_.AdvanceBy(CloseAside::kThreadRetryNs + kNsPerMs);
  EXPECT_TRUE(RunUntil([&] { return told_ == kPeers; }));
  EXPECT_EQ(aside_->closing(), 0U);
  for (size_t i = 0; i < kPeers; ++i) EXPECT_TRUE(IsClosed(i));
  EXPECT_EQ(threads_.size(), kPeers) << "one that hangs keeps no other peer's files";
}

TEST_F(CloseAsideTest, TheNextFileAsksForAThreadAtOnce) {
  no_threads_ = true;
  CloseOne();
  no_threads_ = false;
  CloseOne();
  EXPECT_TRUE(RunUntil([&] { return told_ == 2; }));
  EXPECT_TRUE(IsClosed(0));
  EXPECT_TRUE(IsClosed(1));
}

}  // namespace
}  // namespace cleat::vhost::test::close_aside_test
