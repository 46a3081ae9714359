// SPDX-License-Identifier: Apache-2.0
#include "host_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cleatd_process.h"
#include "control/model/names.h"
#include "engine_host.h"
#include "host_calls.h"
#include "host_storage.h"
#include "settled.h"
#include "sim_threads.h"
#include "tests/support/temp_dir.h"

namespace cleat::sim {
namespace {

uint64_t seed_under_way = 0;

constexpr uint64_t kLookNs = 200 * kNsPerMs;
constexpr uint64_t kLooksMax = 3000;  // of a host that is left in peace
constexpr uint64_t kStartNsMax = 10 * kNsPerSecond;
constexpr uint64_t kPointsMax =
    400;  // that a life has before it, at most, when its death is drawn: a run has a thousand
constexpr uint64_t kToldNs = 100 * kNsPerMs;  // in which cleatd hears from an engine that has connected

class HostRun {
 public:
  explicit HostRun(const HostConfig& config);
  HostResult Run();

 private:
  void StartWhatIsDown();
  void Turn();
  void Disturb();
  void DisturbEngine(EngineHost& engine);
  void FailPower();
  void OnLoaded(const control::Rows& rows);
  void CheckTold();
  std::set<std::string> TakenUnstored(const control::Rows& rows);
  std::map<std::string, uint64_t> EndedNow() const;
  bool AllHaveTold() const;
  void Settle();
  void Look();
  std::string Picture() const;
  void End();

