// SPDX-License-Identifier: Apache-2.0
// cleat-host-bench: how a host with 3,072 disks attaches them, idles, wakes up, and serves a few of them.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/version.h"
#include "phases.h"

namespace cleat::bench {
namespace {

constexpr const char* kFooter =
    R"(On one host with 384 virtio-scsi controllers, each with a guest (played by this program) and 8 null disks:
  attach_3072_serial_s       all attached, one call after the other, until all are READY
  attach_3072_parallel_s     the same with --in-flight calls at once, on a fresh host
  attach_3072_last_over_first_ratio  mean time of the last tenth of the serial calls over the first tenth's
  idle_3072_cpu_percent      CPU of engine and cleatd together while nobody does anything
  idle_disk_kib              Private_Dirty of the engine per disk, with its part of controllers and connections
  idle_used_disk_kib         the same once every disk was read from
  idle_wake_us_p50           from the kick of a sleeping disk to its used entry, 4 KiB read; of a disk that was
                             read once before (first_wake_us_p50: of one that was not). host_wake_us_p50 is
                             what a bare thread takes that sleeps in epoll_wait
  active_64_of_3072_ratio    requests a second of 64 disks on 64 of the controllers, over those of 64 disks
                             on 64 controllers on a host that has no others; in turns
  get_p99_ms_while_creating  99th percentile of GetDisk while four others create disks, on a store whose disk takes
                             20 ms to sync (get_p99_ms_alone: while nobody does)
  pool_create_ms_p50         CreateDisk of a disk of a pool whose drive is a sparse file (file_create_ms_p50: of a disk in
                             a file that is made with it), in turns
  pool_3072_attach_s         attach_3072_parallel_s of disks of that pool
and some more that explain these. Exit status: 0 - measured, 1 - could not be measured. Bars are not judged here.

Example:
  build/bin/cleat-host-bench --bin-dir build/bin --json /tmp/host.json)";
constexpr rlim_t kDescriptorsAController = 16;
constexpr rlim_t kDescriptorsBesides = 256;
constexpr unsigned kCoresNeeded = 2;

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

// Of this process, about 16 for each controller of both hosts; the engines raise their own.
Status RaiseDescriptorLimit(const Plan& plan) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const rlim_t wanted =
      (plan.shape.controllers + plan.active) * kDescriptorsAController + kDescriptorsBesides;
  if (limit.rlim_max >= wanted) return Ok{};
  return Error(ErrorCode::kResourceExhausted,
               fmt::format("{} descriptors may be open, {} are needed: raise RLIMIT_NOFILE (ulimit -Hn)",
                           limit.rlim_max, wanted));
}

void MakeQuick(Plan* plan) {
  plan->shape = {.controllers = 8, .targets = 8};
  plan->active = 4;
  plan->get_ms = 300;
  plan->creates = 5;
  plan->idle_windows = 1;
  plan->idle_window_ms = 500;
  plan->wakes = 20;
  plan->load_pairs = 1;
  plan->load_ms = 100;
}

int Complain(const Error& error) {
  fmt::print(stderr, "cleat-host-bench: {}\n", error.message);
  return 1;
}

int Main(int argc, char** argv) {
  Plan plan;
  std::string json;
  bool quick = false;
  plan.host.parent_dir = std::filesystem::temp_directory_path();
  CLI::App app("Measures a whole host: cleatd, an engine with one reactor, and 384 guests with 3,072 disks.",
               "cleat-host-bench");
  app.set_version_flag("--version", std::string("cleat-host-bench ") + kVersion);
  app.add_option("--bin-dir", plan.host.bin_dir, "Where cleatd and cleat-engine are")->required();
  app.add_option("--json", json, "The figures, to a file or - for standard output")->required();
  app.add_flag(
      "--quick", quick,
      "A smoke test: the same steps and names with 64 disks, 4 of them busy. Its figures mean nothing");
  app.add_option("--dir", plan.host.parent_dir,
                 "Where the hosts' folders are made; a durable answer is as slow as this file system")
      ->capture_default_str();
  app.add_option("--in-flight", plan.in_flight, "Calls at once of the parallel attach")
      ->check(CLI::Range(2, 100))
      ->capture_default_str();
  app.add_option("--depth", plan.depth, "Requests in flight on each busy disk")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--engine-core", plan.host.engine_core, "Core of the engines' reactors")
      ->capture_default_str();
  app.add_option("--generator-core", plan.generator_core, "Core of the load")->capture_default_str();
  std::vector<std::string> parts{"serial", "parallel", "pool"};
  app.add_option("--only", parts,
                 "Some of: serial (and idle and wake-up), parallel (and the busy disks), pool (its disks)")
      ->delimiter(',')
      ->check(CLI::IsMember({"serial", "parallel", "pool"}))
      ->capture_default_str();
  app.footer(kFooter);
  CLI11_PARSE(app, argc, argv);

  if (std::thread::hardware_concurrency() < kCoresNeeded)
    return Complain(
        Error(ErrorCode::kFailedPrecondition, "two cores are needed: engine and load have one each"));
  CatchSignals();
  const auto is_wanted = [&parts](const char* part) {
    return std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  plan.serial = is_wanted("serial");
  plan.parallel = is_wanted("parallel");
  plan.pool = is_wanted("pool");
  Figures figures;
  if (quick) {
    MakeQuick(&plan);
    fmt::print("QUICK: {} disks instead of 3,072; a smoke test, whose figures mean nothing\n",
               plan.shape.disks());
    figures.Add("quick", "flag", {1});
  }
  if (Status status = RaiseDescriptorLimit(plan); !status) return Complain(status.error());
  Phases phases(plan, figures, g_stop);
  if (Status status = phases.Run(); !status) return Complain(status.error());
  if (Status status = figures.Write(json); !status) return Complain(status.error());
  return 0;
}

}  // namespace
}  // namespace cleat::bench

int main(int argc, char** argv) {
  return cleat::bench::Main(argc, argv);
}
