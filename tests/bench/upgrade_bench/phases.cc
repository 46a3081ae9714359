// SPDX-License-Identifier: Apache-2.0
#include "phases.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace cleat::bench {
namespace {

constexpr uint32_t kAttachInFlight = 32;
constexpr uint64_t kPauseNs = 200 * kNsPerUs;     // the generator's core is cleatd's as well
constexpr uint64_t kCrowdPauseNs = 2 * kNsPerMs;  // of each of many: they are not to take all of the machine
constexpr uint32_t kCrowdDepth = 2;
constexpr double kMsPerSecond = 1000;
constexpr double kNvmeQuietSecondsMax = 60;
constexpr char kKillAfterS[] = "1";  // a stopped engine; bars.py knows it

}  // namespace

Result<UpgradePhases::Stage> UpgradePhases::SetUp(const HostShape& shape,
                                                  const std::vector<std::string>& other_engine,
                                                  const UpgradeGuests::Load& load, uint32_t flooding_peers,
                                                  const std::vector<std::string>& cleatd_arguments) {
  Stage made;
  HostOptions options = plan_.host;
  options.cleatd_arguments = cleatd_arguments;
  options.with_keys = !shape.image.empty();
  auto host = BenchHost::Start(options);
  if (!host) return std::move(host).error();
  made.host = std::move(*host);
  made.control = std::make_unique<ControlPlane>(made.host->address(), stop_);
  std::vector<std::string> sockets;
  for (uint32_t i = 0; i < shape.controllers; ++i) sockets.push_back(made.host->SocketOf(ControllerId(i)));
  const auto first_flooding = sockets.end() - flooding_peers;
  auto flooding = FloodingPeers::Listen({first_flooding, sockets.end()});
  if (!flooding) return std::move(flooding).error();
  made.flooding = std::move(*flooding);
  sockets.erase(first_flooding, sockets.end());
  auto guests = UpgradeGuests::Listen(sockets);
  if (!guests) return std::move(guests).error();
  made.guests = std::move(*guests);
  ControlPlane& control = *made.control;
  Status status = control.WaitForEngine();
  if (status && !shape.image.empty()) status = control.CreateCluster(plan_.monitors, plan_.user, plan_.key);
  if (status) {
    status = control.CreateControllers(shape, [&](const std::string& id) { return made.host->SocketOf(id); });
  }
  if (status) status = control.CreateDisks(shape);
  if (!status) return std::move(status).error();
  // The guests have to answer while their disks are attached.
  if (status = made.guests->Open(stop_); !status) return std::move(status).error();
  if (auto attached = control.Attach(shape, kAttachInFlight); !attached) return std::move(attached).error();
  // Only now: controllers are placed on the one engine that there is.
  status = made.host->AddEngine(other_engine);
  if (status) status = control.WaitForEngine(1);
  if (status) status = made.guests->Start(load);
  if (!status) return std::move(status).error();
  return made;
}

Status UpgradePhases::TearDown(Stage& stage) {
  Status judged = stage.guests->Stop();
  stage.guests.reset();
  stage.flooding.reset();
  if (!judged) return judged;
  return stage.host->End();
}

Status UpgradePhases::Upgrade(Stage& stage, Gaps* gaps) {
  const size_t to = 1 - stage.at;
  stage.guests->Mark();
  auto took_s = stage.control->Upgrade(stage.at, to);
  if (!took_s) return Error(took_s.error().code, took_s.error().message + "\n" + stage.host->LogTails());
  stage.at = to;
  if (Status moved = stage.guests->WaitMoved(stop_, &gaps->moved_ms); !moved)
    return Error(moved.error().code, moved.error().message + "\n" + stage.host->LogTails());
  gaps->total_s.push_back(*took_s);
  return Ok{};
}

Status UpgradePhases::Quiet(Stage& stage, double seconds, Gaps* gaps, double seconds_max) {
  if (stop_.load()) return Error(ErrorCode::kCancelled, "interrupted");
  stage.guests->Mark();
  poll(nullptr, 0, std::max(1, static_cast<int>(std::min(seconds, seconds_max) * kMsPerSecond)));
  stage.guests->TakeGaps(&gaps->quiet_ms);
  return Ok{};
}

// The principal's controllers, taken by who stands by; then everything is put back as it was.
Status UpgradePhases::Kill(Stage& stage, uint32_t controllers, Gaps* gaps) {
  if (Status ready = stage.control->WaitStandingBy(1, controllers); !ready) return ready;
  const uint64_t start_ns = MonotonicClock().NowNs();
  stage.guests->Mark();
  stage.host->KillEngine();
  if (Status moved = stage.guests->WaitMoved(stop_, &gaps->moved_ms); !moved)
    return Error(moved.error().code, moved.error().message + "\n" + stage.host->LogTails());
  gaps->total_s.push_back(static_cast<double>(MonotonicClock().NowNs() - start_ns) / kNsPerSecond);
  return PutBack(stage, controllers);
}

