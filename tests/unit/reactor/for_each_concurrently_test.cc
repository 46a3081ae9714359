// SPDX-License-Identifier: Apache-2.0
#include "reactor/for_each_concurrently.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::for_each_concurrently_test {
namespace {

using test::VirtualReactors;

// What one element's task does: sleeps, then ends well or not.
struct Step {
  uint64_t ms = 0;
  std::string error = {};
  bool ended = false;
};

Status StatusOf(const Step& step) {
  if (step.error.empty()) return Ok{};
  return Error(ErrorCode::kInternal, step.error);
}

Task<Status> RunAll(Reactor& reactor, std::vector<Step>& steps) {
  const auto run = [&reactor](Step& step) -> Task<Status> {
    if (step.ms != 0) co_await reactor.SleepFor(step.ms * kNsPerMs);
    step.ended = true;
    co_return StatusOf(step);
  };
  auto all = ForEachConcurrently(reactor, steps, run);
  Status status = co_await std::move(all);
  co_return status;
}

TEST(ForEachConcurrently, TakesAsLongAsTheSlowest) {
  VirtualReactors reactors;
  std::vector<Step> steps = {{.ms = 30}, {.ms = 10}, {.ms = 0}, {.ms = 20}};
  const uint64_t before_ns = reactors.clock().NowNs();
  EXPECT_TRUE(reactors.Await(RunAll(reactors[0], steps)).ok());
  EXPECT_GE(reactors.clock().NowNs() - before_ns, 30 * kNsPerMs);
  EXPECT_LT(reactors.clock().NowNs() - before_ns, 60 * kNsPerMs);
  for (const Step& step : steps) EXPECT_TRUE(step.ended);
}

TEST(ForEachConcurrently, OfSeveralErrorsTheFirstElementsIsReturnedAndTheOthersRunOn) {
  VirtualReactors reactors;
  std::vector<Step> steps = {
      {.ms = 5}, {.ms = 30, .error = "second"}, {.ms = 0, .error = "third"}, {.ms = 40}};
  const Status status = reactors.Await(RunAll(reactors[0], steps));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "second");
  for (const Step& step : steps) EXPECT_TRUE(step.ended);
}

TEST(ForEachConcurrently, NothingOfNothing) {
  VirtualReactors reactors;
  std::vector<Step> none;
  EXPECT_TRUE(reactors.Await(RunAll(reactors[0], none)).ok());
}

TEST(ForEachConcurrently, StartsInOrderAndAtOnce) {
  VirtualReactors reactors;
  std::vector<int> started;
  std::vector<int> numbers = {1, 2, 3};
  const auto start = [&](const int& number) -> Task<void> {
    started.push_back(number);
    co_await reactors[0].SleepFor(10);
  };
  const auto all = [&]() -> Task<int> {
    auto starting = ForEachConcurrently(reactors[0], numbers, start);
    EXPECT_TRUE(started.empty());  // a task is lazy
    co_await std::move(starting);
    co_return 0;
  };
  EXPECT_EQ(reactors.Await(all()), 0);
  EXPECT_EQ(started, numbers);
}

TEST(ForEachConcurrently, EndsWhenItsTasksAreCancelled) {
  VirtualReactors reactors;
  CancelToken cancel;
  Event never(reactors[0]);
  auto held = std::make_shared<int>(0);
  bool ended = false;
  const auto run = [&]() -> Task<void> {
    std::vector<int> numbers = {1, 2, 3};
    // Parameters of the tasks live until each has ended, and no longer.
    const auto wait = [&](int /*number*/) -> Task<Status> {
      const std::shared_ptr<int> own = held;
      const bool happened = co_await never.Wait(&cancel);
      if (!happened) co_return Error(ErrorCode::kCancelled, "cancelled");
      co_return Ok{};
    };
    auto waiting = ForEachConcurrently(reactors[0], numbers, wait);
    const Status status = co_await std::move(waiting);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(held.use_count(), 1);
    ended = true;
  };
  Spawn(run());
  reactors.RunUntilIdle();
  EXPECT_FALSE(ended);
  EXPECT_EQ(held.use_count(), 4);
  cancel.Cancel();
  reactors.RunUntilIdle();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace cleat::for_each_concurrently_test
