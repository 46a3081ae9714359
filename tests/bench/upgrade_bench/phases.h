// SPDX-License-Identifier: Apache-2.0
// What cleat-upgrade-bench measures, one host after the other. One thread, the main one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../host_bench/bench_host.h"
#include "../host_bench/control_plane.h"
#include "../host_bench/figures.h"
#include "base/result.h"
#include "export_host.h"
#include "flooding_peers.h"
#include "upgrade_guests.h"

namespace cleat::bench {

struct Plan {
  HostOptions host;
  uint32_t rounds = 4;
  uint32_t upgrades = 60;  // a round, of one VM
  HostShape crowd{.controllers = 384, .targets = 8};
  uint32_t crowd_loaded = 64;
  uint32_t crowd_upgrades = 1;  // a round
  HostShape flooded{.controllers = 50, .targets = 1};
  uint32_t flooding_peers = 4;    // beside them
  uint32_t flooded_upgrades = 3;  // a round, with them and without
  uint32_t standby_guests = 4;
  uint32_t kills = 10;  // a round, of the principal
  uint32_t stops = 5;   // likewise
  // A Ceph cluster with an image; the phase is left out without one.
  std::string monitors;
  std::string user;
  std::string key;
  std::string image;
  uint32_t rbd_upgrades = 40;  // a round
  // An NVMe namespace, of which the first 64 MiB are zeroes; that phase is left out without one, too.
  std::string device;
  uint32_t nvme_upgrades = 9;     // a round
  uint32_t export_upgrades = 40;  // a round
};

class UpgradePhases {
 public:
  UpgradePhases(const Plan& plan, Figures& figures, const std::atomic<bool>& stop)
      : plan_(plan), figures_(figures), stop_(stop) {}

  Status One();      // upgrade_gap_ms_*
  Status Crowd();    // upgrade_384_*
  Status Flooded();  // flooded_upgrade_*
  Status Standby();  // standby_gap_ms_*
  Status Stopped();  // stopped_engine_*
  Status Rbd();      // rbd_upgrade_gap_ms_*
  Status Nvme();     // nvme_upgrade_gap_ratio
  Status Export();   // tcp_upgrade_gap_ms_*

 private:
  static constexpr double kQuietSecondsMax = 1;

  // A host with two engines, all controllers on the first; guests, the first of them under load. The guests go first.
  struct Stage {
    std::unique_ptr<BenchHost> host;
    std::unique_ptr<ControlPlane> control;
    std::unique_ptr<UpgradeGuests> guests;
    std::unique_ptr<FloodingPeers> flooding;
    size_t at = 0;  // the engine that has the controllers
  };
  struct Gaps {
    std::vector<double> moved_ms;  // the longest silence of each guest over an event
    std::vector<double> quiet_ms;  // over equally long windows without one
    std::vector<double> total_s;   // of each upgrade
  };

  // A host with two engines, an export on the first, and its host under load, which goes first.
  struct ExportStage {
    std::unique_ptr<BenchHost> host;
    std::unique_ptr<ControlPlane> control;
    std::unique_ptr<ExportHost> guest;
    size_t at = 0;
  };
  Result<ExportStage> SetUpExport();
  // There, and a window as long without an upgrade.
  Status UpgradeExport(ExportStage& stage, Gaps* gaps);

  // The last `flooding_peers` of the shape's controllers have no guests, but peers that flood.
  Result<Stage> SetUp(const HostShape& shape, const std::vector<std::string>& other_engine,
                      const UpgradeGuests::Load& load, uint32_t flooding_peers = 0,
                      const std::vector<std::string>& cleatd_arguments = {});
  static Status TearDown(Stage& stage);
  Status Upgrade(Stage& stage, Gaps* gaps);
  Status Kill(Stage& stage, uint32_t controllers, Gaps* gaps);
  Status Stop(Stage& stage, uint32_t controllers, Gaps* gaps, std::vector<double>* seen_ms);
  static Status PutBack(Stage& stage, uint32_t controllers);
  // For so long, at most kQuietSecondsMax where nothing else is said.
  Status Quiet(Stage& stage, double seconds, Gaps* gaps, double seconds_max = kQuietSecondsMax);
  Status MeasureUpgrades(const std::string& figure, const HostShape& shape, const UpgradeGuests::Load& load,
                         uint32_t upgrades);
  void Add(const std::string& figure, const std::vector<Gaps>& rounds);

  const Plan& plan_;
  Figures& figures_;
  const std::atomic<bool>& stop_;
};

}  // namespace cleat::bench
