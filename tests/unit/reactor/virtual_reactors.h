// SPDX-License-Identifier: Apache-2.0
// Several reactors on one thread in virtual time, for tests: the clock moves only when nothing is left to do,
// and then straight to the next timer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "reactor/reactor.h"
#include "reactor/task.h"

namespace cleat::test {

class VirtualReactors {
 public:
  explicit VirtualReactors(uint32_t count = 1) {
    for (uint32_t i = 0; i < count; ++i) {
      Reactor::Options options;
      options.name = "reactor" + std::to_string(i);
      options.index = i;
      options.spin_ns = 0;
      auto made = Reactor::Make(clock_, options);
      CLEAT_CHECK(made.ok());
      reactors_.push_back(std::move(made).value());
    }
  }

  ManualClock& clock() { return clock_; }
  Reactor& operator[](size_t index) { return *reactors_[index]; }

  // Until nothing is left to do at the present time.
  void RunUntilIdle() {
    for (bool worked = true; worked;) {
      worked = false;
      for (auto& reactor : reactors_) worked |= reactor->RunOnce();
    }
  }

  // Until `done()`, moving the time on. False: everything waits for something that never comes.
  template <typename Done>
  bool RunUntil(Done done) {
    for (;;) {
      RunUntilIdle();
      if (done()) return true;
      uint64_t next_ns = kNoDeadline;
      for (auto& reactor : reactors_) next_ns = std::min(next_ns, reactor->NextTimerNs());
      if (next_ns == kNoDeadline) return false;
      clock_.AdvanceTo(std::max(next_ns, clock_.NowNs()));
    }
  }

  // Runs `task` to its end on the first reactor.
  template <typename T>
  T Await(Task<T> task) {
    std::optional<T> result;
    reactors_[0]->PostCall([&] { Spawn(Keep(std::move(task), result)); });
    EXPECT_TRUE(RunUntil([&] { return result.has_value(); }));
    return std::move(*result);
  }

 private:
  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }

  ManualClock clock_;
  std::vector<std::unique_ptr<Reactor>> reactors_;
};

}  // namespace cleat::test
