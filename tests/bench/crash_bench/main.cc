// SPDX-License-Identifier: Apache-2.0
// cleat-crash-bench: how long guests wait when the engine is killed and started again.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "../host_bench/bench_host.h"
#include "../host_bench/control_plane.h"
#include "../host_bench/figures.h"
#include "base/clock.h"
#include "base/version.h"
#include "perf/crash/crash_load.h"
#include "perf/driver/disk_port.h"
#include "perf/workload/verify.h"
#include "restart_fleet.h"

namespace cleat::bench {
namespace {

constexpr const char* kFooter =
    R"(On a host with cleatd and an engine with one reactor, guests played by this program:
  restart_100_disks_ms   100 virtio-blk guests with a null disk each: from the start of a new engine until all of them
                         had the request answered that was waiting in their rings
  crash_gap_ms_p99       4 guests with verified load on memory disks: the longest silence between two answers that a
                         guest saw around a SIGKILL of the engine, which is started again at once; 99th percentile of
                         all kills and guests of a round (also _p50 and _max)

Example:
  build/bin/cleat-crash-bench --bin-dir build/bin --json /tmp/crash.json)";
constexpr uint64_t kLoadBytes = uint64_t{2} << 20;  // of each disk
constexpr uint32_t kBlockBytes = 512;
constexpr uint64_t kRecoverTimeoutNs = 60 * kNsPerSecond;
constexpr uint64_t kRequestsBetweenMax = 2000;
constexpr uint32_t kCallsInFlight = 32;
constexpr uint64_t kPauseNs = 200 * kNsPerUs;  // the generator's core is the new engine's as well

std::atomic<bool> g_stop{false};

void HandleSignal(int /*signal*/) {
  g_stop.store(true);
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = HandleSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

struct Plan {
  HostOptions host;
  uint32_t disks = 100;
  uint32_t restarts = 7;
  uint32_t loaded = 4;
  uint32_t rounds = 4;
  uint32_t kills = 12;  // a round
};

double Ms(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerMs);
}

// A host with blk controllers, a disk and a guest each. The guests go last.
struct Populated {
  std::unique_ptr<RestartFleet> guests;
  std::unique_ptr<BenchHost> host;
};

Result<Populated> Populate(const HostOptions& options, const HostShape& shape) {
  Populated made;
  auto host = BenchHost::Start(options);
  if (!host) return std::move(host).error();
  made.host = std::move(*host);
  ControlPlane control(made.host->address(), g_stop);
  std::vector<std::string> sockets;
  for (uint32_t i = 0; i < shape.controllers; ++i) sockets.push_back(made.host->SocketOf(ControllerId(i)));
  auto guests = RestartFleet::Listen(sockets);
  if (!guests) return std::move(guests).error();
  made.guests = std::move(*guests);
  Status status = control.WaitForEngine();
  if (status) {
    status = control.CreateControllers(shape, [&](const std::string& id) { return made.host->SocketOf(id); });
  }
  if (status) status = control.CreateDisks(shape);
  if (!status) return std::move(status).error();
  if (auto attached = control.Attach(shape, kCallsInFlight); !attached) return std::move(attached).error();
  if (status = made.guests->Open(g_stop); !status) return std::move(status).error();
  return made;
}

Result<double> RestartOnce(Populated& made) {
  made.host->KillEngine();
  if (Status submitted = made.guests->Submit(); !submitted) return std::move(submitted).error();
  const uint64_t start_ns = MonotonicClock().NowNs();
  if (Status started = made.host->StartEngine(); !started) return std::move(started).error();
  auto end_ns = made.guests->Recover(g_stop);
  if (!end_ns) return std::move(end_ns).error();
  return Ms(*end_ns - start_ns);
}

Status MeasureRestart(const Plan& plan, Figures& figures) {
  fmt::print("restarting the engine under {} disks, {} times\n", plan.disks, plan.restarts);
  const HostShape shape{.controllers = plan.disks, .targets = 1, .type = v1::CONTROLLER_TYPE_BLK};
  auto made = Populate(plan.host, shape);
  if (!made) return std::move(made).error();
  std::vector<double> runs;
  for (uint32_t i = 0; i < plan.restarts; ++i) {
    auto ms = RestartOnce(*made);
    if (!ms) return Error(ms.error().code, ms.error().message + "\n" + made->host->LogTails());
    runs.push_back(*ms);
  }
  figures.Add("restart_100_disks_ms", "ms", runs);
  return made->host->End();
}

struct Loaded {
  Loaded(perf::BlkDriver& driver, uint64_t id)
      : port(driver),
        blocks(kLoadBytes, kBlockBytes, id),
        load(port, blocks, {.seed = id, .pause_ns = kPauseNs}) {}
  perf::BlkPort port;
  perf::StampedBlocks blocks;
  perf::CrashLoad load;
};

Status Judge(const std::vector<std::unique_ptr<Loaded>>& guests) {
  for (const auto& guest : guests) {
    for (const perf::CrashFinding& finding : guest->load.findings()) {
      return Error(ErrorCode::kDataLoss,
                   fmt::format("a guest found fault: {}: {}", CrashFaultName(finding.fault), finding.text));
    }
  }
  return Ok{};
}

// The gaps of one kill, added to `gaps_ms`.
Status KillOnce(BenchHost& host, const std::vector<std::unique_ptr<Loaded>>& guests, Random& random,
                std::vector<double>* gaps_ms) {
  if (g_stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
  for (const auto& guest : guests)
    guest->load.WaitProgress(random.Below(kRequestsBetweenMax), kRecoverTimeoutNs);
  for (const auto& guest : guests) guest->load.gaps().TakeLongestNs();
  host.KillEngine();
  std::vector<uint64_t> marks;
  for (const auto& guest : guests) marks.push_back(guest->load.Mark());
  if (Status started = host.StartEngine(); !started) return started;
  for (size_t i = 0; i < guests.size(); ++i) {
    if (!guests[i]->load.WaitRecovered(marks[i], kRecoverTimeoutNs)) {
      Status judged = Judge(guests);
      if (!judged) return judged;
      return Error(ErrorCode::kDeadlineExceeded, "a guest was not served again\n" + host.LogTails());
    }
    gaps_ms->push_back(Ms(guests[i]->load.gaps().TakeLongestNs()));
  }
  return Judge(guests);
}

Status MeasureGap(const Plan& plan, Figures& figures) {
  fmt::print("killing the engine under load, {} times\n", plan.rounds * plan.kills);
  const HostShape shape{
      .controllers = plan.loaded, .targets = 1, .type = v1::CONTROLLER_TYPE_BLK, .with_memory = plan.loaded};
  auto made = Populate(plan.host, shape);
  if (!made) return std::move(made).error();
  std::vector<std::unique_ptr<Loaded>> guests;
  for (size_t i = 0; i < made->guests->size(); ++i) {
    guests.push_back(std::make_unique<Loaded>(made->guests->driver(i), i + 1));
    if (Status started = guests.back()->load.Start(); !started) return started;
  }
  Random random(1);
  std::vector<double> p50, p99, max;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    std::vector<double> gaps_ms;
    for (uint32_t kill = 0; kill < plan.kills; ++kill) {
      if (Status killed = KillOnce(*made->host, guests, random, &gaps_ms); !killed) return killed;
    }
    p50.push_back(Percentile(gaps_ms, 0.5));
    p99.push_back(Percentile(gaps_ms, 0.99));
    max.push_back(Percentile(gaps_ms, 1));
  }
  for (const auto& guest : guests) guest->load.Stop();
  if (Status judged = Judge(guests); !judged) return judged;
  figures.Add("crash_gap_ms_p50", "ms", p50);
  figures.Add("crash_gap_ms_p99", "ms", p99);
  figures.Add("crash_gap_ms_max", "ms", max);
  guests.clear();
  return made->host->End();
}

int Complain(const Error& error) {
  fmt::print(stderr, "cleat-crash-bench: {}\n", error.message);
  return 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  std::string json;
  bool quick = false;
  plan.host.parent_dir = std::filesystem::temp_directory_path();
  CLI::App app("Measures how long guests wait when the engine is killed and started again.",
               "cleat-crash-bench");
  app.set_version_flag("--version", std::string("cleat-crash-bench ") + kVersion);
  app.add_option("--bin-dir", plan.host.bin_dir, "Where cleatd and cleat-engine are")->required();
  app.add_option("--json", json, "The figures, to a file or - for standard output")->required();
  app.add_option("--dir", plan.host.parent_dir, "Where the hosts' folders are made")->capture_default_str();
  app.add_option("--engine-core", plan.host.engine_core, "Core of the engines' reactors")
      ->capture_default_str();
  app.add_option("--kills", plan.kills, "Of the engine under load, a round")->capture_default_str();
  app.add_flag("--quick", quick, "A smoke test with fewer of everything. Its figures mean nothing");
  app.footer(kFooter);
  CLI11_PARSE(app, argc, argv);
  CatchSignals();
  if (quick) {
    plan.disks = 8;
    plan.restarts = 1;
    plan.rounds = 1;
    plan.kills = 2;
  }
  Figures figures;
  if (quick) figures.Add("quick", "flag", {1});
  if (Status status = MeasureRestart(plan, figures); !status) return Complain(status.error());
  if (Status status = MeasureGap(plan, figures); !status) return Complain(status.error());
  if (Status status = figures.Write(json); !status) return Complain(status.error());
  return 0;
}

}  // namespace
}  // namespace cleat::bench

int main(int argc, char** argv) {
  return cleat::bench::Main(argc, argv);
}
