// SPDX-License-Identifier: Apache-2.0
// Calls that come together share a commit, and each hears what became of its own.
#include "control/state/writes/group_commit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace cleat::control::group_commit_test {
namespace {

constexpr int kFailing = 1000;  // a commit with this row fails

// Holds the first commit up until so many wait behind it; keeps what was committed together.
class GroupCommitTest : public testing::Test {
 protected:
  void WriteTogether(const std::vector<int>& rows) {
    std::vector<std::future<Status>> calls;
    for (const int row : rows) {
      calls.push_back(std::async(std::launch::async, [this, row] { return group_.Write(row); }));
      // The first one is being written, the others wait, before the next comes: in this order.
      const size_t waiting = calls.size() - 1;
      while (!begun_ || group_.waiting() < waiting) std::this_thread::yield();
    }
    go_.set_value();
    for (auto& call : calls) answers_.push_back(call.get());
  }

  Status CommitRows(std::span<const int* const> rows) {
    if (!begun_.exchange(true)) go_.get_future().wait();
    std::vector<int> values;
    for (const int* row : rows) values.push_back(*row);
    commits_.push_back(values);
    const bool fails = std::ranges::find(values, kFailing) != values.end();
    return fails ? Status(Error(ErrorCode::kUnavailable, "no")) : Status(Ok{});
  }

  std::atomic<bool> begun_ = false;
  std::promise<void> go_;
  std::vector<std::vector<int>> commits_;
  std::vector<Status> answers_;
  GroupCommit<int> group_{[this](std::span<const int* const> rows) { return CommitRows(rows); }};
};

TEST_F(GroupCommitTest, WhoComesDuringACommitSharesTheNextOne) {
  WriteTogether({1, 2, 3, 4, 5});
  EXPECT_EQ(commits_, (std::vector<std::vector<int>>{{1}, {2, 3, 4, 5}}));
  for (const Status& answer : answers_) EXPECT_TRUE(answer.ok());
  EXPECT_TRUE(group_.Write(6).ok()) << "and nobody is left waiting for a turn";
  EXPECT_EQ(commits_.size(), 3U);
}

TEST_F(GroupCommitTest, WhatCantBeWrittenFailsAlone) {
  WriteTogether({1, 2, kFailing, 3});
  ASSERT_EQ(answers_.size(), 4U);
  for (const size_t fine : {0, 1, 3}) EXPECT_TRUE(answers_[fine].ok());
  EXPECT_FALSE(answers_[2].ok());
  EXPECT_TRUE(group_.Write(4).ok());
}

TEST_F(GroupCommitTest, ACommitHasALimit) {
  std::vector<int> rows(GroupCommit<int>::kCallsMax + 2, 7);
  WriteTogether(rows);
  ASSERT_EQ(commits_.size(), 3U);
  EXPECT_EQ(commits_[1].size(), GroupCommit<int>::kCallsMax);
  EXPECT_EQ(commits_[2].size(), 1U);
}

}  // namespace
}  // namespace cleat::control::group_commit_test
