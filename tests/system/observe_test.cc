// SPDX-License-Identifier: Apache-2.0
// What operators see is what guests did: GetStats, /metrics and cleatctl agree with the driver's own count, a disk that
// hangs is named with the stage in which it does, and an engine's last counters outlive it.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <regex.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "expect_ok.h"
#include "host.h"
#include "http_get.h"
#include "io_load.h"
#include "peer.h"
#include "perf/vhost_user/deadline.h"
#include "tests/support/paths.h"
#include "upgrade_rig.h"

namespace cleat::system_test::observe_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kDiskBytes = 64 * kMiB;
constexpr int kLookMs = 20;  // no event tells that a number in shared memory or a line of a log has come

// POSIX extended; what the pattern's first group matched, or all of it; nothing when it does not match.
std::optional<std::string> Find(const std::string& text, const char* pattern) {
  regex_t compiled;
  if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NEWLINE) != 0) return std::nullopt;
  std::array<regmatch_t, 2> found{};
  const bool matches = regexec(&compiled, text.c_str(), found.size(), found.data(), 0) == 0;
  regfree(&compiled);
  if (!matches) return std::nullopt;
  const regmatch_t& part = found[1].rm_so >= 0 ? found[1] : found[0];
  return text.substr(static_cast<size_t>(part.rm_so), static_cast<size_t>(part.rm_eo - part.rm_so));
}

bool Eventually(const std::function<bool()>& done, uint64_t timeout_ns = kWaitTimeoutNs) {
  const perf::Deadline deadline(timeout_ns);
  while (!done()) {
    if (deadline.passed()) return false;
    poll(nullptr, 0, kLookMs);
  }
  return true;
}

v1::GetStatsResponse Stats(Host& host, const std::string& name, bool histograms = false) {
  v1::GetStatsRequest request;
  request.set_name(name);
  request.set_histograms(histograms);
  v1::GetStatsResponse response;
  grpc::ClientContext context;
  EXPECT_OK(host.api().stub().GetStats(&context, request, &response));
  return response;
}

v1::ListSlowRequestsResponse Slow(Host& host, const std::string& name) {
  v1::ListSlowRequestsRequest request;
  request.set_name(name);
  v1::ListSlowRequestsResponse response;
  grpc::ClientContext context;
  EXPECT_OK(host.api().stub().ListSlowRequests(&context, request, &response));
  return response;
}

// Zeroes when there was none.
v1::OperationStats Operation(const v1::GetStatsResponse& stats, const std::string& name) {
  for (const v1::DiskStats& disk : stats.disks()) {
    for (const v1::OperationStats& operation : disk.operations()) {
      if (operation.operation() == name) return operation;
    }
  }
  return {};
}

// Writes 300 x 4 KiB, reads 200 x 8 KiB, flushes 5 times, and fails once.
void DoCountedWork(perf::BlkDriver& driver) {
  std::vector<uint8_t> data(8192);
  for (int i = 0; i < 300; ++i) ASSERT_OK(driver.WriteSync(i * 4096, std::span(data).first(4096)));
  for (int i = 0; i < 200; ++i) ASSERT_OK(driver.ReadSync(i * 8192, data));
  for (int i = 0; i < 5; ++i) ASSERT_OK(driver.FlushSync());
  EXPECT_FALSE(driver.ReadSync(driver.capacity_bytes(), std::span(data).first(512)).ok());
}

uint64_t CountErrors(const v1::GetStatsResponse& stats) {
  uint64_t errors = 0;
  for (const v1::DiskStats& disk : stats.disks()) {
    for (const v1::OperationStats& operation : disk.operations()) errors += operation.errors();
  }
  return errors;
}

bool HasCountedWork(const v1::GetStatsResponse& stats) {
  return Operation(stats, "write").count() == 300 && Operation(stats, "flush").count() == 5 &&
         Operation(stats, "read").count() >= 200 && CountErrors(stats) > 0;
}

