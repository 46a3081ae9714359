// SPDX-License-Identifier: Apache-2.0
// When a request may be made, and when it is made again, in virtual time.
#include "control/reconcile/engines/pending_requests.h"

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

namespace cleat::control::pending_requests_test {
namespace {

constexpr BackoffLimits kLimits{.min_ns = 100, .max_ns = 1000};
const DiskId kDisk{"d"};
const DiskId kOther{"e"};

TEST(PendingRequestsTest, OneAtATimeForAResource) {
  PendingRequests<DiskId> requests;
  EXPECT_TRUE(requests.Ready(kDisk, 0));
  requests.Begin(kDisk);
  EXPECT_TRUE(requests.IsBusy(kDisk));
  EXPECT_FALSE(requests.Ready(kDisk, ~uint64_t{0}));
  EXPECT_TRUE(requests.Ready(kOther, 0));
  EXPECT_TRUE(requests.AnyBusy());
  requests.Done(kDisk);
  EXPECT_TRUE(requests.Ready(kDisk, 0));
  EXPECT_FALSE(requests.AnyBusy());
}

TEST(PendingRequestsTest, WaitsTwiceAsLongAfterEachFailureUpToItsLimit) {
  PendingRequests<DiskId> requests;
  std::vector<uint64_t> waits;
  for (int i = 0; i < 6; ++i) {
    requests.Begin(kDisk);
    waits.push_back(requests.Fail(kDisk, 5000, kLimits));
    EXPECT_FALSE(requests.IsBusy(kDisk));
    EXPECT_FALSE(requests.Ready(kDisk, 5000 + waits.back() - 1));
    EXPECT_TRUE(requests.Ready(kDisk, 5000 + waits.back()));
  }
  EXPECT_EQ(waits, (std::vector<uint64_t>{100, 200, 400, 800, 1000, 1000}));
  EXPECT_EQ(requests.Failures(kDisk), 6U);
}

TEST(PendingRequestsTest, ItsLimitHoldsHoweverOftenItFails) {
  PendingRequest request;
  for (int i = 0; i < 100; ++i) EXPECT_LE(request.Fail(0, kLimits), kLimits.max_ns);
}

TEST(PendingRequestsTest, ASuccessForgetsFailures) {
  PendingRequests<DiskId> requests;
  requests.Fail(kDisk, 0, kLimits);
  requests.Fail(kDisk, 0, kLimits);
  requests.Done(kDisk);
  EXPECT_EQ(requests.Failures(kDisk), 0U);
  EXPECT_EQ(requests.Fail(kDisk, 0, kLimits), kLimits.min_ns);
}

TEST(PendingRequestsTest, AnEndLeavesFailuresAsTheyWere) {
  PendingRequests<DiskId> requests;
  requests.Fail(kDisk, 0, kLimits);
  requests.Begin(kDisk);
  requests.End(kDisk);
  EXPECT_EQ(requests.Failures(kDisk), 1U);
  EXPECT_FALSE(requests.Ready(kDisk, kLimits.min_ns - 1));
  requests.End(kOther);
  EXPECT_TRUE(requests.Ready(kOther, 0));
}

TEST(PendingRequestsTest, OneThatNeedNotWaitKeepsItsFailures) {
  PendingRequests<DiskId> requests;
  requests.Fail(kDisk, 0, kLimits);
  requests.RetryNow(kDisk);
  EXPECT_TRUE(requests.Ready(kDisk, 0));
  EXPECT_EQ(requests.Fail(kDisk, 0, kLimits), 2 * kLimits.min_ns);
}

TEST(RetryQueueTest, GivesWhatIsDueInOrderAndNothingElse) {
  RetryQueue queue;
  EXPECT_EQ(queue.next_ns(), RetryQueue::kNever);
  queue.Add(30, ControllerId{"a"});
  queue.Add(10, DiskId{"a"});
  queue.Add(20, GroupId{"a"});
  queue.Add(20, ClusterId{"a"});
  EXPECT_EQ(queue.next_ns(), 10U);
  EXPECT_EQ(queue.TakeDue(9), std::nullopt);
  EXPECT_EQ(queue.TakeDue(20), ResourceId(DiskId{"a"}));
  EXPECT_EQ(queue.TakeDue(20), ResourceId(GroupId{"a"}));
  EXPECT_EQ(queue.TakeDue(20), ResourceId(ClusterId{"a"}));
  EXPECT_EQ(queue.TakeDue(20), std::nullopt);
  EXPECT_EQ(queue.next_ns(), 30U);
}

}  // namespace
}  // namespace cleat::control::pending_requests_test
