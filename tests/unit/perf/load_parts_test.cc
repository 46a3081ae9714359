// SPDX-License-Identifier: Apache-2.0
// The parts of the load generator that need no device.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "perf/bare_loops/ring_loop.h"
#include "perf/load/load_options.h"
#include "perf/load/load_request.h"
#include "perf/load/load_stats.h"
#include "perf/report/compare.h"
#include "perf/report/report.h"
#include "perf/workload/latency_histogram.h"
#include "perf/workload/zipf.h"

namespace cleat::perf::load_parts_test {
namespace {

TEST(LatencyHistogramTest, PercentilesAreWithinOnePercent) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.PercentileNs(0.5), 0U);
  EXPECT_EQ(histogram.min_ns(), 0U);
  constexpr uint64_t kCount = 1'000'000;
  for (uint64_t ns = 1; ns <= kCount; ++ns) histogram.Record(ns);
  for (const double part : {0.001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999}) {
    const auto found = static_cast<double>(histogram.PercentileNs(part));
    EXPECT_NEAR(found, part * kCount, part * kCount * 0.01) << part;
    EXPECT_GE(found, part * kCount) << part;
  }
  EXPECT_EQ(histogram.PercentileNs(1), kCount);
  EXPECT_EQ(histogram.min_ns(), 1U);
  EXPECT_DOUBLE_EQ(histogram.mean_ns(), (kCount + 1) / 2.0);
  histogram.Record(UINT64_MAX);
  EXPECT_EQ(histogram.max_ns(), UINT64_MAX);
}

TEST(LatencyHistogramTest, BucketsCoverEverythingInOrder) {
  uint64_t below = 0;
  for (size_t i = 0; i < LatencyHistogram::kBuckets; ++i) {
    const uint64_t upper = LatencyHistogram::UpperNs(i);
    EXPECT_EQ(LatencyHistogram::Bucket(upper), i);
    if (i > 0) {
      EXPECT_EQ(LatencyHistogram::Bucket(below + 1), i);
      EXPECT_LE(static_cast<double>(upper - below), std::max(1.0, static_cast<double>(below + 1) * 0.01))
          << below;
    }
    below = upper;
  }
  EXPECT_EQ(below, UINT64_MAX);
}

TEST(LatencyHistogramTest, MergesAndSubtracts) {
  LatencyHistogram a, b, both;
  for (uint64_t ns = 1; ns < 1000; ++ns) {
    (ns % 3 == 0 ? a : b).Record(ns * 100);
    both.Record(ns * 100);
  }
  LatencyHistogram merged;
  merged.Merge(a);
  const LatencyHistogram earlier = merged;
  merged.Merge(b);
  EXPECT_EQ(merged.total(), both.total());
  EXPECT_EQ(merged.sum_ns(), both.sum_ns());
  EXPECT_EQ(merged.min_ns(), both.min_ns());
  EXPECT_EQ(merged.max_ns(), both.max_ns());
  for (const double part : {0.5, 0.9, 0.99}) EXPECT_EQ(merged.PercentileNs(part), both.PercentileNs(part));
  const LatencyHistogram later = merged.Since(earlier);
  EXPECT_EQ(later.total(), b.total());
  EXPECT_EQ(later.sum_ns(), b.sum_ns());
  EXPECT_EQ(later.PercentileNs(0.5), b.PercentileNs(0.5));
}

TEST(ZipfTest, RanksComeAsOftenAsTheySay) {
  for (const double theta : {0.5, 1.0, 1.2}) {
    constexpr uint64_t kCount = 1000;
    constexpr int kDraws = 400'000;
    Zipf zipf(kCount, theta);
    Random random(7);
    std::vector<int> seen(kCount);
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t rank = zipf.NextRank(random);
      ASSERT_LT(rank, kCount);
      ++seen[rank];
    }
    double sum = 0;
    for (uint64_t k = 1; k <= kCount; ++k) sum += std::pow(static_cast<double>(k), -theta);
    for (const uint64_t rank : {0, 1, 2, 9, 99}) {
      const double expected = kDraws * std::pow(static_cast<double>(rank + 1), -theta) / sum;
      EXPECT_NEAR(seen[rank], expected, 5 * std::sqrt(expected)) << theta << ", rank " << rank;
    }
  }
}

TEST(ZipfTest, EveryRankHasABlockOfItsOwn) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{2}, uint64_t{4096}, uint64_t{99991}}) {
    const Zipf zipf(count, 1.1);
    std::set<uint64_t> blocks;
    for (uint64_t rank = 0; rank < count; ++rank) blocks.insert(zipf.Scatter(rank));
    EXPECT_EQ(blocks.size(), count);
    EXPECT_LT(*blocks.rbegin(), count);
  }
}

