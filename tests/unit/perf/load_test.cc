// SPDX-License-Identifier: Apache-2.0
#include "perf/load/load.h"

#include <gtest/gtest.h>

#include <thread>

#include "fake_backend.h"

namespace cleat::perf::load_test {
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
  for (const LoadPattern pattern : {LoadPattern::kSequential, LoadPattern::kRandom, LoadPattern::kZipf}) {
    for (const LoadMix& mix : {kReadsOnly, kWritesOnly}) {
      const LoadOptions options{.pattern = pattern, .mix = mix, .depth = 4, .requests = 1001};
      Result<LoadReport> report = RunLoad(*driver, options);
      ASSERT_TRUE(report.ok()) << report.error().message;
      EXPECT_EQ(report->requests, 1001U);
      EXPECT_EQ(report->latency.total(), 1001U);
      EXPECT_EQ(report->data_bytes, 1001U * 4096);
      EXPECT_EQ(report->errors, 0U) << report->first_error;
      // A look takes 16 requests at most.
      EXPECT_GT(report->polls - report->idle_polls, 1001U / 16);
    }
  }
}

TEST_F(LoadTest, SleepingOnCallsRunsTheSame) {
  Start(2);
  const LoadOptions options{.depth = 4, .requests = 3000, .wait = LoadWait::kCall};
  Result<LoadReport> report = RunLoad(*driver, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->requests, 3000U);
  EXPECT_EQ(report->polls, 0U);
  EXPECT_GT(driver->ring(0).stats().chains, 0U);
}

TEST_F(LoadTest, EveryOperationOfTheMixReachesTheDisk) {
  Start(1);
  const LoadOptions options{.mix = ParseMix("read=30,write=30,flush=10,discard=10,zeroes=20").value(),
                            .segments = 4,
                            .depth = 3,
                            .requests = 2000};
  Result<LoadReport> report = RunLoad(*driver, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->errors, 0U) << report->first_error;
  uint64_t sum = 0;
  for (size_t op = 0; op < kLoadOps; ++op) {
    const LoadReport::Operation& operation = report->operations[op];
    // Of a hundred: within a third of what was asked for, for this seed.
    EXPECT_NEAR(static_cast<double>(operation.requests), options.mix[op] * 20.0, options.mix[op] * 20.0 / 3)
        << kLoadOpNames[op];
    EXPECT_EQ(operation.latency.total(), operation.requests);
    sum += operation.requests;
  }
  EXPECT_EQ(sum, 2000U);
  TearDown();
  driver.reset();
  EXPECT_EQ(disk.flushes(), report->operations[static_cast<size_t>(LoadOp::kFlush)].requests);
}

TEST_F(LoadTest, WarmUpIsNotCounted) {
  Start(1);
  uint64_t chains = 0;
  // A warm-up for which the machine had no core says nothing: then it is a longer one's turn.
  for (uint64_t warmup_ns = 20 * kNsPerMs; chains <= 100; warmup_ns *= 8) {
    ASSERT_LT(warmup_ns, 60 * kNsPerSecond) << "nothing ran in the warm-up";
    const uint64_t before = driver->ring(0).stats().chains;
    const LoadOptions options{.depth = 2, .requests = 100, .warmup_ns = warmup_ns};
    Result<LoadReport> report = RunLoad(*driver, options);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->requests, 100U);
    chains = driver->ring(0).stats().chains - before;
  }
}

TEST_F(LoadTest, DeeperThanTheRingIsRefused) {
  Start(1);
  const LoadOptions options{.depth = 40, .requests = 500};
  Result<LoadReport> report = RunLoad(*driver, options);
  ASSERT_FALSE(report.ok());
  EXPECT_NE(report.error().message.find("do not fit into a ring of 16"), std::string::npos)
      << report.error().message;
}

TEST_F(LoadTest, VerifyFindsNothingOnAGoodDisk) {
  Start(2);
  const LoadOptions options{.mix = ParseMix("read=20,write=60,zeroes=20").value(),
                            .segments = 3,
                            .depth = 4,
                            .requests = 2000,
                            .verify = true};
  Result<LoadReport> good = RunLoad(*driver, options);
  ASSERT_TRUE(good.ok()) << good.error().message;
  EXPECT_EQ(good->faults, 0U) << good->first_fault;
  EXPECT_EQ(good->requests, 2000U);
  EXPECT_GE(good->verified_blocks, kMiB / options.block_bytes);
}

