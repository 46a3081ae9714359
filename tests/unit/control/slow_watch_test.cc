// SPDX-License-Identifier: Apache-2.0
// What is slow is collected, and told in the log: each stuck disk once, whatever there is.
#include "control/observe/slow_watch.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "segment_rig.h"

namespace cleat::control::slow_watch_test {
namespace {

class SlowWatchTest : public testing::Test {
 protected:
  void Turns(int turns) {
    for (int i = 0; i < turns; ++i) {
      watch_.Turn();
      clock_.AdvanceBy(SlowWatch::kTurnNs);
    }
  }
  size_t LinesWith(const std::string& text) const {
    return static_cast<size_t>(std::ranges::count_if(
        lines_, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  v1::ListSlowRequestsResponse List(const std::string& name = "", int limit = 0) {
    v1::ListSlowRequestsRequest request;
    request.set_name(name);
    request.set_limit(limit);
    auto list = watch_.List(request);
    EXPECT_TRUE(list.ok());
    return list.ok() ? *list : v1::ListSlowRequestsResponse();
  }

  ManualClock clock_{100 * kNsPerSecond};
  Counters counters_{clock_};
  std::vector<std::string> lines_;
  SlowWatch watch_{counters_,
                   [this](spdlog::level::level_enum, const std::string& line) { lines_.push_back(line); }};
};

TEST_F(SlowWatchTest, AStuckDiskIsToldOnceAndOnceWhenItIsNoMore) {
  SegmentRig engine(clock_);
  observe::DiskCounters& stuck = engine.Add("controllers/a", "disks/x", 0);
  observe::DiskCounters& fine = engine.Add("controllers/b", "disks/y", 1);
  counters_.OnHello("engine-0", 1, engine.Fd());
  const uint64_t seen_ns = clock_.NowNs();
  for (int i = 0; i < 20; ++i) {
    clock_.AdvanceBy(SlowWatch::kTurnNs);
    engine.Look(0, &stuck, seen_ns);
    engine.Look(1, &fine, clock_.NowNs() - kNsPerMs);
    watch_.Turn();
    EXPECT_EQ(lines_.size(), i == 0 ? 0U : 1U);  // as soon as it is older than the threshold
  }
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_EQ(lines_[0],
            "disks/x of controllers/a: stuck: a read of 4096 bytes at 8192 waits for 0.50 s in stage "
            "submitted (for "
            "the storage); 3 in flight");
  EXPECT_EQ(watch_.stuck_disks(), 1U);
  for (int i = 0; i < 20; ++i) {
    clock_.AdvanceBy(SlowWatch::kTurnNs);
    engine.Look(0);
    engine.Look(1, &fine, clock_.NowNs() - kNsPerMs);
    watch_.Turn();
  }
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_EQ(lines_[1], "disks/x of controllers/a: not stuck any more, after 5.00 s");
  EXPECT_EQ(watch_.stuck_disks(), 0U);
}

// Reading thousands of disks four times a second is what a host with many of them would notice.
TEST_F(SlowWatchTest, DisksAreReadOnlyIfTheirReactorSaysThatOneMayBeStuck) {
  SegmentRig engine(clock_);
  observe::DiskCounters& old = engine.Add("controllers/a", "disks/x", 0);
  counters_.OnHello("engine-0", 1, engine.Fd());
  const uint64_t seen_ns = clock_.NowNs();
  clock_.AdvanceBy(kNsPerSecond);
  engine.Look(0, &old, seen_ns);
  for (const uint64_t says_ns : {observe::kNothingInFlight, clock_.NowNs() - kNsPerMs}) {
    engine.SetOldestOf(0, says_ns);
    watch_.Turn();
    EXPECT_EQ(lines_.size(), 0U);
  }
  engine.SetOldestOf(0, 0);  // an engine of before, that does not say
  watch_.Turn();
  EXPECT_EQ(LinesWith("disks/x of controllers/a: stuck"), 1U);
}

// The request was young at the reactor's last look, and there has been none since: it waits with the reactor.
TEST_F(SlowWatchTest, ADiskOfAReactorThatHangsIsStuck) {
  SegmentRig engine(clock_);
  observe::DiskCounters& cell = engine.Add("controllers/a", "disks/x", 0);
  counters_.OnHello("engine-0", 1, engine.Fd());
  engine.Look(0, &cell, clock_.NowNs() - kNsPerMs);
  Turns(1);
  EXPECT_EQ(lines_.size(), 0U);
  Turns(8);
  EXPECT_EQ(LinesWith("disks/x of controllers/a: stuck"), 1U);
}

TEST_F(SlowWatchTest, SlowRequestsAreCollectedWithEveryStage) {
  SegmentRig engine(clock_);
  counters_.OnHello("engine-0", 1, engine.Fd());
  Turns(1);
  engine.AddSlow("controllers/a", "disks/x", 600 * kNsPerMs, false);
  engine.AddSlow("controllers/a", "disks/y", 900 * kNsPerMs, true);
  Turns(3);  // collected once, not in each turn
  const v1::ListSlowRequestsResponse list = List();
  ASSERT_EQ(list.requests_size(), 2);
  const v1::SlowRequest& waits = list.requests(0);
  EXPECT_EQ(waits.disk(), "disks/x");
  EXPECT_EQ(waits.engine(), "engines/engine-0");
  EXPECT_EQ(waits.operation(), "write");
  EXPECT_EQ(waits.offset_bytes(), 1024U);
  EXPECT_EQ(waits.length_bytes(), 512U);
  EXPECT_FALSE(waits.ended());
  EXPECT_EQ(waits.age_ns(), 600 * kNsPerMs);
  ASSERT_EQ(waits.stages_size(), 3);
  EXPECT_EQ(waits.stages(1).stage(), "submitted");
  EXPECT_EQ(waits.stages(1).duration_ns(), 1000U);
  EXPECT_EQ(waits.stages(2).stage(), "waiting");
  EXPECT_EQ(waits.stages(2).duration_ns(), 600 * kNsPerMs - 2000);
  const v1::SlowRequest& ended = list.requests(1);
  EXPECT_TRUE(ended.ended());
  EXPECT_EQ(ended.age_ns(), 900 * kNsPerMs);
  ASSERT_EQ(ended.stages_size(), 4);
  EXPECT_EQ(ended.stages(2).stage(), "done");
  EXPECT_EQ(ended.stages(2).duration_ns(), 900 * kNsPerMs - 2000);

  ASSERT_EQ(List("disks/x").requests_size(), 1);
  ASSERT_EQ(List("", 1).requests_size(), 1);
  EXPECT_EQ(List("", 1).requests(0).disk(), "disks/y");  // the last one
  EXPECT_EQ(LinesWith("disks/x of controllers/a: slow request: a write of 512 bytes at 1024 is in flight for "
                      "0.60 s, still"),
            1U);
  EXPECT_EQ(LinesWith("disks/y of controllers/a: slow request: a write of 512 bytes at 1024 took 0.90 s"),
            1U);
}

TEST_F(SlowWatchTest, TheLastOnesOfADeadEngineAreCollectedToo) {
  SegmentRig engine(clock_);
  counters_.OnHello("engine-0", 1, engine.Fd());
  Turns(1);
  engine.AddSlow("controllers/a", "disks/x", 600 * kNsPerMs, false);
  counters_.OnGone("engine-0");
  SegmentRig next(clock_, "engine-0", 2);
  counters_.OnHello("engine-0", 2, next.Fd());
  Turns(2);
  EXPECT_EQ(List().requests_size(), 1);
}

TEST_F(SlowWatchTest, AnEngineThatOnlyLostItsConnectionIsNotReadTwice) {
  SegmentRig engine(clock_);
  counters_.OnHello("engine-0", 1, engine.Fd());
  engine.AddSlow("controllers/a", "disks/x", 600 * kNsPerMs, false);
  Turns(1);
  counters_.OnGone("engine-0");
  Turns(1);
  counters_.OnHello("engine-0", 1, engine.Fd());
  Turns(2);
  EXPECT_EQ(List().requests_size(), 1);
}

TEST_F(SlowWatchTest, TheListAndTheLogAreBounded) {
  SegmentRig engine(clock_);
  counters_.OnHello("engine-0", 1, engine.Fd());
  for (int turn = 0; turn < 20; ++turn) {
    for (uint64_t i = 0; i < observe::kSlowRingCount; ++i) {
      engine.AddSlow("controllers/a", "disks/x", 600 * kNsPerMs, true);
    }
    watch_.Turn();
  }
  EXPECT_EQ(List("", SlowWatch::kRequestsMax).requests_size(), static_cast<int>(SlowWatch::kRequestsMax));
  EXPECT_EQ(lines_.size(), SlowWatch::kLinesPerSecondMax);
  clock_.AdvanceBy(kNsPerSecond);
  watch_.Turn();
  ASSERT_EQ(lines_.size(), SlowWatch::kLinesPerSecondMax + 1);
  EXPECT_EQ(lines_.back(), "log: 1260 more lines left out: slow requests (cleatctl slow)");
  // More than a ring holds between two turns: counted, not had.
  for (uint64_t i = 0; i < observe::kSlowRingCount + 5; ++i) {
    engine.AddSlow("controllers/a", "disks/x", 600 * kNsPerMs, true);
  }
  watch_.Turn();
  EXPECT_EQ(List().lost(), 5U);
}

TEST_F(SlowWatchTest, ADeadEnginesDisksAreNotCalledStuck) {
  SegmentRig engine(clock_);
  observe::DiskCounters& cell = engine.Add("controllers/a", "disks/x");
  counters_.OnHello("engine-0", 1, engine.Fd());
  engine.Look(0, &cell, clock_.NowNs() - kNsPerMs);
  Turns(1);
  counters_.OnGone("engine-0");
  Turns(20);
  EXPECT_EQ(lines_.size(), 0U);
  EXPECT_EQ(watch_.stuck_disks(), 0U);
}

}  // namespace
}  // namespace cleat::control::slow_watch_test