TEST(LoadOptionsTest, ReadsSizes) {
  EXPECT_EQ(ParseSize("512").value(), 512U);
  EXPECT_EQ(ParseSize("4k").value(), 4096U);
  EXPECT_EQ(ParseSize("4K").value(), 4096U);
  EXPECT_EQ(ParseSize("1M").value(), 1U << 20);
  EXPECT_EQ(ParseSize("2T").value(), 2ULL << 40);
  for (const char* bad : {"", "k", "4kk", "4x", "-1", "4 k", "99999999999999T"})
    EXPECT_FALSE(ParseSize(bad).ok()) << bad;
}

TEST(LoadOptionsTest, ReadsMixes) {
  EXPECT_EQ(ParseMix("read=100").value(), kReadsOnly);
  EXPECT_EQ(ParseMix("read=70,write=25,flush=1,discard=2,zeroes=2").value(), (LoadMix{70, 25, 1, 2, 2}));
  for (const char* bad :
       {"", "read", "read=50", "read=50,write=51", "trim=100", "read=x", "read=300", "read=50,,write=50"}) {
    EXPECT_FALSE(ParseMix(bad).ok()) << bad;
  }
}

TEST(LoadStatsTest, TheLongestGapIsBetweenTwoLooksThatFoundCompletions) {
  LoadStats stats;
  stats.Completed(2, 1000);  // what was before the first ones is no gap
  EXPECT_EQ(stats.longest_gap_ns, 0U);
  for (const uint64_t now_ns : {1300U, 1900U, 1850U, 2000U}) stats.Completed(1, now_ns);
  EXPECT_EQ(stats.longest_gap_ns, 600U);
  EXPECT_EQ(stats.completions, 6U);
}

TEST(ReportTest, JsonHasTheNamesThatProgramsRead) {
  LoadReport report;
  report.elapsed_ns = kNsPerSecond;
  auto& reads = report.operations[static_cast<size_t>(LoadOp::kRead)];
  for (uint64_t i = 0; i < 1000; ++i) reads.latency.Record(1000 + i);
  report.latency.Merge(reads.latency);
  report.requests = reads.requests = 1000;
  report.data_bytes = 4096 * 1000;
  report.devices = 1;
  report.longest_gap_ns = 7;
  const Json file = Json::parse(ResultFile({"cleat-perf", "run"}, {{"depth", 1}}, ReportJson(report)).dump());
  EXPECT_EQ(file["version"], 1);
  EXPECT_EQ(file["command"][1], "run");
  EXPECT_EQ(file["options"]["depth"], 1);
  const Json& result = file["result"];
  EXPECT_EQ(result["requests"], 1000);
  EXPECT_EQ(result["errors"], 0);
  EXPECT_EQ(result["iops"], 1000.0);
  EXPECT_EQ(result["bytes_per_second"], 4096000.0);
  EXPECT_EQ(result["devices"], 1);
  EXPECT_EQ(result["longest_gap_ns"], 7);
  for (const char* name : {"elapsed_ns", "verified_blocks", "faults"})
    EXPECT_TRUE(result.contains(name)) << name;
  for (const Json& latency : {result["latency_ns"], result["operations"]["read"]["latency_ns"]}) {
    for (const char* name :
         {"min", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p99.9999", "max"}) {
      ASSERT_TRUE(latency.contains(name)) << name;
      EXPECT_GE(latency[name].get<double>(), 1000) << name;
      EXPECT_LE(latency[name].get<double>(), 2000) << name;
    }
  }
  EXPECT_EQ(result["operations"].size(), 1U);
}

TEST(ReportTest, TheHistogramFileAddsUp) {
  LatencyHistogram latency;
  latency.Record(100);
  latency.Record(100);
  latency.Record(50'000);
  EXPECT_EQ(HistogramText(latency),
            "# latency_ns count cumulative\n100 2 0.666666667\n50175 1 1.000000000\n");
}

TEST(CompareTest, RatiosOfTwoRuns) {
  const auto a =
      ReadResults(R"({"version":1,"result":{"iops":1000,"latency_ns":{"p50":20},"first_error":""}})", "a");
  const auto b = ReadResults(R"({"version":1,"result":{"iops":1500,"latency_ns":{"p50":10},"new":1}})", "b");
  ASSERT_TRUE(a.ok() && b.ok());
  const std::string table = CompareTable(*a, *b);
  EXPECT_NE(table.find("1.500"), std::string::npos) << table;
  EXPECT_NE(table.find("latency_ns.p50"), std::string::npos) << table;
  EXPECT_NE(table.find("0.500"), std::string::npos) << table;
  EXPECT_NE(table.find("new"), std::string::npos) << table;
}

TEST(CompareTest, SpreadsOfBenchmarks) {
  const char* left =
      R"({"x_ns":{"value":100,"unit":"ns","spread":5,"runs":[95,100,105]},"y":{"value":2,"spread":0}})";
  const char* right = R"({"x_ns":{"value":104,"unit":"ns","spread":2,"runs":3},"y":{"value":3}})";
  const auto a = ReadResults(left, "a");
  const auto b = ReadResults(right, "b");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), 2U);
  const std::string table = CompareTable(*a, *b);
  EXPECT_NE(table.find("1.040 ns (within the spread)"), std::string::npos) << table;
  EXPECT_NE(table.find("1.500\n"), std::string::npos) << table;
}