TEST_F(LoadTest, WhatAnEarlierRunWroteIsNoFault) {
  Start(1);
  const LoadMix mix = ParseMix("read=50,write=50").value();
  ASSERT_TRUE(RunLoad(*driver, {.mix = mix, .depth = 2, .requests = 3000, .verify = true}).ok());
  Result<LoadReport> again =
      RunLoad(*driver, {.mix = mix, .depth = 4, .requests = 500, .verify = true, .seed = 2});
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again->faults, 0U) << again->first_fault;
}

TEST_F(LoadTest, VerifyFindsOneLostWrite) {
  // Each block is written once, so that no later write hides it.
  disk.LoseWrite(100);
  Start(1);
  const LoadOptions options{.pattern = LoadPattern::kSequential,
                            .mix = kWritesOnly,
                            .depth = 1,
                            .requests = kMiB / 4096,
                            .verify = true};
  Result<LoadReport> report = RunLoad(*driver, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_GE(report->faults, 1U);
  EXPECT_NE(report->first_fault.find("lost"), std::string::npos) << report->first_fault;
}

// Every second request is answered with an error.
class FailingDisk final : public FakeDevice {
 public:
  std::optional<uint32_t> Serve(uint16_t queue, std::span<const uint8_t> out,
                                std::span<uint8_t> in) override {
    const auto written = disk_.Serve(queue, out, in);
    if (++count_ % 2 == 0) in.back() = wire::kBlkIoError;
    return written;
  }
  wire::BlkConfig Config(uint16_t queues) const override { return disk_.Config(queues); }

 private:
  FakeDisk disk_{kMiB};
  uint64_t count_ = 0;
};

TEST_F(LoadTest, CountsWhatTheDeviceFails) {
  FailingDisk failing;
  auto [ours, theirs] = SocketPair();
  FakeBackend failing_backend(std::move(theirs), failing);
  auto peer = Frontend::Wrap(std::move(ours));
  ASSERT_TRUE(peer->Open().ok());
  auto started = BlkDriver::Start(*peer, *memory, {.queue_size = 16});
  ASSERT_TRUE(started.ok());
  const LoadOptions options{.depth = 4, .requests = 400};
  Result<LoadReport> report = RunLoad(**started, options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->requests, 400U);
  EXPECT_EQ(report->errors, 200U);
  EXPECT_NE(report->first_error.find("I/O error"), std::string::npos) << report->first_error;
}

TEST_F(LoadTest, RefusesWhatCannotRun) {
  Start(1);
  EXPECT_FALSE(RunLoad(*driver, {}).ok()) << "no end";
  EXPECT_FALSE(RunLoad(*driver, {.block_bytes = 100, .requests = 1}).ok());
  EXPECT_FALSE(RunLoad(*driver, {.segments = 9, .requests = 1}).ok()) << "less than a sector each";
  EXPECT_FALSE(RunLoad(*driver, {.depth = 1000, .requests = 1}).ok()) << "more requests than blocks";
  EXPECT_FALSE(RunLoad(*driver, {.mix = {50, 0, 0, 50, 0}, .requests = 1, .verify = true}).ok());
}

TEST_F(LoadTest, ABackEndThatGoesAwayIsAnErrorThatSaysSo) {
  for (const LoadWait wait : {LoadWait::kPoll, LoadWait::kCall}) {
    auto [ours, theirs] = SocketPair();
    FakeBackend dying(std::move(theirs), disk, {.dies_after_requests = 50});
    auto peer = Frontend::Wrap(std::move(ours));
    ASSERT_TRUE(peer->Open().ok());
    auto started = BlkDriver::Start(*peer, *memory, {.queue_size = 16});
    ASSERT_TRUE(started.ok());
    const LoadOptions options{.depth = 4, .requests = 1000, .wait = wait};
    Result<LoadReport> report = RunLoad(**started, options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(report.error().message.find("closed the connection"), std::string::npos)
        << report.error().message;
  }
}

// A disk that takes `stall_ns` for one request, and is quick otherwise.
class StallingDisk final : public FakeDevice {
 public:
  StallingDisk(uint64_t bytes, uint64_t at_request, uint64_t stall_ns)
      : disk_(bytes), left_(at_request), stall_ns_(stall_ns) {}
  std::optional<uint32_t> Serve(uint16_t queue, std::span<const uint8_t> out,
                                std::span<uint8_t> in) override {
    if (--left_ == 0) {
      // The device's own time: nobody waits for it with a guess.
      const Deadline over(stall_ns_);
      while (!over.passed()) std::this_thread::yield();
    }
    return disk_.Serve(queue, out, in);
  }
  wire::BlkConfig Config(uint16_t queues) const override { return disk_.Config(queues); }

 private:
  FakeDisk disk_;
  uint64_t left_;
  const uint64_t stall_ns_;
};

struct OpenLoopTest : ::testing::Test {
  Result<LoadReport> RunAgainstStall(const LoadOptions& options, uint64_t at_request, uint64_t stall_ns) {
    StallingDisk disk(kMiB, at_request, stall_ns);
    auto [ours, theirs] = SocketPair();
    FakeBackend backend(std::move(theirs), disk);
    auto frontend = Frontend::Wrap(std::move(ours));
    CLEAT_CHECK(frontend->Open().ok());
    auto driver = BlkDriver::Start(*frontend, *memory, {.queue_size = 16});
    CLEAT_CHECK(driver.ok());
    Result<LoadReport> report = RunLoad(**driver, options);
    CLEAT_CHECK((*driver)->Stop().ok());
    return report;
  }
  static uint64_t AtLeast(const LatencyHistogram& latency, uint64_t ns) {
    uint64_t count = 0;
    for (size_t i = LatencyHistogram::Bucket(ns); i < LatencyHistogram::kBuckets; ++i)
      count += latency.count(i);
    return count;
  }
  std::unique_ptr<GuestMemory> memory = GuestMemory::CreateWithHole(64 * kMiB).value();
};

constexpr uint64_t kStallNs = 200 * kNsPerMs;

// 1,000 a second, one in flight: during a stall of 200 ms 200 requests become due, and half of them have to wait for
// more than half of it. (A closed loop would see one slow request.)
TEST_F(OpenLoopTest, AStallDelaysEveryRequestThatWasDueInIt) {
  for (const LoadWait wait : {LoadWait::kPoll, LoadWait::kCall}) {
    const LoadOptions options{.depth = 1, .requests = 400, .rate = 1000, .wait = wait};
    Result<LoadReport> report = RunAgainstStall(options, 50, kStallNs);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->requests, 400U);
    EXPECT_EQ(report->unsent, 0U);
    EXPECT_GE(AtLeast(report->latency, kStallNs / 2), 100U);
    EXPECT_GE(report->latency.PercentileNs(0.8), kStallNs / 2);
    EXPECT_GE(report->latency.max_ns(), kStallNs);
  }
}

TEST_F(OpenLoopTest, WhatWasDueAndNeverSentIsCounted) {
  // The end comes in the middle of the stall.
  const LoadOptions options{.depth = 1, .time_ns = 100 * kNsPerMs, .rate = 1000};
  Result<LoadReport> report = RunAgainstStall(options, 20, kStallNs);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_LE(report->requests, 100U);
  EXPECT_GE(report->requests + report->unsent, 99U);
  EXPECT_LE(report->requests + report->unsent, 101U);
  EXPECT_EQ(report->latency.total(), report->requests + report->unsent);
  // Of a hundred, 20 were quick and those after them had waited for 80, 79, ... milliseconds at the end.
  EXPECT_GE(report->latency.PercentileNs(0.5), 25 * kNsPerMs);
}

TEST_F(OpenLoopTest, KeepsToTheRate) {
  const LoadOptions options{.depth = 16, .time_ns = 200 * kNsPerMs, .rate = 5000};
  Result<LoadReport> report = RunAgainstStall(options, UINT64_MAX, 0);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_NEAR(static_cast<double>(report->requests + report->unsent), 1000, 1);
}

}  // namespace
}  // namespace cleat::perf::load_test