Status UpgradePhases::PutBack(Stage& stage, uint32_t controllers) {
  if (Status stored = stage.control->WaitHas(1, controllers); !stored) return stored;
  if (Status started = stage.host->StartEngine(); !started) return started;
  if (Status connected = stage.control->WaitForEngine(); !connected) return connected;
  auto back = stage.control->Upgrade(1, 0);
  if (!back) return Error(back.error().code, back.error().message + "\n" + stage.host->LogTails());
  return Ok{};
}

// As Kill, but the principal is only stopped, and it is cleatd that kills it.
Status UpgradePhases::Stop(Stage& stage, uint32_t controllers, Gaps* gaps, std::vector<double>* seen_ms) {
  if (Status ready = stage.control->WaitStandingBy(1, controllers); !ready) return ready;
  const uint64_t start_ns = MonotonicClock().NowNs();
  stage.guests->Mark();
  stage.host->StopEngine();
  if (Status seen = stage.control->WaitNotAnswering(0); !seen) return seen;
  seen_ms->push_back(static_cast<double>(MonotonicClock().NowNs() - start_ns) / kNsPerMs);
  if (Status moved = stage.guests->WaitMoved(stop_, &gaps->moved_ms); !moved)
    return Error(moved.error().code, moved.error().message + "\n" + stage.host->LogTails());
  gaps->total_s.push_back(static_cast<double>(MonotonicClock().NowNs() - start_ns) / kNsPerSecond);
  stage.host->KillEngine();  // it is dead; its exit status is to be had
  return PutBack(stage, controllers);
}

// A percentile of each round; what is the longest of all has no rounds.
void UpgradePhases::Add(const std::string& figure, const std::vector<Gaps>& rounds) {
  std::vector<double> p50, p99, quiet_p99;
  double longest = 0, quiet_longest = 0;
  for (const Gaps& round : rounds) {
    p50.push_back(Percentile(round.moved_ms, 0.5));
    p99.push_back(Percentile(round.moved_ms, 0.99));
    longest = std::max(longest, Percentile(round.moved_ms, 1));
    quiet_p99.push_back(Percentile(round.quiet_ms, 0.99));
    quiet_longest = std::max(quiet_longest, Percentile(round.quiet_ms, 1));
  }
  figures_.Add(figure + "_gap_ms_p50", "ms", p50);
  figures_.Add(figure + "_gap_ms_p99", "ms", p99);
  figures_.Add(figure + "_gap_ms_max", "ms", {longest});
  figures_.Add(figure + "_quiet_ms_p99", "ms", quiet_p99);
  figures_.Add(figure + "_quiet_ms_max", "ms", {quiet_longest});
}

Status UpgradePhases::MeasureUpgrades(const std::string& figure, const HostShape& shape,
                                      const UpgradeGuests::Load& load, uint32_t upgrades) {
  fmt::print("{}: {} controllers, {} disks, {} upgrades\n", figure, shape.controllers, shape.disks(),
             plan_.rounds * upgrades);
  auto stage = SetUp(shape, {}, load);
  if (!stage) return std::move(stage).error();
  Gaps warm_up;
  for (int i = 0; i < 2; ++i) {  // both engines' first touch of everything
    if (Status status = Upgrade(*stage, &warm_up); !status) return status;
  }
  std::vector<Gaps> rounds(plan_.rounds);
  std::vector<double> total_s;
  for (Gaps& round : rounds) {
    for (uint32_t i = 0; i < upgrades; ++i) {
      if (Status status = Upgrade(*stage, &round); !status) return status;
      if (Status status = Quiet(*stage, round.total_s.back(), &round); !status) return status;
    }
    total_s.push_back(Percentile(round.total_s, 0.5));
  }
  Add(figure, rounds);
  figures_.Add(figure + "_total_s", "s", total_s);
  return TearDown(*stage);
}

Status UpgradePhases::One() {
  const HostShape shape{.controllers = 1, .targets = 1, .with_memory = 1};
  return MeasureUpgrades("upgrade", shape, {.loaded = 1, .pause_ns = kPauseNs}, plan_.upgrades);
}

Status UpgradePhases::Crowd() {
  HostShape shape = plan_.crowd;
  shape.with_memory = plan_.crowd_loaded;
  return MeasureUpgrades("upgrade_384", shape,
                         {.loaded = plan_.crowd_loaded, .depth = kCrowdDepth, .pause_ns = kCrowdPauseNs},
                         plan_.crowd_upgrades);
}