  const HostConfig config_;
  test::TempDir dir_{test::FolderInMemory()};
  World world_;
  Random random_;
  SimThreads threads_{world_};
  Connecting connecting_;
  uint64_t processes_ = 0;
  HostStorage storage_{world_};
  std::vector<std::unique_ptr<EngineHost>> engines_;
  CleatdProcess cleatd_;
  HostCalls calls_;
  uint64_t cleatd_starts_ns_ = 0;
  uint64_t loaded_ns_ = 0;                         // when the last life began
  std::map<std::string, uint64_t> ended_at_load_;  // processes, by engine; when the last life began
  bool looking_ = false;
  bool settled_ = false;
  std::string unsettled_;  // why
};

HostRun::HostRun(const HostConfig& config)
    : config_(config),
      world_(config.seed, 0),
      random_(world_.random().Next()),
      cleatd_({.world = world_,
               .threads = threads_,
               .connecting = connecting_,
               .socket_path = dir_ / "engines.sock",
               .on_loaded = [this](const control::Rows& rows) { OnLoaded(rows); },
               .on_stored = [this] { calls_.OnStored(); },
               .on_dead =
                   [this] {
                     calls_.OnDead();
                     looking_ = false;
                     cleatd_starts_ns_ = world_.now_ns() + random_.Below(500 * kNsPerMs);
                   }}),
      calls_(world_, cleatd_, random_.Next(), config.before_answer) {
  world_.set_trace(config.trace);
  const std::string stands_by_for = random_.Chance(1, 2) ? "engine-0" : "";
  const EngineHost::Parts parts{.world = world_,
                                .storage = storage_,
                                .connecting = connecting_,
                                .processes = processes_,
                                .socket_path = dir_ / "engines.sock"};
  engines_.push_back(std::make_unique<EngineHost>(parts, "engine-0", ""));
  engines_.push_back(std::make_unique<EngineHost>(parts, "engine-1", stands_by_for));
  cleatd_.SetSyncs(random_.Chance(1, 2) ? 0 : 20 * kNsPerMs, 0);
  if (config.disk_lies) cleatd_.LetDiskLie();
}

// ---- While it goes on

void HostRun::StartWhatIsDown() {
  if (cleatd_.failed()) cleatd_.DieNow();
  if (!cleatd_.running() && world_.now_ns() >= cleatd_starts_ns_) cleatd_.Start();
  for (const auto& engine : engines_) {
    if (!engine->running() && random_.Chance(1, 4)) engine->Start();
  }
}

void HostRun::Turn() {
  StartWhatIsDown();
  if (AllHaveTold()) storage_.SetUndecided({});
  const uint64_t calls = random_.Below(4);
  for (uint64_t i = 0; i < calls; ++i) calls_.Draw();
  if (random_.Chance(1, 5)) Disturb();
  if (random_.Chance(1, 2)) {
    for (uint64_t steps = random_.Below(200); steps > 0 && world_.Step(); --steps) {
    }
    return;
  }
  // Long enough, at times, for what waits 30 s.
  constexpr uint64_t kFor[] = {
      0, kNsPerMs, kNsPerMs, 20 * kNsPerMs, 20 * kNsPerMs, 300 * kNsPerMs, 300 * kNsPerMs, 40 * kNsPerSecond};
  const uint64_t longest_ns = kFor[random_.Below(std::size(kFor))];
  world_.RunFor(random_.Below(longest_ns + 1));
}

void HostRun::Disturb() {
  const bool soon = random_.Chance(1, 2);
  const bool fail = random_.Chance(1, 2);
  switch (random_.Below(9)) {
    case 0:
    case 1:
      if (cleatd_.running()) cleatd_.DieAt(random_.Between(1, soon ? 100 : kPointsMax));
      return;
    case 2:
      return cleatd_.SetSyncs(20 * kNsPerMs, fail ? static_cast<uint32_t>(random_.Below(60)) : 0);
    case 3:
      return cleatd_.SetSyncs(0, 0);
    case 4:
      if (random_.Chance(1, 3)) FailPower();
      return;
    default:
      return DisturbEngine(*engines_[random_.Below(engines_.size())]);
  }
}

void HostRun::FailPower() {
  if (cleatd_.running()) cleatd_.DieNow(CleatdProcess::End::kPowerFailed);
  for (const auto& engine : engines_) {
    if (engine->running()) engine->Die();
  }
}

void HostRun::DisturbEngine(EngineHost& engine) {
  if (!engine.running()) return;
  switch (random_.Below(6)) {
    case 0:
      return engine.Die();
    case 1:
    case 2:
      return engine.DieAfter(random_.Between(1, 60));
    case 3:
      return engine.Terminate();
    default:
      return engine.Stall(random_.Below(3 * kNsPerSecond));
  }
}

// ---- What always holds

// On a thread of cleatd's.
void HostRun::OnLoaded(const control::Rows& rows) {
  if (const std::string wrong = calls_.Restart(rows); !wrong.empty())
    world_.Violation("cleatd finds after its restart: " + wrong);
  CheckTold();
  loaded_ns_ = world_.now_ns();
  storage_.SetUndecided(TakenUnstored(rows));
}

// What a standby engine may have been asked to take since its principal died, while nothing that is stored says so: guests wait, so it is
// asked first. Until all engines have told what they serve, a new life of cleatd may have the principal's successor serve it, whom the locks
// keep out.
std::set<std::string> HostRun::TakenUnstored(const control::Rows& rows) {
  const std::map<std::string, uint64_t> before = std::exchange(ended_at_load_, EndedNow());
  std::set<std::string> taken;
  for (const control::ControllerRow& row : rows.controllers) {
    const bool moving = std::ranges::any_of(rows.upgrades, [&](const control::UpgradeRow& upgrade) {
      return upgrade.engine == row.engine && upgrade.status.state() == v1::UPGRADE_STATE_RUNNING;
    });
    const bool has_died = !row.engine.empty() && before.contains(row.engine) &&
                          before.at(row.engine) != ended_at_load_.at(row.engine);
    const bool elsewhere = std::ranges::any_of(engines_, [&](const auto& engine) {
      return engine->name() != row.engine && engine->Has(control::ControllerName(row.id));
    });
    if (moving || !has_died || !elsewhere) continue;
    taken.insert(control::ControllerName(row.id));
    for (const control::AttachmentRow& attachment : rows.attachments) {
      if (attachment.controller == row.id) taken.insert(attachment.spec.disk());
    }
  }
  return taken;
}

// What they serve, to this life of cleatd.
bool HostRun::AllHaveTold() const {
  return std::ranges::all_of(engines_, [&](const auto& engine) {
    return !engine->running() ||
           (engine->connected_ns() > loaded_ns_ && world_.now_ns() > engine->connected_ns() + kToldNs);
  });
}

std::map<std::string, uint64_t> HostRun::EndedNow() const {
  std::map<std::string, uint64_t> ended;
  for (const auto& engine : engines_) ended[engine->name()] = engine->ended();
  return ended;
}

// What engines were asked for has been durable before.
void HostRun::CheckTold() {
  for (const auto& engine : engines_) {
    if (!engine->running()) continue;
    for (const auto& controller : engine->engine().Controllers()) {
      if (!calls_.WasDurable(controller.spec.revision))
        world_.Violation(engine->name() + " has " + controller.spec.name + ", which was never stored");
    }
    for (const auto& attachment : engine->engine().Attachments()) {
      if (!calls_.WasDurable(attachment.spec.revision))
        world_.Violation(engine->name() + " has " + attachment.spec.disk.name + " on " +
                         attachment.spec.controller + ", which was never stored");
    }
  }
}

// ---- In peace

void HostRun::Settle() {
  world_.Note("in peace");
  storage_.LeaveInPeace();
  cleatd_.SetSyncs(kNsPerMs, 0);
  threads_.DieAt(SimThreads::kNever, {});
  for (const auto& engine : engines_) {
    if (engine->running()) {
      engine->DieAfter(UINT64_MAX);
      engine->Stall(0);
    }
  }
  cleatd_starts_ns_ = 0;
  for (uint64_t looks = 0; !settled_ && !world_.failed(); ++looks) {
    if (looks == kLooksMax) return world_.Violation("hang: " + unsettled_ + "\n" + Picture());
    StartWhatIsDown();
    if (AllHaveTold()) storage_.SetUndecided({});
    if (cleatd_.up() && !looking_ && calls_.under_way() == 0) Look();
    world_.RunFor(kLookNs);
  }
}

// On a thread of cleatd's, for the state's mutex may be held.
void HostRun::Look() {
  looking_ = true;
  cleatd_.Call("look", [this](control::HostState& state) {
    unsettled_ = WhatIsUnsettled(state, engines_, storage_);
    looking_ = false;
    settled_ = unsettled_.empty();
    if (!settled_) return;
    if (const std::string wrong = calls_.CheckShown(state); !wrong.empty())
      world_.Violation("cleatd shows: " + wrong);
  });
}

// For people who look for what went wrong.
std::string HostRun::Picture() const {
  std::string text = "    " + threads_.Describe() + "\n    " + storage_.Describe();
  for (const auto& engine : engines_) text += "\n    " + engine->Describe();
  return text;
}

void HostRun::End() {
  if (cleatd_.running()) cleatd_.DieNow();
  for (const auto& engine : engines_) {
    if (engine->running()) engine->Die();
  }
}

HostResult HostRun::Run() {
  for (uint32_t turn = 1; turn <= config_.turns && !world_.failed(); ++turn) {
    world_.set_step(turn);
    Turn();
  }
  if (!world_.failed()) Settle();
  HostResult result;
  result.cleatd_deaths = cleatd_.deaths();
  result.engine_deaths = engines_[0]->ended() + engines_[1]->ended();
  End();
  if (!world_.failed()) {
    cleatd_.Start();  // once more: all is still there
    world_.RunUntil([this] { return cleatd_.up() || world_.failed(); }, kStartNsMax, "cleatd's last start");
    End();
  }
  for (const std::string& violation : world_.violations()) result.violated += violation + "\n";
  result.acknowledged = calls_.acknowledged();
  result.syncs = cleatd_.syncs();
  result.points = threads_.points();
  result.digest = world_.digest();
  return result;
}

}  // namespace

uint64_t SeedUnderWay() {
  return seed_under_way;
}

HostResult RunHost(const HostConfig& config) {
  seed_under_way = config.seed;
  HostRun run(config);
  return run.Run();
}

}  // namespace cleat::sim
