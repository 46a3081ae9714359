// SPDX-License-Identifier: Apache-2.0
#include "reactor/blocking.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/log_request.h"
#include "reactor/task.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::blocking_test {
namespace {

Task<void> CallMany(BlockingPool& pool, Reactor& reactor, int calls, std::thread::id home, int& done,
                    int& running) {
  for (int i = 0; i < calls; ++i) {
    std::thread::id where;
    const std::function<std::unique_ptr<int>()> work = [&where, i] {
      where = std::this_thread::get_id();
      return std::make_unique<int>(i);
    };
    const std::unique_ptr<int> result = co_await pool.Run(work);
    EXPECT_EQ(*result, i);
    EXPECT_NE(where, home);
    EXPECT_EQ(std::this_thread::get_id(), home);
    EXPECT_EQ(Reactor::Current(), &reactor);
    ++done;
  }
  if (--running == 0) reactor.Stop();
}

TEST(BlockingPool, RunsElsewhereAndComesBack) {
  const MonotonicClock clock;
  auto reactor = std::move(Reactor::Make(clock, {})).value();
  BlockingPool pool(3);
  int done = 0;
  int running = 8;
  for (int i = 0; i < 8; ++i) {
    reactor->PostCall(
        [&] { Spawn(CallMany(pool, *reactor, 500, std::this_thread::get_id(), done, running)); });
  }
  reactor->Run();
  EXPECT_EQ(done, 4000);
}

Task<void> SeeRequest(BlockingPool& pool, Reactor& reactor, std::vector<std::string>& seen) {
  const std::function<std::string()> work = [] { return log::CurrentRequest(); };
  seen.push_back(co_await pool.Run(work));
  seen.push_back(log::CurrentRequest());
  reactor.Stop();
}

TEST(BlockingPool, WorksForTheRequestOfItsCaller) {
  const MonotonicClock clock;
  auto reactor = std::move(Reactor::Make(clock, {})).value();
  BlockingPool pool(1);
  std::vector<std::string> seen;
  reactor->PostCall([&] {
    const log::RequestScope request("r");
    Spawn(SeeRequest(pool, *reactor, seen));
  });
  reactor->Run();
  EXPECT_EQ(seen, (std::vector<std::string>{"r", "r"}));
  EXPECT_EQ(log::CurrentRequest(), "");
}

Task<int> CallOnce(BlockingPool& pool) {
  const std::function<int()> work = [] { return 7; };
  co_return co_await pool.Run(work);
}

TEST(BlockingPool, WithoutThreadsRunsInline) {
  test::VirtualReactors reactors;
  BlockingPool pool(0);
  EXPECT_EQ(reactors.Await(CallOnce(pool)), 7);
}

}  // namespace
}  // namespace cleat::blocking_test