// Two hosts, in turns: what the machine does meanwhile happens to both.
Status UpgradePhases::Flooded() {
  fmt::print("flooded: {} controllers, {} peers that flood beside them, {} upgrades\n",
             plan_.flooded.controllers, plan_.flooding_peers, 2 * plan_.rounds * plan_.flooded_upgrades);
  HostShape shape = plan_.flooded;
  auto alone = SetUp(shape, {}, {.loaded = 0});
  if (!alone) return std::move(alone).error();
  shape.controllers += plan_.flooding_peers;
  auto flooded = SetUp(shape, {}, {.loaded = 0}, plan_.flooding_peers);
  if (!flooded) return std::move(flooded).error();
  std::vector<double> ratios, totals_s;
  uint64_t connections = 1;
  for (uint32_t round = 0; round <= plan_.rounds;
       ++round) {  // the first one is both engines' first touch of everything
    Gaps without, with;
    for (uint32_t i = 0; i < plan_.flooded_upgrades; ++i) {
      CLEAT_TRY(Upgrade(*alone, &without));
      CLEAT_TRY(flooded->flooding->WaitFlooded(connections++, stop_));
      CLEAT_TRY(Upgrade(*flooded, &with));
    }
    if (round == 0) continue;
    totals_s.push_back(Percentile(with.total_s, 0.5));
    ratios.push_back(totals_s.back() / Percentile(without.total_s, 0.5));
  }
  figures_.Add("flooded_upgrade_ratio", "ratio", ratios);
  figures_.Add("flooded_upgrade_total_s", "s", totals_s);
  CLEAT_TRY(TearDown(*alone));
  return TearDown(*flooded);
}

Status UpgradePhases::Rbd() {
  const HostShape shape{.controllers = 1, .targets = 1, .image = plan_.image};
  return MeasureUpgrades("rbd_upgrade", shape, {.loaded = 1, .pause_ns = kPauseNs}, plan_.rbd_upgrades);
}

// Of an emulated drive only a ratio means anything: upgrades and windows without one, of the same length, in turns.
Status UpgradePhases::Nvme() {
  fmt::print("nvme: {}, {} upgrades\n", plan_.device, plan_.rounds * plan_.nvme_upgrades);
  const HostShape shape{.controllers = 1, .targets = 1, .device = plan_.device};
  auto stage = SetUp(shape, {}, {.loaded = 1, .pause_ns = kPauseNs});
  if (!stage) return std::move(stage).error();
  Gaps warm_up;
  for (int i = 0; i < 2; ++i) CLEAT_TRY(Upgrade(*stage, &warm_up));
  std::vector<double> moved_ms, quiet_ms, ratios;
  for (uint32_t round = 0; round < plan_.rounds; ++round) {
    Gaps gaps;
    for (uint32_t i = 0; i < plan_.nvme_upgrades; ++i) {
      CLEAT_TRY(Upgrade(*stage, &gaps));
      CLEAT_TRY(Quiet(*stage, gaps.total_s.back(), &gaps, kNvmeQuietSecondsMax));
    }
    moved_ms.push_back(Percentile(gaps.moved_ms, 0.5));
    quiet_ms.push_back(Percentile(gaps.quiet_ms, 0.5));
    ratios.push_back(moved_ms.back() / quiet_ms.back());
  }
  figures_.Add("nvme_upgrade_gap_ms_p50", "ms", moved_ms);
  figures_.Add("nvme_upgrade_quiet_ms_p50", "ms", quiet_ms);
  figures_.Add("nvme_upgrade_gap_ratio", "ratio", ratios);
  return TearDown(*stage);
}

Status UpgradePhases::Standby() {
  fmt::print("standby: {} guests, the principal is killed {} times\n", plan_.standby_guests,
             plan_.rounds * plan_.kills);
  const HostShape shape{
      .controllers = plan_.standby_guests, .targets = 1, .with_memory = plan_.standby_guests};
  auto stage =
      SetUp(shape, {"--standby-for", EngineId(0)}, {.loaded = plan_.standby_guests, .pause_ns = kPauseNs});
  if (!stage) return std::move(stage).error();
  std::vector<Gaps> rounds(plan_.rounds);
  for (Gaps& round : rounds) {
    for (uint32_t i = 0; i < plan_.kills; ++i) {
      if (Status status = Kill(*stage, shape.controllers, &round); !status) return status;
      if (Status status = Quiet(*stage, round.total_s.back(), &round); !status) return status;
    }
  }
  Add("standby", rounds);
  return TearDown(*stage);
}

Status UpgradePhases::Stopped() {
  fmt::print("stopped: {} guests, the principal is stopped {} times\n", plan_.standby_guests,
             plan_.rounds * plan_.stops);
  const HostShape shape{
      .controllers = plan_.standby_guests, .targets = 1, .with_memory = plan_.standby_guests};
  auto stage =
      SetUp(shape, {"--standby-for", EngineId(0)}, {.loaded = plan_.standby_guests, .pause_ns = kPauseNs}, 0,
            {"--kill-silent-engine-seconds", kKillAfterS});
  if (!stage) return std::move(stage).error();
  std::vector<Gaps> rounds(plan_.rounds);
  std::vector<double> seen_ms;
  for (Gaps& round : rounds) {
    for (uint32_t i = 0; i < plan_.stops; ++i) {
      if (Status status = Stop(*stage, shape.controllers, &round, &seen_ms); !status) return status;
      if (Status status = Quiet(*stage, round.total_s.back(), &round); !status) return status;
    }
  }
  figures_.Add("stopped_engine_seen_ms", "ms", {Percentile(seen_ms, 1)});  // the longest of all
  Add("stopped_engine_standby", rounds);
  return TearDown(*stage);
}

}  // namespace cleat::bench
