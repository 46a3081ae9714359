// SPDX-License-Identifier: Apache-2.0
// cleat-upgrade-bench: how long guests wait when their engine is exchanged for another one.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "base/version.h"
#include "phases.h"

namespace cleat::bench {
namespace {

constexpr const char* kFooter =
    R"(On a host with cleatd and two engines with one reactor each, guests played by this program. Those under load judge
all that they read, on memory disks; a gap is the longest silence between two answers that a guest saw over an upgrade.
  upgrade_gap_ms_p99      one VM, moved there and back; also _p50 and _max
  upgrade_384_gap_ms_p99  384 controllers with 8 disks each, 64 of them under load
  upgrade_384_total_s     from the call until all of them are moved
  flooded_upgrade_ratio   50 controllers, with four more whose front ends send requests without end and read no answer: how
                          long the upgrade takes, against the 50 alone
  standby_gap_ms_p99      4 VMs: the engine is killed, another one has them standing by
  stopped_engine_seen_ms  4 VMs: the engine is stopped (SIGSTOP), until cleatd shows it as NOT_ANSWERING: the longest
  stopped_engine_standby_gap_ms_p99  ... and cleatd kills it after 1 s: another one has its controllers standing by
  tcp_upgrade_gap_ms_p99  an export whose host's connections go along: a connection that ends is an error
  nvme_upgrade_gap_ratio  one VM with an NVMe namespace (--device), whose first 64 MiB are to be zeroes: the median gap, against that
                          of windows without an upgrade
  rbd_upgrade_gap_ms_p99  one VM with an image of a Ceph cluster, which is to be there and empty (--monitors...)
_quiet_ms_* are the longest silences in equally long windows without an event: what the machine does by itself.

Example:
  build/bin/cleat-upgrade-bench --bin-dir build/bin --json /tmp/upgrade.json)";

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

void RaiseDescriptorLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void MakeQuick(Plan* plan) {
  plan->rounds = 1;
  plan->upgrades = plan->rbd_upgrades = plan->nvme_upgrades = plan->export_upgrades = 2;
  plan->crowd.controllers = 8;
  plan->crowd_loaded = 2;
  plan->crowd_upgrades = 1;
  plan->kills = plan->stops = 1;
  plan->flooded.controllers = 8;
  plan->flooded_upgrades = 1;
}

int Complain(const Error& error) {
  fmt::print(stderr, "cleat-upgrade-bench: {}\n", error.message);
  return 1;
}

Status Measure(const Plan& plan, const std::vector<std::string>& only, Figures& figures) {
  UpgradePhases phases(plan, figures, g_stop);
  const auto wanted = [&](const std::string& name) {
    return only.empty() ? name != "rbd" && name != "nvme"
                        : std::find(only.begin(), only.end(), name) != only.end();
  };
  Status status;
  if (wanted("one")) status = phases.One();
  if (status && wanted("crowd")) status = phases.Crowd();
  if (status && wanted("flooded")) status = phases.Flooded();
  if (status && wanted("standby")) status = phases.Standby();
  if (status && wanted("stopped")) status = phases.Stopped();
  if (status && wanted("export")) status = phases.Export();
  if (status && wanted("rbd")) status = phases.Rbd();
  if (status && wanted("nvme")) status = phases.Nvme();
  return status;
}

int Main(int argc, char** argv) {
  Plan plan;
  std::string json;
  std::vector<std::string> only;
  bool quick = false;
  plan.host.parent_dir = std::filesystem::temp_directory_path();
  CLI::App app("Measures how long guests wait when their engine is exchanged for another one.",
               "cleat-upgrade-bench");
  app.set_version_flag("--version", std::string("cleat-upgrade-bench ") + kVersion);
  app.add_option("--bin-dir", plan.host.bin_dir, "Where cleatd and cleat-engine are")->required();
  app.add_option("--json", json, "The figures, to a file or - for standard output")->required();
  app.add_option("--dir", plan.host.parent_dir, "Where the hosts' folders are made")->capture_default_str();
  app.add_option("--engine-core", plan.host.engine_core, "Core of the engines' reactors")
      ->capture_default_str();
  app.add_option("--only", only,
                 "one, crowd, flooded, standby, stopped, export, rbd, nvme (default: all but the last two)")
      ->delimiter(',');
  app.add_option("--rounds", plan.rounds, "That a figure is the median of")->capture_default_str();
  app.add_option("--upgrades", plan.upgrades, "Of one VM, a round")->capture_default_str();
  app.add_option("--crowd-upgrades", plan.crowd_upgrades, "Of 384 controllers, a round")
      ->capture_default_str();
  app.add_option("--flooded-upgrades", plan.flooded_upgrades, "With and without peers that flood, a round")
      ->capture_default_str();
  app.add_option("--kills", plan.kills, "Of the principal, a round")->capture_default_str();
  app.add_option("--stops", plan.stops, "Of the principal, a round")->capture_default_str();
  app.add_option("--monitors", plan.monitors, "Of the Ceph cluster, for rbd");
  app.add_option("--user", plan.user, "Of the cluster")->capture_default_str();
  app.add_option("--key", plan.key, "That user's key")->envname("CLEAT_BENCH_CEPH_KEY");
  app.add_option("--image", plan.image, "Of the pool \"rbd\", 64 MiB of zeroes");
  app.add_option("--device", plan.device, "An NVMe namespace, for nvme");
  app.add_option("--nvme-upgrades", plan.nvme_upgrades, "Of one VM with it, a round")->capture_default_str();
  app.add_option("--export-upgrades", plan.export_upgrades,
                 "Of an export under a host over NVMe/TCP, a round")
      ->capture_default_str();
  app.add_flag("--quick", quick, "A smoke test with fewer of everything. Its figures mean nothing");
  app.footer(kFooter);
  CLI11_PARSE(app, argc, argv);
  CatchSignals();
  RaiseDescriptorLimit();
  if (quick) MakeQuick(&plan);
  Figures figures;
  if (quick) figures.Add("quick", "flag", {1});
  if (Status status = Measure(plan, only, figures); !status) return Complain(status.error());
  if (Status status = figures.Write(json); !status) return Complain(status.error());
  return 0;
}

}  // namespace
}  // namespace cleat::bench

int main(int argc, char** argv) {
  return cleat::bench::Main(argc, argv);
}
