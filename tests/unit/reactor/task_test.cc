// SPDX-License-Identifier: Apache-2.0
#include "reactor/task.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/log_request.h"
#include "base/result.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::task_test {
namespace {

using test::VirtualReactors;

Task<int> Value(int value) {
  co_return value;
}
Task<std::unique_ptr<int>> MoveOnly(std::unique_ptr<int> value) {
  co_return value;
}
Task<Result<std::string>> Fails() {
  co_return Error(ErrorCode::kNotFound, "no");
}
Task<void> Nothing() {
  co_return;
}

Task<int> Sum() {
  auto first = Value(1);
  const int a = co_await std::move(first);
  auto second = MoveOnly(std::make_unique<int>(20));
  const std::unique_ptr<int> b = co_await std::move(second);
  auto third = Fails();
  const auto c = co_await std::move(third);
  auto fourth = Nothing();
  co_await fourth;
  co_return a + *b + (c.ok() ? 0 : 300);
}

TEST(Task, CarriesValuesErrorsAndMoveOnlyThings) {
  VirtualReactors reactors;
  EXPECT_EQ(reactors.Await(Sum()), 321);
}

TEST(Task, IsLazyAndMayBeDropped) {
  auto alive = std::make_shared<int>(1);
  bool ran = false;
  {
    auto body = [](std::shared_ptr<int> /*held*/, bool& flag) -> Task<void> {
      flag = true;
      co_return;
    };
    const auto task = body(alive, ran);
    EXPECT_EQ(alive.use_count(), 2);
  }
  EXPECT_EQ(alive.use_count(), 1);
  EXPECT_FALSE(ran);
}

// ---- Requests (base/log_request.h)

using Seen = std::vector<std::string>;

Task<void> LookAt(Seen& seen) {
  seen.push_back("inner " + log::CurrentRequest());
  co_return;
}

Task<void> LookAndPause(Reactor& reactor, Seen& seen) {
  for (int i = 0; i < 2; ++i) {
    seen.push_back(log::CurrentRequest());
    co_await reactor.SleepFor(kNsPerMs);
  }
  co_await LookAt(seen);
  Spawn(LookAt(seen));
  seen.push_back(log::CurrentRequest());
}

TEST(Task, KeepsTheRequestOfItsMakerWhileOthersRun) {
  VirtualReactors reactors;
  Reactor& reactor = reactors[0];
  Seen a;
  Seen b;
  Seen nobody;
  const auto make_both = [](Reactor& on, Seen& for_a, Seen& for_b, Seen& between) -> Task<int> {
    {
      const log::RequestScope request("a");
      Spawn(LookAndPause(on, for_a));
      between.push_back("maker " + log::CurrentRequest());
    }
    {
      const log::RequestScope request("b");
      Spawn(LookAndPause(on, for_b));
    }
    for (int i = 0; i < 5; ++i) {
      between.push_back(log::CurrentRequest());
      co_await on.SleepFor(kNsPerMs / 2);
    }
    co_return 0;
  };
  EXPECT_EQ(reactors.Await(make_both(reactor, a, b, nobody)), 0);
  EXPECT_EQ(a, (Seen{"a", "a", "inner a", "inner a", "a"}));
  EXPECT_EQ(b, (Seen{"b", "b", "inner b", "inner b", "b"}));
  EXPECT_EQ(nobody, (Seen{"maker a", "", "", "", "", ""}));
  EXPECT_EQ(log::CurrentRequest(), "");
}

Task<int> CountInALoop(int rounds) {
  int sum = 0;
  for (int i = 0; i < rounds; ++i) {
    auto one = Value(1);
    sum += co_await std::move(one);
  }
  co_return sum;
}

Task<int> Deep(int depth) {
  if (depth == 0) co_return 0;
  auto below = Deep(depth - 1);
  const int result = co_await std::move(below);
  co_return result + 1;
}

Task<int> DeepWithAPause(Reactor& reactor, int depth) {
  if (depth == 0) {
    co_await reactor.Yield();
    co_return 0;
  }
  auto below = DeepWithAPause(reactor, depth - 1);
  const int result = co_await std::move(below);
  co_return result + 1;
}

Task<int> CountWithPauses(Reactor& reactor, int rounds) {
  int sum = 0;
  for (int i = 0; i < rounds; ++i) {
    auto one = DeepWithAPause(reactor, 1);
    sum += co_await std::move(one);
    auto many = CountInALoop(10);
    sum += co_await std::move(many);
  }
  co_return sum;
}

TEST(Task, ALoopDoesNotGrowTheStack) {
  VirtualReactors reactors;
  EXPECT_EQ(reactors.Await(CountInALoop(1'000'000)), 1'000'000);
  EXPECT_EQ(reactors.Await(CountWithPauses(reactors[0], 100'000)), 1'100'000);
}

TEST(Task, NestsDeep) {
#if defined(CLEAT_ASAN) || defined(CLEAT_TSAN)
  constexpr int kDepth = 2'000;  // their frames are large
#else
  constexpr int kDepth = 10'000;
#endif
  VirtualReactors reactors;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(reactors.Await(Deep(kDepth)), kDepth);
    EXPECT_EQ(reactors.Await(DeepWithAPause(reactors[0], kDepth)), kDepth);
  }
}

// A task that ends on another reactor than the one that started it: the awaiting coroutine goes on there.
Task<void> GoTo(Reactor& reactor) {
  co_await reactor.Enter();
}

Task<void> FollowTo(VirtualReactors& reactors, bool& done) {
  auto go = GoTo(reactors[1]);
  co_await std::move(go);
  EXPECT_EQ(Reactor::Current(), &reactors[1]);
  done = true;
}

TEST(Task, MayEndOnAnotherReactor) {
  VirtualReactors reactors(2);
  bool done = false;
  Spawn(FollowTo(reactors, done));
  reactors.RunUntilIdle();
  EXPECT_TRUE(done);
}

// ---- The forms that are safe with GCC 12, which destroys an aggregate twice that is made by braces within a co_await
// expression.

int live = 0;

struct Counted {
  Counted() { ++live; }
  Counted(const Counted& /*other*/) { ++live; }
  Counted(Counted&& /*other*/) noexcept { ++live; }
  Counted& operator=(const Counted&) = default;
  ~Counted() { --live; }
};

using Name = std::vector<char>;  // owns memory: destroyed twice, it would be freed twice

struct Aggregate {
  Name name;
  Counted counted;
};

struct WithConstructor {
  explicit WithConstructor(Name n) : name(std::move(n)) {}
  Name name;
  Counted counted;
};

Task<size_t> TakesAggregate(Aggregate argument) {
  co_return argument.name.size();
}
Task<size_t> TakesConstructed(WithConstructor argument) {
  co_return argument.name.size();
}
Task<size_t> TakesReference(const Aggregate& argument) {
  co_return argument.name.size();
}

Aggregate MakeAggregate() {
  return {.name = Name(100), .counted = {}};
}

Task<size_t> SafeForms() {
  size_t sum = 0;
  // A named argument, moved into a named task.
  Aggregate first{.name = Name(100), .counted = {}};
  auto one = TakesAggregate(std::move(first));
  sum += co_await std::move(one);
  // A named task; the aggregate temporary dies with the statement that made it, outside of any co_await.
  auto two = TakesAggregate({.name = Name(100), .counted = {}});
  sum += co_await two;
  // A type with a constructor may be a temporary.
  sum += co_await TakesConstructed(WithConstructor(Name(100)));
  // By reference to something named.
  const Aggregate fourth{.name = Name(100), .counted = {}};
  sum += co_await TakesReference(fourth);
  // A named argument, without a name for the task.
  Aggregate fifth{.name = Name(100), .counted = {}};
  sum += co_await TakesAggregate(std::move(fifth));
  // What a function returns.
  sum += co_await TakesAggregate(MakeAggregate());
  sum += co_await TakesReference(MakeAggregate());
  co_return sum;
}

TEST(Task, SafeFormsDestroyEverythingOnce) {
  {
    VirtualReactors reactors;
    EXPECT_EQ(reactors.Await(SafeForms()), 700U);
  }
  EXPECT_EQ(live, 0);
}

}  // namespace
}  // namespace cleat::task_test
