// SPDX-License-Identifier: Apache-2.0
#include "nvmf/login/login_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cleat::modules::login_line_test {
namespace {

// A line whose one thread does as it is told.
class LoginLineTest : public testing::Test {
 protected:
  nvmf::LoginPlace Enter(const std::string& subsystem, const std::string& login, nvmf::LoginPlace place = 0) {
    return line_.Enter(subsystem, place, [this, login] { computed_.push_back(login); });
  }
  void Turn() {
    const auto turn = std::move(posted_.front());
    posted_.pop_front();
    turn();
  }
  void TurnAll() {
    while (!posted_.empty()) Turn();
  }
  using Logins = std::vector<std::string>;

  std::deque<std::function<void()>> posted_;
  Logins computed_;
  nvmf::LoginLine line_{[this](std::function<void()> turn) { posted_.push_back(std::move(turn)); }};
};

TEST_F(LoginLineTest, ASubsystemWithManyQueuesDelaysAnotherOneByOneJob) {
  constexpr size_t kMany = 128;
  for (size_t i = 0; i < kMany; ++i) Enter("a", "a");
  Turn();
  Enter("b", "b1");
  Enter("b", "b2");
  for (int i = 0; i < 4; ++i) Turn();
  EXPECT_EQ(computed_, (Logins{"a", "a", "b1", "a", "b2"}));
  TurnAll();
  EXPECT_EQ(computed_.size(), kMany + 2);
}

TEST_F(LoginLineTest, ASubsystemHasOneLoginComputedAtATime) {
  for (const char* login : {"1", "2", "3"}) Enter("a", login);
  EXPECT_EQ(posted_.size(), 1U);
  const auto under_way = std::move(posted_.front());
  posted_.pop_front();
  line_.Enter("b", 0, [&] {
    Enter("a", "4");
    EXPECT_EQ(posted_.size(), 0U) << "a thread has taken what was posted of it";
  });
  Turn();
  under_way();
  TurnAll();
  EXPECT_EQ(computed_, (Logins{"1", "2", "3", "4"}));
}

TEST_F(LoginLineTest, ALoginThatEntersWhileItsSubsystemComputesComesAfterwards) {
  line_.Enter("a", 0, [this] {
    Enter("a", "within");
    EXPECT_TRUE(posted_.empty());
  });
  TurnAll();
  EXPECT_EQ(computed_, Logins{"within"});
}

TEST_F(LoginLineTest, ALoginThatComesBackGoesToThePlaceThatItHad) {
  Enter("a", "1");
  const nvmf::LoginPlace second = Enter("a", "2");
  Enter("a", "3");
  ASSERT_TRUE(line_.Leave("a", second));
  Turn();
  EXPECT_EQ(Enter("a", "2 again", second), second);
  TurnAll();
  EXPECT_EQ(computed_, (Logins{"1", "2 again", "3"}));
}

TEST_F(LoginLineTest, ALoginThatHasLeftIsNotComputed) {
  const nvmf::LoginPlace first = Enter("a", "1");
  EXPECT_FALSE(line_.Leave("b", first));
  EXPECT_TRUE(line_.Leave("a", first));
  EXPECT_FALSE(line_.Leave("a", first));
  Enter("a", "2");
  EXPECT_EQ(posted_.size(), 1U) << "the turn of the one that has left is there still";
  TurnAll();
  EXPECT_EQ(computed_, Logins{"2"});
  EXPECT_TRUE(line_.Leave("a", Enter("a", "3")));
  TurnAll();
  EXPECT_EQ(computed_, Logins{"2"});
}

TEST_F(LoginLineTest, ALoginWhoseTurnHasComeCanNotLeave) {
  nvmf::LoginPlace place = 0;
  bool left = true;
  place = line_.Enter("a", 0, [&] { left = line_.Leave("a", place); });
  TurnAll();
  EXPECT_FALSE(left);
}

TEST_F(LoginLineTest, APathsPauseGrowsWithEachLoginThatComesToNothing) {
  EXPECT_EQ(line_.PauseNs("p"), 0U);
  uint64_t before_ns = 0;
  for (int i = 0; i < 40; ++i) {
    line_.Failed("p");
    const uint64_t pause_ns = line_.PauseNs("p");
    EXPECT_EQ(pause_ns, before_ns == 0 ? nvmf::LoginLine::kPauseMinNs
                                       : std::min(2 * before_ns, nvmf::LoginLine::kPauseMaxNs));
    before_ns = pause_ns;
  }
  EXPECT_EQ(before_ns, nvmf::LoginLine::kPauseMaxNs);
  EXPECT_EQ(line_.PauseNs("another"), 0U);
}

TEST_F(LoginLineTest, ALoginThatSucceedsForgivesSomeOfThoseThatFailed) {
  for (int i = 0; i < 40; ++i) line_.Failed("p");
  line_.Succeeded("p");
  EXPECT_EQ(line_.PauseNs("p"), 4 * nvmf::LoginLine::kPauseMinNs);
  line_.Succeeded("p");
  EXPECT_EQ(line_.PauseNs("p"), nvmf::LoginLine::kPauseMinNs);
  line_.Succeeded("p");
  EXPECT_EQ(line_.PauseNs("p"), 0U);
  line_.Succeeded("p");
  line_.Failed("p");
  line_.Forget("p");
  EXPECT_EQ(line_.PauseNs("p"), 0U);
}

TEST(LoginLineOnThreads, EachLoginIsComputedOnceOrLeavesAndNoneBesideAnotherOfItsSubsystem) {
  constexpr size_t kSubsystems = 3;
  constexpr int kLogins = 500;
  std::atomic<int> computed{0};
  std::atomic<int> left{0};
  std::atomic<int> beside{0};
  std::array<std::atomic<int>, kSubsystems> under_way{};
  {
    nvmf::LoginLine line(2);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 2 * kSubsystems; ++t) {
      threads.emplace_back([&, which = t % kSubsystems] {
        const std::string subsystem = std::to_string(which);
        for (int i = 0; i < kLogins; ++i) {
          const nvmf::LoginPlace place = line.Enter(subsystem, 0, [&, which] {
            if (++under_way[which] > 1) ++beside;
            ++computed;
            --under_way[which];
          });
          if (i % 3 == 0 && line.Leave(subsystem, place)) ++left;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    while (computed + left < static_cast<int>(2 * kSubsystems) * kLogins) std::this_thread::yield();
  }
  EXPECT_EQ(computed + left, static_cast<int>(2 * kSubsystems) * kLogins);
  EXPECT_EQ(beside, 0);
}

TEST(LoginLineOnThreads, WithoutThreadsALoginIsComputedAsItEnters) {
  nvmf::LoginLine line(0);
  bool computed = false;
  line.Enter("a", 0, [&] { computed = true; });
  EXPECT_TRUE(computed);
}

}  // namespace
}  // namespace cleat::modules::login_line_test
