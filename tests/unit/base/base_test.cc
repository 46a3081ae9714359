// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace cleat::base_test {
namespace {

Result<std::unique_ptr<int>> Halve(int value) {
  if (value % 2 != 0) return Error(ErrorCode::kInvalidArgument, "odd");
  return std::make_unique<int>(value / 2);
}

TEST(Result, HoldsAValueOrAnError) {
  auto four = Halve(8);
  ASSERT_TRUE(four.ok());
  const std::unique_ptr<int> moved = std::move(four).value();
  EXPECT_EQ(*moved, 4);
  const auto odd = Halve(3);
  ASSERT_FALSE(odd.ok());
  EXPECT_EQ(odd.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(odd.error().message, "odd");
  EXPECT_DEATH((void)*odd, "check failed");
}

// Counts in `steps` how far it came.
Result<int> Quarter(int value, int& steps) {
  if (value > 0) CLEAT_TRY(Halve(value));
  ++steps;
  CLEAT_ASSIGN(const auto half, Halve(value));
  ++steps;
  int quarter = 0;
  {
    CLEAT_ASSIGN(auto last, Halve(*half));
    quarter = *last;
  }
  ++steps;
  CLEAT_ASSIGN(quarter, Result<int>(quarter));
  return quarter;
}

TEST(Result, MacrosReturnTheFirstErrorAndUnwrapValues) {
  int steps = 0;
  EXPECT_EQ(Quarter(8, steps).value(), 2);
  EXPECT_EQ(steps, 3);
  steps = 0;
  const auto first = Quarter(3, steps);
  ASSERT_FALSE(first.ok());
  EXPECT_EQ(first.error().message, "odd");
  EXPECT_EQ(steps, 0);
  EXPECT_FALSE(Quarter(-3, steps).ok());
  EXPECT_EQ(steps, 1);
  steps = 0;
  EXPECT_FALSE(Quarter(6, steps).ok());
  EXPECT_EQ(steps, 2);
}

Status Keeps(Result<std::unique_ptr<int>>& named) {
  CLEAT_TRY(named);
  return Ok{};
}

TEST(Result, TryLeavesANamedResultAsItIs) {
  auto four = Halve(8);
  EXPECT_TRUE(Keeps(four).ok());
  EXPECT_EQ(**four, 4);
  auto odd = Halve(3);
  for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(Keeps(odd).error().message, "odd") << turn;
}

TEST(Result, StatusIsOkUnlessItHasAnError) {
  const Status good;
  EXPECT_TRUE(good.ok());
  const Status bad = ErrnoError(ENOENT, "opening x");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(bad.error().message, "opening x: No such file or directory");
  EXPECT_EQ(ErrorCodeName(bad.error().code), "not_found");
}

TEST(Random, RepeatsFromASeedAndStaysInBounds) {
  Random a(7);
  Random b(7);
  Random other(8);
  EXPECT_NE(Random(7).Next(), other.Next());
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(a.Next(), b.Next());
    ASSERT_LT(a.Below(3), 3U);
    ASSERT_LT(b.Below(3), 3U);
    const uint64_t between = a.Between(10, 12);
    ASSERT_EQ(between, b.Between(10, 12));
    seen.insert(between);
  }
  EXPECT_EQ(seen, (std::set<uint64_t>{10, 11, 12}));
  EXPECT_EQ(a.Below(1), 0U);
  a.Between(0, UINT64_MAX);  // all values: no overflow
  EXPECT_EQ(a.Between(UINT64_MAX, UINT64_MAX), UINT64_MAX);
  EXPECT_FALSE(a.Chance(0, 10));
  EXPECT_TRUE(a.Chance(10, 10));
}

TEST(Clock, ManualStandsStillAndNeverGoesBack) {
  ManualClock clock(100);
  EXPECT_EQ(clock.NowNs(), 100U);
  clock.AdvanceBy(5);
  clock.AdvanceTo(105);
  EXPECT_EQ(clock.NowNs(), 105U);
  EXPECT_DEATH(clock.AdvanceTo(104), "check failed");
  const MonotonicClock real;
  const uint64_t first = real.NowNs();
  EXPECT_GE(real.NowNs(), first);
}

bool IsOpen(int fd) {
  return fcntl(fd, F_GETFD) >= 0;
}

TEST(UniqueFd, ClosesOnceAndDuplicates) {
  UniqueFd a(open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(a);
  const int number = a.get();
  UniqueFd b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move)
  const UniqueFd copy = b.Duplicate();
  ASSERT_TRUE(copy);
  EXPECT_NE(copy.get(), number);
  EXPECT_NE(fcntl(copy.get(), F_GETFD) & FD_CLOEXEC, 0);
  b = UniqueFd();
  EXPECT_FALSE(IsOpen(number));
  EXPECT_TRUE(IsOpen(copy.get()));
  EXPECT_FALSE(UniqueFd().Duplicate());
}

TEST(Log, RefusesAnUnknownLevel) {
  const Status bad = log::Init("test", "loud");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("'loud'"), std::string::npos);
  EXPECT_TRUE(log::Init("test", "error").ok());
}

}  // namespace
}  // namespace cleat::base_test