// Every line is a comment or a sample of the text format.
void ExpectParses(const std::string& text) {
  static constexpr char kSample[] = "^[a-z_]+(\\{([a-z]+=\"[^\"]*\",?)*\\})? [-+0-9.eInf]+$";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# HELP ") && !line.starts_with("# TYPE ")) {
      EXPECT_TRUE(Find(line, kSample)) << line;
    }
  }
}

struct Output {
  int exit_code = -1;
  std::string out;  // both streams
};
Output Cleatctl(const Host& host, const std::string& arguments) {
  const std::string command =
      fmt::format("CLEAT_ADDRESS={} {} {} 2>&1", host.address(), test::Program("cleatctl"), arguments);
  Output run;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  std::array<char, 4096> buffer;
  while (const size_t size = fread(buffer.data(), 1, buffer.size(), pipe))
    run.out.append(buffer.data(), size);
  const int status = pclose(pipe);
  run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

// What counts belongs to the disk, whoever serves it.
TEST(Observe, CountersGoOnInAnotherEngine) {
  Host host;
  ASSERT_TRUE(host.ok() && host.AttachNew("a", FileDisk(kDiskBytes, host.Path("disk.img"))));
  host.AddEngine("green");
  auto peer = Peer::Start(host.SocketPath("a"), {.auto_reconnect = true});
  ASSERT_OK(peer);
  UpgradeRig upgrades(host, kEngineId, "green", 1);
  const std::vector<uint8_t> data(4096);
  uint64_t writes = 0;
  for (int engine = 0; engine < 3; ++engine) {  // there, and back again
    for (int i = 0; i < 100; ++i, ++writes) ASSERT_OK((*peer)->driver().WriteSync(i * 4096, data));
    // The guest sees an answer before it is counted.
    EXPECT_TRUE(Eventually([&] { return Operation(Stats(host, "disks/a"), "write").count() == writes; }))
        << writes << " writes in " << engine + 1 << " engine(s): " << Stats(host, "disks/a").DebugString();
    EXPECT_EQ(Operation(Stats(host, "disks/a"), "write").bytes(), writes * data.size());
    if (engine == 2) break;
    ASSERT_EQ(upgrades.Upgrade(), "");
  }
}

TEST(Observe, WhatIsShownIsWhatTheGuestDid) {
  Host host({.cleatd_arguments = {"--metrics-address", "127.0.0.1:0"}});
  ASSERT_TRUE(host.ok() && host.AttachNew("a", FileDisk(kDiskBytes, host.Path("disk.img"))));
  auto peer = Peer::Start(host.SocketPath("a"));
  ASSERT_OK(peer);
  ASSERT_NO_FATAL_FAILURE(DoCountedWork((*peer)->driver()));
  // The guest sees an answer before it is counted.
  ASSERT_TRUE(Eventually([&] { return HasCountedWork(Stats(host, "disks/a")); }))
      << Stats(host, "disks/a").DebugString();

  const v1::GetStatsResponse stats = Stats(host, "controllers/a", true);
  ASSERT_EQ(stats.disks_size(), 1);
  EXPECT_EQ(stats.disks(0).disk(), "disks/a");
  const v1::OperationStats write = Operation(stats, "write");
  EXPECT_EQ(write.bytes(), 300U * 4096);
  EXPECT_EQ(write.errors(), 0U);
  EXPECT_EQ(Operation(stats, "read").bytes(), 200U * 8192);
  EXPECT_EQ(CountErrors(stats), 1U);
  uint64_t total_ns = 0;
  uint64_t parts_ns = 0;
  for (const v1::StageStats& stage : write.stages()) {
    if (stage.stage() == "total") {
      EXPECT_EQ(stage.count(), 300U);
      EXPECT_LE(stage.p50_ns(), stage.max_ns());
      total_ns = stage.sum_ns();
    } else if (stage.stage() != "called") {
      parts_ns += stage.sum_ns();
    }
  }
  // The whole is its parts; histograms are 1.6 % off at most, each.
  EXPECT_NEAR(static_cast<double>(parts_ns), static_cast<double>(total_ns),
              static_cast<double>(total_ns) * 0.04);

  const int port = MetricsPort(host);
  ASSERT_NE(port, 0);
  EXPECT_EQ(HttpGet(port, "/healthz").status, 200);
  EXPECT_EQ(HttpGet(port, "/").status, 404);
  EXPECT_EQ(HttpGet(port, "/metrics", "DELETE").status, 405);
  const HttpReply metrics = HttpGet(port, "/metrics");
  ASSERT_EQ(metrics.status, 200);
  ExpectParses(metrics.body);
  const std::string labels = R"({engine="engine-0",controller="a",target="0",disk="a")";
  for (const std::string& line : {
           "cleat_disk_operations_total" + labels + R"(,op="write"} 300)",
           "cleat_disk_bytes_total" + labels + R"(,op="write"} 1228800)",
           "cleat_disk_errors_total" + labels + R"(,op="write"} 0)",
           "cleat_disk_stage_seconds_count" + labels + R"(,op="write",stage="total"} 300)",
           "cleat_disk_stage_seconds_bucket" + labels + R"(,op="write",stage="total",le="+Inf"} 300)",
           std::string(R"(cleat_engine_connected{engine="engine-0"} 1)"),
       }) {
    EXPECT_NE(metrics.body.find(line + "\n"), std::string::npos) << line << "\nis not in\n" << metrics.body;
  }

  const Output shown = Cleatctl(host, "stats a");
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_TRUE(Find(shown.out, "a +a +0 +write +300 +1228800 +0")) << shown.out;

  // Without cleatd, from the engine's memory; and of a dead engine, from what cleatd keeps.
  host.KillCleatd();
  const Output direct = Cleatctl(host, fmt::format("stats a --engine {}", host.engine().pid()));
  EXPECT_EQ(direct.exit_code, 0) << direct.out;
  EXPECT_EQ(direct.out, shown.out);
  EXPECT_EQ(Cleatctl(host, fmt::format("top --once --all --engine {}", host.engine().pid())).exit_code, 0);
  host.StartCleatd();
  ASSERT_TRUE(host.WaitEngine());
  host.KillEngine();
  ASSERT_TRUE(Eventually([&] {
    const v1::GetStatsResponse last = Stats(host, "");
    return last.engines_size() == 1 && !last.engines(0).connected();
  }));
  EXPECT_EQ(Operation(Stats(host, "disks/a"), "write").count(), 300U);
}

// Reads that the disk keeps for seconds, each for another while.
constexpr uint32_t kHangingReads = 8;

void SubmitHanging(perf::BlkDriver& driver, uint64_t buffer_gpa) {
  for (uint32_t i = 0; i < kHangingReads; ++i) {
    perf::BlkIo io;
    io.offset_bytes = i * 4096;
    io.length_bytes = 4096;
    io.data_gpa = buffer_gpa;
    io.token = i;
    ASSERT_TRUE(driver.Submit(0, io));
  }
  driver.Kick(0);
}

// How many of them have ended so far.
uint32_t CountEnded(perf::BlkDriver& driver) {
  std::array<perf::BlkCompletion, kHangingReads> completions;
  return static_cast<uint32_t>(driver.Poll(0, completions));
}

struct SeenHanging {
  v1::GetStatsResponse stats;
  v1::ListSlowRequestsResponse slow;
};

// Until something was seen while reads hang, of which `ended` have ended; more are submitted if all have ended too early.
void LookWhileReadsHang(perf::BlkDriver& driver, uint64_t buffer_gpa, uint32_t* ended,
                        const std::function<bool()>& seen) {
  const perf::Deadline deadline(kWaitTimeoutNs);
  for (;; poll(nullptr, 0, kLookMs)) {
    ASSERT_FALSE(deadline.passed()) << "it was not seen";
    const bool found = seen();
    *ended += CountEnded(driver);
    if (found && *ended < kHangingReads) return;  // also at the time of that look
    if (*ended < kHangingReads) continue;
    *ended = 0;
    ASSERT_NO_FATAL_FAILURE(SubmitHanging(driver, buffer_gpa));
  }
}

TEST(Observe, ADiskThatHangsIsNamedWhileOthersGoOn) {
  Host host;
  ASSERT_TRUE(host.ok());
  v1::DiskSpec hanging = MemoryDisk(kDiskBytes);
  hanging.mutable_fault()->set_seed(7);
  hanging.mutable_fault()->set_delay_ns_max(6 * kNsPerSecond);
  ASSERT_TRUE(host.AttachNew("hangs", hanging) && host.AttachNew("runs", MemoryDisk(kDiskBytes)));
  auto running = Peer::Start(host.SocketPath("runs"));
  auto hung = Peer::Start(host.SocketPath("hangs"));
  ASSERT_OK(running);
  ASSERT_OK(hung);
  perf::StampedBlocks blocks(kDiskBytes, 512, 1);
  IoLoad load((*running)->driver(), blocks);
  load.Start();

  perf::BlkDriver& driver = (*hung)->driver();
  const auto buffer = driver.AllocateBuffer(4096);
  ASSERT_OK(buffer);
  const uint64_t submitted_ns = MonotonicClock().NowNs();
  ASSERT_NO_FATAL_FAILURE(SubmitHanging(driver, *buffer));
  uint32_t ended = 0;
  const std::string said = "disks/hangs of controllers/hangs: stuck: a read of 4096 bytes at ";
  ASSERT_NO_FATAL_FAILURE(LookWhileReadsHang(driver, *buffer, &ended, [&] {
    return host.cleatd_log().find(said) != std::string::npos;
  })) << host.cleatd_log();
  fmt::print("named after {} ms\n", (MonotonicClock().NowNs() - submitted_ns) / kNsPerMs);
  EXPECT_NE(host.cleatd_log().find("in stage submitted (for the storage)"), std::string::npos)
      << host.cleatd_log();
  EXPECT_EQ(host.cleatd_log().find("disks/runs of controllers/runs: stuck"), std::string::npos);
  EXPECT_TRUE(load.WaitProgress(1000));

  SeenHanging seen;
  ASSERT_NO_FATAL_FAILURE(LookWhileReadsHang(driver, *buffer, &ended, [&] {
    seen.stats = Stats(host, "disks/hangs");
    seen.slow = Slow(host, "disks/hangs");
    return seen.stats.disks_size() == 1 && seen.stats.disks(0).stuck();
  })) << seen.stats.DebugString();
  EXPECT_EQ(seen.stats.disks(0).oldest().stage(), "submitted");
  EXPECT_EQ(seen.stats.disks(0).oldest().length_bytes(), 4096U);
  EXPECT_TRUE(std::any_of(seen.slow.requests().begin(), seen.slow.requests().end(), [](const auto& request) {
    return !request.ended() && request.stages_size() > 0 &&
           request.stages(request.stages_size() - 1).stage() == "waiting";
  })) << seen.slow.DebugString();
  EXPECT_EQ(Slow(host, "disks/runs").requests_size(), 0);

  // All of them end, and that is told too.
  while (ended < kHangingReads) {
    ASSERT_OK(driver.Wait(kWaitTimeoutNs));
    ended += CountEnded(driver);
  }
  EXPECT_TRUE(Eventually([&] {
    return host.cleatd_log().find("disks/hangs of controllers/hangs: not stuck any more") !=
           std::string::npos;
  })) << host.cleatd_log();
  EXPECT_EQ(Stats(host, "disks/hangs").disks(0).in_flight(), 0U);
  bool ended_in_storage = false;
  const v1::ListSlowRequestsResponse all = Slow(host, "disks/hangs");
  for (const v1::SlowRequest& request : all.requests()) {
    for (const v1::StageDuration& stage : request.stages()) {
      if (request.ended() && stage.stage() == "done")
        ended_in_storage |= stage.duration_ns() > request.age_ns() / 2;
    }
  }
  EXPECT_TRUE(ended_in_storage);
  EXPECT_OK(load.Stop());
}

}  // namespace
}  // namespace cleat::system_test::observe_test
