// SPDX-License-Identifier: Apache-2.0
#include "perf/load.h"

#include <gtest/gtest.h>

#include "fake_backend.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct LoadTest : ::testing::Test {
  void Start(uint16_t queues) {
    auto [ours, theirs] = SocketPair();
    backend = std::make_unique<FakeBackend>(std::move(theirs), disk, FakeBackendOptions{.queues = queues});
    frontend = Frontend::Wrap(std::move(ours));
    ASSERT_TRUE(frontend->Open().ok());
    auto started = BlkDriver::Start(*frontend, *memory, {.num_queues = queues, .queue_size = 16});
    ASSERT_TRUE(started.ok());
    driver = std::move(*started);
  }
  void TearDown() override {
    if (driver) {
      EXPECT_TRUE(driver->Stop().ok());
    }
    backend.reset();
  }
  FakeDisk disk{kMiB};
  std::unique_ptr<GuestMemory> memory = GuestMemory::CreateWithHole(64 * kMiB).value();
  std::unique_ptr<FakeBackend> backend;
  std::unique_ptr<Frontend> frontend;
  std::unique_ptr<BlkDriver> driver;
};

TEST_F(LoadTest, RunsTheNumberOfRequestsAskedFor) {
  Start(2);
  for (const LoadPattern pattern : {LoadPattern::kRead, LoadPattern::kRandRead, LoadPattern::kWrite}) {
    const LoadOptions options{.pattern = pattern, .queue_depth = 4, .requests = 1000};
    Result<LoadReport> report = RunLoad(*driver, options);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->requests, 1000U);
    EXPECT_EQ(report->latency.total(), 1000U);
    EXPECT_EQ(report->errors, 0U);
  }
}

TEST_F(LoadTest, DeeperThanTheRingStillRuns) {
  Start(1);
  const LoadOptions options{.queue_depth = 40, .requests = 500};
  Result<LoadReport> report = RunLoad(*driver, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->requests, 500U);
}

TEST_F(LoadTest, VerifyFindsNothingOnAGoodDisk) {
  Start(2);
  const LoadOptions options{
      .pattern = LoadPattern::kRandWrite, .queue_depth = 4, .requests = 2000, .verify = true};
  Result<LoadReport> good = RunLoad(*driver, options);
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->faults, 0U) << good->first_fault;
  EXPECT_GE(good->verified_blocks, kMiB / options.block_bytes);
}

TEST_F(LoadTest, VerifyFindsOneLostWrite) {
  // Each block is written once, so that no later write hides it.
  disk.LoseWrite(100);
  Start(1);
  const LoadOptions options{
      .pattern = LoadPattern::kWrite, .queue_depth = 4, .requests = kMiB / 4096, .verify = true};
  Result<LoadReport> report = RunLoad(*driver, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_GE(report->faults, 1U);
  EXPECT_NE(report->first_fault.find("lost"), std::string::npos) << report->first_fault;
}

TEST_F(LoadTest, RefusesWhatCannotRun) {
  Start(1);
  EXPECT_FALSE(RunLoad(*driver, {}).ok()) << "no end";
  EXPECT_FALSE(RunLoad(*driver, {.block_bytes = 100, .requests = 1}).ok());
  EXPECT_FALSE(RunLoad(*driver, {.queue_depth = 1000, .requests = 1}).ok()) << "more lanes than blocks";
}

TEST(LatencyHistogramTest, PercentilesAreWithinThreePercent) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.PercentileNs(0.5), 0U);
  for (uint64_t ns = 1; ns <= 100'000; ++ns) histogram.Record(ns);
  for (const double part : {0.1, 0.5, 0.9, 0.99, 0.999}) {
    const auto found = static_cast<double>(histogram.PercentileNs(part));
    EXPECT_NEAR(found, part * 100'000, part * 100'000 * 0.035) << part;
  }
  EXPECT_EQ(histogram.PercentileNs(1), 100'000U);
  histogram.Record(UINT64_MAX);
  EXPECT_EQ(histogram.max_ns(), UINT64_MAX);
}

}  // namespace
}  // namespace cleat::perf
