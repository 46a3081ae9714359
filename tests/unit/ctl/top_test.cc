// SPDX-License-Identifier: Apache-2.0
// What `top` makes of two answers: rates, means, and the stage in which the time went.
#include "ctl/top.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace cleat::ctl::top_test {
namespace {

v1::DiskStats& AddDisk(v1::GetStatsResponse& response, const std::string& id, uint64_t since_ns = 1) {
  v1::DiskStats& disk = *response.add_disks();
  disk.set_disk("disks/" + id);
  disk.set_controller("controllers/vm");
  disk.set_engine("engines/e");
  disk.set_since_ns(since_ns);
  return disk;
}

// So many reads of 4 KiB; each took so long in the storage, and 1 us to be fetched.
void SetReads(v1::DiskStats& disk, uint64_t count, uint64_t storage_ns) {
  disk.clear_operations();
  v1::OperationStats& read = *disk.add_operations();
  read.set_operation("read");
  read.set_count(count);
  read.set_bytes(count * 4096);
  const auto add = [&](const char* name, uint64_t ns) {
    v1::StageStats& stage = *read.add_stages();
    stage.set_stage(name);
    stage.set_count(count);
    stage.set_sum_ns(count * ns);
  };
  add("fetched", 1000);
  add("done", storage_ns);
  add("called", 900'000'000);  // after the answer: no part of it
  add("total", storage_ns + 1000);
}

class TopTest : public testing::Test {
 protected:
  TopTest() {
    before_.set_time_ns(10 * kNsPerSecond);
    now_.set_time_ns(12 * kNsPerSecond);
  }
  v1::GetStatsResponse before_;
  v1::GetStatsResponse now_;
};

TEST_F(TopTest, RatesAreDifferencesOverTheTimeBetween) {
  SetReads(AddDisk(before_, "a"), 1000, 9000);
  SetReads(AddDisk(now_, "a"), 3000, 9000);
  const std::vector<TopRow> rows = TopRows(before_, now_, TopOrder::kIops);
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].disk, "a");
  EXPECT_DOUBLE_EQ(rows[0].iops, 1000);
  EXPECT_DOUBLE_EQ(rows[0].bytes_per_s, 4096000);
  EXPECT_EQ(rows[0].latency_ns, 10000U);
  EXPECT_EQ(rows[0].slow_stage, "done");
  EXPECT_DOUBLE_EQ(rows[0].slow_part, 0.9);
}

TEST_F(TopTest, ADiskThatWasAttachedAnewBeginsAtZero) {
  SetReads(AddDisk(before_, "a", 1), 1'000'000, 9000);
  SetReads(AddDisk(now_, "a", 2), 20, 9000);
  EXPECT_DOUBLE_EQ(TopRows(before_, now_, TopOrder::kIops)[0].iops, 10);
}

TEST_F(TopTest, WhereNothingIsAnsweredTheOldestRequestSaysWhere) {
  AddDisk(before_, "a");
  v1::DiskStats& disk = AddDisk(now_, "a");
  disk.set_in_flight(8);
  disk.set_stuck(true);
  disk.mutable_oldest()->set_age_ns(700 * kNsPerMs);
  disk.mutable_oldest()->set_stage("submitted");
  const std::vector<TopRow> rows = TopRows(before_, now_, TopOrder::kIops);
  EXPECT_TRUE(rows[0].active());
  EXPECT_EQ(rows[0].slow_stage, "submitted");
  EXPECT_NE(TopText(rows, false, 100).find("submitted STUCK, waits for the storage"), std::string::npos);
}

TEST_F(TopTest, EachOrderPutsAnotherFirst) {
  for (const char* id : {"busy", "slow", "full", "old"}) SetReads(AddDisk(before_, id), 0, 0);
  SetReads(AddDisk(now_, "busy"), 100'000, 9000);
  SetReads(AddDisk(now_, "slow"), 10, 50'000'000);
  v1::DiskStats& full = AddDisk(now_, "full");
  full.set_in_flight(128);
  v1::DiskStats& old = AddDisk(now_, "old");
  old.set_in_flight(1);
  old.mutable_oldest()->set_age_ns(1);
  const auto first = [&](TopOrder order) { return TopRows(before_, now_, order)[0].disk; };
  EXPECT_EQ(first(TopOrder::kIops), "busy");
  EXPECT_EQ(first(TopOrder::kBytes), "busy");
  EXPECT_EQ(first(TopOrder::kLatency), "slow");
  EXPECT_EQ(first(TopOrder::kInFlight), "full");
  EXPECT_EQ(first(TopOrder::kOldest), "old");
}

TEST_F(TopTest, TheTextKeepsToItsLinesAndLeavesIdleDisksOut) {
  for (int i = 0; i < 50; ++i) {
    AddDisk(before_, "d" + std::to_string(i));
    v1::DiskStats& disk = AddDisk(now_, "d" + std::to_string(i));
    if (i < 30) SetReads(disk, 100, 1000);
  }
  const std::vector<TopRow> rows = TopRows(before_, now_, TopOrder::kIops);
  const auto lines = [&](bool idle_too, size_t max) {
    const std::string text = TopText(rows, idle_too, max);
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines(false, 24), 24);
  EXPECT_EQ(lines(false, 1000), 32);
  EXPECT_EQ(lines(true, 1000), 52);
  EXPECT_TRUE(TopText(rows, false, 24).starts_with("50 disks, 30 active, 0 stuck; 1500 operations/s"));
  EXPECT_EQ(TopMessage(rows, false).fields().at("disks").list_value().values_size(), 30);
}

}  // namespace
}  // namespace cleat::ctl::top_test
