// SPDX-License-Identifier: Apache-2.0
// What cleatd makes of an engine's counters: what the engine wrote is what GetStats says, whatever the engine does.
#include "control/observe/counters.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "segment_rig.h"

namespace cleat::control::counters_test {
namespace {

using observe::OpColumn;

class CountersTest : public testing::Test {
 protected:
  v1::GetStatsResponse Stats(const std::string& name = "", bool histograms = false) {
    v1::GetStatsRequest request;
    request.set_name(name);
    request.set_histograms(histograms);
    auto stats = counters_.Stats(request);
    EXPECT_TRUE(stats.ok());
    return stats.ok() ? *stats : v1::GetStatsResponse();
  }

  ManualClock clock_{100 * kNsPerSecond};
  Counters counters_{clock_};
};

TEST_F(CountersTest, AddsUpADisksReactors) {
  SegmentRig engine(clock_);
  observe::DiskCounters& first = engine.Add("controllers/a", "disks/x", 0, 2);
  observe::DiskCounters& second = engine.Add("controllers/a", "disks/x", 1, 2);
  engine.Add("controllers/b", "disks/x", 1);
  first.Count(OpColumn::kRead, 10, 40960, 0);
  second.Count(OpColumn::kRead, 5, 20480, 1);
  second.Count(OpColumn::kFlush, 1, 0, 0);
  counters_.OnHello("engine-0", 1, engine.Fd());

  const v1::GetStatsResponse stats = Stats();
  ASSERT_EQ(stats.disks_size(), 2);
  const v1::DiskStats& disk = stats.disks(0);
  EXPECT_EQ(disk.controller(), "controllers/a");
  EXPECT_EQ(disk.target(), 2U);
  EXPECT_EQ(disk.disk(), "disks/x");
  EXPECT_EQ(disk.engine(), "engines/engine-0");
  ASSERT_EQ(disk.operations_size(), 2);  // those that there were
  EXPECT_EQ(disk.operations(0).operation(), "read");
  EXPECT_EQ(disk.operations(0).count(), 15U);
  EXPECT_EQ(disk.operations(0).bytes(), 61440U);
  EXPECT_EQ(disk.operations(0).errors(), 1U);
  EXPECT_EQ(disk.operations(1).operation(), "flush");
  EXPECT_EQ(disk.in_flight(), 0U);
  EXPECT_FALSE(disk.has_oldest());
  EXPECT_EQ(stats.disks(1).controller(), "controllers/b");
  EXPECT_EQ(stats.disks(1).operations_size(), 0);
  ASSERT_EQ(stats.engines_size(), 1);
  EXPECT_TRUE(stats.engines(0).connected());
  EXPECT_EQ(stats.engines(0).slow_after_ns(), observe::kSlowAfterNs);
  EXPECT_EQ(stats.time_ns(), clock_.NowNs());
}

TEST_F(CountersTest, HistogramsBecomePercentiles) {
  SegmentRig engine(clock_);
  observe::DiskCounters& cell = engine.Add("controllers/a", "disks/x");
  cell.Count(OpColumn::kWrite, 100, 51200, 0);
  cell.Record(OpColumn::kWrite, RequestStage::kDone, 10'000, 99);
  cell.Record(OpColumn::kWrite, RequestStage::kDone, 5'000'000, 1);
  counters_.OnHello("engine-0", 1, engine.Fd());

  EXPECT_EQ(Stats().disks(0).operations(0).stages_size(), 0);  // not asked for
  const v1::GetStatsResponse stats = Stats("", true);
  ASSERT_EQ(stats.disks(0).operations(0).stages_size(), 1);
  const v1::StageStats& stage = stats.disks(0).operations(0).stages(0);
  EXPECT_EQ(stage.stage(), "done");
  EXPECT_EQ(stage.count(), 100U);
  const auto near = [](uint64_t is, double should_be) {
    EXPECT_NEAR(static_cast<double>(is), should_be, should_be * 0.033);
  };
  near(stage.p50_ns(), 10'000);
  near(stage.p90_ns(), 10'000);
  near(stage.p999_ns(), 5'000'000);
  near(stage.max_ns(), 5'000'000);
  near(stage.sum_ns(), 99 * 10'000 + 5'000'000);
}

TEST_F(CountersTest, TheOldestRequestOfAnyReactorIsNamedWithItsStage) {
  SegmentRig engine(clock_);
  observe::DiskCounters& young = engine.Add("controllers/a", "disks/x", 0);
  observe::DiskCounters& old = engine.Add("controllers/a", "disks/x", 1);
  counters_.OnHello("engine-0", 1, engine.Fd());
  const uint64_t start_ns = clock_.NowNs();
  clock_.AdvanceBy(600 * kNsPerMs);
  engine.Look(0, &young, clock_.NowNs() - kNsPerMs);
  engine.Look(1, &old, start_ns);
  clock_.AdvanceBy(100 * kNsPerMs);

  v1::DiskStats disk = Stats().disks(0);
  EXPECT_EQ(disk.in_flight(), 6U);
  EXPECT_EQ(disk.oldest().age_ns(), 600 * kNsPerMs);  // as of the look: it may have ended since
  EXPECT_EQ(disk.oldest().stage_age_ns(), 600 * kNsPerMs - 1000);
  EXPECT_EQ(disk.oldest().operation(), "read");
  EXPECT_EQ(disk.oldest().stage(), "submitted");
  EXPECT_EQ(disk.oldest().offset_bytes(), 8192U);
  EXPECT_EQ(disk.oldest().length_bytes(), 4096U);
  EXPECT_TRUE(disk.stuck());

  engine.Look(1);  // it has ended
  disk = Stats().disks(0);
  EXPECT_EQ(disk.oldest().age_ns(), kNsPerMs);
  EXPECT_FALSE(disk.stuck());
}

TEST_F(CountersTest, WhatIsInFlightAgesWhileItsReactorHangs) {
  SegmentRig engine(clock_);
  observe::DiskCounters& cell = engine.Add("controllers/a", "disks/x");
  counters_.OnHello("engine-0", 1, engine.Fd());
  engine.Look(0, &cell, clock_.NowNs() - kNsPerMs);
  EXPECT_FALSE(Stats().disks(0).stuck());
  clock_.AdvanceBy(3 * kNsPerSecond);
  EXPECT_EQ(Stats().disks(0).oldest().age_ns(), 3 * kNsPerSecond + kNsPerMs);
  EXPECT_TRUE(Stats().disks(0).stuck());
}

TEST_F(CountersTest, ADeadEngineKeepsItsLastNumbersUntilItsSuccessor) {
  {
    SegmentRig engine(clock_);
    engine.Add("controllers/a", "disks/x").Count(OpColumn::kRead, 7, 3584, 0);
    counters_.OnHello("engine-0", 1, engine.Fd());
    counters_.OnGone("engine-0");
    EXPECT_FALSE(Stats().engines(0).connected());
    ASSERT_EQ(Stats().disks_size(), 1);
    EXPECT_EQ(Stats().disks(0).operations(0).count(), 7U);
    engine.Detach();
  }
  SegmentRig next(clock_, "engine-0", 2);
  counters_.OnHello("engine-0", 2, next.Fd());
  EXPECT_TRUE(Stats().engines(0).connected());
  EXPECT_EQ(Stats().engines(0).incarnation(), 2U);
  EXPECT_EQ(Stats().disks_size(), 0);
}

TEST_F(CountersTest, NamesFilter) {
  SegmentRig engine(clock_);
  SegmentRig other(clock_, "engine-1");
  engine.Add("controllers/a", "disks/x");
  engine.Add("controllers/b", "disks/y");
  other.Add("controllers/c", "disks/z");
  counters_.OnHello("engine-0", 1, engine.Fd());
  counters_.OnHello("engine-1", 1, other.Fd());
  EXPECT_EQ(Stats().disks_size(), 3);
  ASSERT_EQ(Stats("disks/y").disks_size(), 1);
  EXPECT_EQ(Stats("disks/y").disks(0).controller(), "controllers/b");
  ASSERT_EQ(Stats("controllers/a").disks_size(), 1);
  EXPECT_EQ(Stats("controllers/a").disks(0).disk(), "disks/x");
  ASSERT_EQ(Stats("engines/engine-1").disks_size(), 1);
  EXPECT_EQ(Stats("engines/engine-1").disks(0).disk(), "disks/z");
  EXPECT_EQ(Stats("disks/none").disks_size(), 0);
  v1::GetStatsRequest request;
  request.set_name("y");
  EXPECT_FALSE(counters_.Stats(request).ok());
}

TEST_F(CountersTest, PagesAddUpToTheWhole) {
  SegmentRig engine(clock_);
  for (int i = 0; i < 7; ++i)
    engine.Add("controllers/c" + std::to_string(i / 3), "disks/d" + std::to_string(i), 0, i % 3);
  counters_.OnHello("engine-0", 1, engine.Fd());
  std::vector<std::string> disks;
  v1::GetStatsRequest request;
  request.set_page_size(3);
  int pages = 0;
  do {
    const auto page = counters_.Stats(request);
    ASSERT_TRUE(page.ok());
    ASSERT_LE(page->disks_size(), 3);
    for (const v1::DiskStats& disk : page->disks()) disks.push_back(disk.disk());
    request.set_page_token(page->next_page_token());
    ASSERT_LT(++pages, 10);
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(disks, (std::vector<std::string>{"disks/d0", "disks/d1", "disks/d2", "disks/d3", "disks/d4",
                                             "disks/d5", "disks/d6"}));
}

TEST_F(CountersTest, AnEngineWithoutCountersIsListedWithTheReason) {
  counters_.OnHello("engine-0", 1, UniqueFd());
  ASSERT_EQ(Stats().engines_size(), 1);
  EXPECT_TRUE(Stats().engines(0).connected());
  EXPECT_NE(Stats().engines(0).message(), "");
  EXPECT_EQ(Stats().disks_size(), 0);
}

TEST_F(CountersTest, WhatIsNoSegmentDoesNoHarm) {
  SegmentRig engine(clock_);
  engine.Add("controllers/a", "disks/x");
  observe::SegmentHeader header{};
  ASSERT_EQ(pread(engine.Fd().get(), &header, sizeof(header), 0), static_cast<ssize_t>(sizeof(header)));
  const auto offer = [&](const void* bytes, size_t size, uint64_t file_bytes) {
    UniqueFd fd(memfd_create("damaged", MFD_CLOEXEC));
    ASSERT_EQ(write(fd.get(), bytes, size), static_cast<ssize_t>(size));
    ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(file_bytes)), 0);
    counters_.OnHello("engine-0", header.incarnation, std::move(fd));
    EXPECT_NE(Stats().engines(0).message(), "");
    EXPECT_EQ(Stats("", true).disks_size(), 0);
    counters_.OnGone("engine-0");
  };
  offer("", 0, 0);
  offer(&header, sizeof(header), sizeof(header));  // cut short
  observe::SegmentHeader damaged = header;
  damaged.magic = 1;
  offer(&damaged, sizeof(damaged), header.segment_bytes);
  damaged = header;
  damaged.layout_version = 99;
  offer(&damaged, sizeof(damaged), header.segment_bytes);
  damaged = header;
  damaged.cells.count = ~uint64_t{0};
  offer(&damaged, sizeof(damaged), header.segment_bytes);
  damaged = header;
  std::strncpy(damaged.engine, "another", observe::kNameBytes - 1);
  offer(&damaged, sizeof(damaged), header.segment_bytes);
  // And one that makes sense again.
  counters_.OnHello("engine-0", header.incarnation, engine.Fd());
  EXPECT_EQ(Stats().disks_size(), 1);
}

}  // namespace
}  // namespace cleat::control::counters_test