TEST(CompareTest, RefusesWhatIsNoResult) {
  for (const char* bad : {"", "[1]", "{}", "{\"x\":1}", "{\"version\":1", "nonsense"}) {
    const auto read = ReadResults(bad, "file.json");
    ASSERT_FALSE(read.ok()) << bad;
    EXPECT_NE(read.error().message.find("file.json"), std::string::npos);
  }
}

scsi::Cdb CdbAt(const LoadDisk& target, LoadOp op, uint32_t block_bytes, uint64_t offset_bytes) {
  const ScsiLoadRequest::Disk disk(target, block_bytes);
  ScsiLoadRequest::Area area{};
  ScsiLoadRequest::Form(area, op, disk, 7);
  ScsiLoadRequest::Aim(area, op, disk, offset_bytes);
  EXPECT_TRUE(std::equal(target.lun.begin(), target.lun.end(), area.header.lun));
  EXPECT_FALSE(ScsiLoadRequest::Good(area)) << "not answered yet";
  scsi::Cdb cdb;
  std::copy_n(area.header.cdb, cdb.size(), cdb.begin());
  return cdb;
}

TEST(LoadRequestTest, ScsiCommandsAreWhatTheDiskNeeds) {
  LoadDisk small{.name = "small", .bytes = 1ULL << 30, .logical_block_bytes = 512, .lun = scsi::LunOf(3)};
  EXPECT_EQ(CdbAt(small, LoadOp::kRead, 4096, 40960), scsi::Read10(80, 8));
  EXPECT_EQ(CdbAt(small, LoadOp::kWrite, 4096, 40960), scsi::Write10(80, 8));
  EXPECT_EQ(CdbAt(small, LoadOp::kWriteZeroes, 4096, 40960), scsi::WriteSame16(80, 8, scsi::kSameNdob));
  EXPECT_EQ(CdbAt(small, LoadOp::kFlush, 4096, 40960), scsi::SynchronizeCache10());
  EXPECT_EQ(CdbAt(small, LoadOp::kRead, 32U << 20, 32U << 20), scsi::Read16(65536, 65536))
      << "too long for READ (10)";
  LoadDisk large{.name = "large", .bytes = 1ULL << 45, .logical_block_bytes = 4096, .lun = scsi::LunOf(0)};
  EXPECT_EQ(CdbAt(large, LoadOp::kRead, 8192, (1ULL << 45) - 8192), scsi::Read16((1ULL << 33) - 2, 2));
  EXPECT_EQ(CdbAt(large, LoadOp::kWrite, 8192, 8192), scsi::Write16(2, 2));
}

TEST(LoadRequestTest, ScsiUnmapHasOneRange) {
  const LoadDisk target{.name = "disk", .bytes = 1ULL << 30, .logical_block_bytes = 512};
  const ScsiLoadRequest::Disk disk(target, 4096);
  ScsiLoadRequest::Area area{};
  ScsiLoadRequest::Form(area, LoadOp::kDiscard, disk, 0);
  ScsiLoadRequest::Aim(area, LoadOp::kDiscard, disk, 4096 * 5);
  EXPECT_EQ(scsi::Big(area.unmap, 0, 2), 22U);
  EXPECT_EQ(scsi::Big(area.unmap, 2, 2), 16U);
  EXPECT_EQ(scsi::Big(area.unmap, 8, 8), 40U);
  EXPECT_EQ(scsi::Big(area.unmap, 16, 4), 8U);
  EXPECT_EQ(area.header.cdb[0], 0x42);
}

TEST(RingLoopTest, EveryFormatAndDepthGoesRound) {
  for (const bool packed : {false, true}) {
    for (const bool indirect : {false, true}) {
      for (const uint32_t depth : {1U, 7U, 32U}) {
        const RingLoopOptions options{
            .packed = packed, .indirect = indirect, .depth = depth, .time_ns = 0, .requests = 100};
        Result<RingLoopReport> report = RunRingLoop(options);
        ASSERT_TRUE(report.ok()) << report.error().message;
        EXPECT_EQ(report->requests, 100U);
        EXPECT_EQ(report->errors, 0U);
        EXPECT_GT(report->ns_per_request(), 0);
      }
    }
  }
}

}  // namespace
}  // namespace cleat::perf::load_parts_test
