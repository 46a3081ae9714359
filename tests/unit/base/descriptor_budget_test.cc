// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_budget.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <utility>
#include <vector>

namespace cleat::descriptor_budget_test {
namespace {

TEST(DescriptorBudget, GivesWhatIsLeftAndTakesItBack) {
  DescriptorBudget budget(100, 30);
  EXPECT_EQ(budget.left(), 70U);
  {
    auto first = budget.Reserve(40, "controllers/a");
    ASSERT_TRUE(first.ok());
    EXPECT_FALSE(budget.Reserve(31, "controllers/b").ok());
    auto second = budget.Reserve(30, "controllers/b");
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(budget.left(), 0U);
    EXPECT_TRUE(budget.Reserve(0, "disks/null").ok());
  }
  EXPECT_EQ(budget.left(), 70U);
  EXPECT_EQ(budget.reserved(), 0U);
}

TEST(DescriptorBudget, ARefusalSaysWhoTheNumbersAndTheNextStep) {
  DescriptorBudget budget(100, 30);
  const auto held = budget.Reserve(60, "controllers/a");
  const auto refused = budget.Reserve(45, "controllers/b");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(refused.error().message,
            "controllers/b: up to 45 more file descriptors are needed for it, and 10 are left: of the 100 "
            "that this "
            "process may open (RLIMIT_NOFILE), 30 are its own and 60 are reserved for what it serves; raise "
            "LimitNOFILE= "
            "of its service, or serve less with it");
}

TEST(DescriptorBudget, AReservationMovesAndIsGivenBackOnce) {
  DescriptorBudget budget(100, 0);
  DescriptorBudget::Reservation kept;
  {
    auto made = budget.Reserve(10, "a");
    ASSERT_TRUE(made.ok());
    kept = std::move(*made);
  }
  EXPECT_EQ(budget.reserved(), 10U);
  auto other = budget.Reserve(20, "b");
  ASSERT_TRUE(other.ok());
  kept = std::move(*other);
  EXPECT_EQ(budget.reserved(), 20U);
  kept = {};
  EXPECT_EQ(budget.reserved(), 0U);
}

TEST(DescriptorBudget, AProcessWithLessThanItsOwnHasNothingLeft) {
  DescriptorBudget budget(100, 300);
  EXPECT_EQ(budget.left(), 0U);
  EXPECT_FALSE(budget.Reserve(1, "a").ok());
}

TEST(DescriptorBudget, OfThisProcessIsByItsSoftLimit) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 900;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const DescriptorBudget budget = DescriptorBudget::OfProcess();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(budget.left(), 900 - DescriptorBudget::kTransient);
  EXPECT_GT(budget.left(), 0U);
}

}  // namespace
}  // namespace cleat::descriptor_budget_test
