// SPDX-License-Identifier: Apache-2.0
// Many moves together: an upgrade, which prepares all controllers of an engine on another one and then moves them one by
// one; and what is left behind by an engine that died, which those that have it standing by take side by side.
#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/conductor.h"
#include "control/names.h"

namespace cleat::control {
namespace {

using google::protobuf::util::TimeUtil;

constexpr uint64_t kRecountNs = 100 * kNsPerMs;
constexpr uint64_t kForEver = ~uint64_t{0};

// And has not been known to refuse since.
bool WasAskedToTake(const Move& move) {
  return move.phase == Move::Phase::kTaking || move.phase == Move::Phase::kCommitting;
}

}  // namespace

// ---- Upgrades ----

void Conductor::BeginUpgrade(UpgradeIntent intent) {
  if (upgrade_) {
    upgrade_->intent.cancelled = intent.cancelled;
    return;
  }
  Upgrade& upgrade = upgrade_.emplace();
  upgrade.status = intent.status;
  upgrade.waiting.insert(intent.controllers.begin(), intent.controllers.end());
  upgrade.intent = std::move(intent);
}

// At the end of each round of the link's thread: nothing that it does is under way then.
void Conductor::LookAtUpgrade() {
  if (!upgrade_) return;
  Upgrade& upgrade = *upgrade_;
  if (upgrade.intent.cancelled) {
    upgrade.waiting.clear();
    std::vector<std::string> left(upgrade.preparing.begin(), upgrade.preparing.end());
    left.insert(left.end(), upgrade.prepared.begin(), upgrade.prepared.end());
    upgrade.preparing.clear();
    upgrade.prepared.clear();
    for (const std::string& controller : left) EndMove(controller, Error(ErrorCode::kNotFound, "cancelled"));
  }
  while (upgrade.preparing.size() < options_.preparing_max && !upgrade.waiting.empty()) {
    const std::string controller = upgrade.waiting.extract(upgrade.waiting.begin()).value();
    if (moves_.contains(controller)) {
      TellMoved(controller, moves_[controller],
                Error(ErrorCode::kUnavailable, "an earlier attempt to move it has not been answered yet"));
      continue;
    }
    upgrade.preparing.insert(controller);
    BeginMove(controller, upgrade.intent.from, upgrade.intent.to, upgrade.intent.drain_ms);
  }
  while (upgrade.waiting.empty() && upgrade.preparing.empty() && !upgrade.prepared.empty() &&
         upgrade.moving.size() < options_.moving_max) {
    const std::string controller = upgrade.prepared.extract(upgrade.prepared.begin()).value();
    upgrade.moving.insert(controller);
    upgrade.status.set_current(ControllerName(controller));
    Move& move = moves_.at(controller);
    move.phase = Move::Phase::kSettling;
    move.deadline_ns = clock_.NowNs() + options_.prepare_ns;
    LookAtMove(controller);
  }
  const bool over = upgrade.waiting.empty() && upgrade.preparing.empty() && upgrade.prepared.empty() &&
                    upgrade.moving.empty();
  if (over) EndUpgrade();
}

void Conductor::EndUpgrade() {
  v1::UpgradeStatus& status = upgrade_->status;
  status.clear_current();
  *status.mutable_ended_time() = TimeUtil::GetCurrentTime();
  if (upgrade_->intent.cancelled) {
    status.set_state(v1::UPGRADE_STATE_CANCELLED);
  } else {
    status.set_state(status.failed_total() == 0 ? v1::UPGRADE_STATE_DONE : v1::UPGRADE_STATE_FAILED);
  }
  status.set_message(fmt::format("{} of {} controllers were moved", status.moved(), status.total()));
  spdlog::info("upgrade of {} to {}: {}, {}", EngineName(upgrade_->intent.from), status.to(),
               v1::UpgradeState_Name(status.state()), status.message());
  state_.ReportUpgrade(upgrade_->intent.from, status, HostState::Keep::kStored);
  upgrade_.reset();
}

// Of an upgrade: whether an engine was asked to let a controller go or to take it, and has not answered.
bool Conductor::GuestWaits() const {
  if (!upgrade_) return false;
  return std::any_of(upgrade_->moving.begin(), upgrade_->moving.end(), [&](const std::string& controller) {
    const auto found = moves_.find(controller);
    if (found == moves_.end()) return false;
    const Move::Phase phase = found->second.phase;
    return phase == Move::Phase::kYielding || phase == Move::Phase::kTaking ||
           phase == Move::Phase::kTakingBack;
  });
}

void Conductor::ReportUpgrade() {
  state_.ReportUpgrade(upgrade_->intent.from, upgrade_->status, HostState::Keep::kShown);
}

void Conductor::TellPrepared(const std::string& controller) {
  if (!upgrade_ || upgrade_->preparing.erase(controller) == 0) return;
  upgrade_->prepared.insert(controller);
  upgrade_->status.set_prepared(upgrade_->status.prepared() + 1);
  ReportUpgrade();
}

void Conductor::TellMoved(const std::string& controller, const Move& move, const Status& status) {
  if (!upgrade_ || upgrade_->intent.from != move.from) return;
  Upgrade& upgrade = *upgrade_;
  const size_t known = upgrade.waiting.erase(controller) + upgrade.preparing.erase(controller) +
                       upgrade.prepared.erase(controller) + upgrade.moving.erase(controller);
  if (known == 0) return;
  v1::UpgradeStatus& shown = upgrade.status;
  if (status.ok()) {
    shown.set_moved(shown.moved() + 1);
    upgrade.longest_pause_ns = std::max(upgrade.longest_pause_ns, move.pause_ns);
    *shown.mutable_longest_pause() =
        TimeUtil::NanosecondsToDuration(static_cast<int64_t>(upgrade.longest_pause_ns));
  } else if (status.error().code == ErrorCode::kNotFound) {
    shown.set_total(shown.total() - 1);  // it was deleted
  } else {
    shown.set_failed_total(shown.failed_total() + 1);
    if (shown.failed_size() < kUpgradeFailuresMax) {
      v1::UpgradeFailure& failure = *shown.add_failed();
      failure.set_controller(ControllerName(controller));
      failure.set_reason(status.error().message);
    }
  }
  ReportUpgrade();
}

// ---- After an engine's death ----

void Conductor::TakeOverFrom(const std::string& engine) {
  if (take_overs_.contains(engine)) return;
  const bool upgrading = upgrade_ && upgrade_->intent.from == engine && !upgrade_->intent.cancelled;
  const std::string successor = upgrading ? upgrade_->intent.to : state_.StandbyFor(engine);
  const uint64_t now_ns = clock_.NowNs();
  TakeOver take_over{.deadline_ns = now_ns + options_.take_over_ns,
                     .not_before_ns = 0,
                     .waiting = {},
                     .all = {},
                     .status = {}};
  for (const std::string& controller : state_.ControllersOn(engine)) {
    const auto found = moves_.find(controller);
    const std::string to = found == moves_.end() ? successor : found->second.to;
    // One that was asked to take it may have it, though its connection is lost.
    const bool may_have = found != moves_.end() && WasAskedToTake(found->second) && !dead_.contains(to);
    if (to.empty() || (FindByName(to) == nullptr && !may_have)) continue;
    take_over.all.push_back({.controller = controller, .engine = to});
    if (state_.IntentOf(controller).row.deleting) continue;
    Move& move = moves_[controller];
    move.from = engine;
    move.to = to;
    move.crash = true;
    if (!WasAskedToTake(move)) move.phase = Move::Phase::kPreparing;
    state_.PrepareMove(controller, to);
    take_over.waiting.insert(controller);
    if (upgrading && upgrade_->waiting.erase(controller) + upgrade_->preparing.erase(controller) +
                             upgrade_->prepared.erase(controller) !=
                         0) {
      upgrade_->moving.insert(controller);
    }
  }
  if (take_over.all.empty()) return;
  spdlog::warn("{} has died: {} controllers are taken by who has them standing by", EngineName(engine),
               take_over.all.size());
  take_over.status.set_to(EngineName(take_over.all.front().engine));
  take_over.status.set_state(v1::UPGRADE_STATE_RUNNING);
  take_over.status.set_message(EngineName(engine) + " has died");
  take_over.status.set_total(static_cast<uint32_t>(take_over.all.size()));
  *take_over.status.mutable_started_time() = TimeUtil::GetCurrentTime();
  const v1::UpgradeStatus status = take_over.status;
  const std::set<std::string> waiting = take_over.waiting;
  take_overs_[engine] = std::move(take_over);
  for (const std::string& controller : waiting) LookAtMove(controller);
  // After they have been asked: guests are waiting.
  if (!upgrading) state_.ReportUpgrade(engine, status, HostState::Keep::kStored);
}

void Conductor::TellTaken(const std::string& controller, const Move& move, bool taken) {
  TakeOver& take_over = take_overs_.at(move.from);
  take_over.waiting.erase(controller);
  if (taken) {
    moves_.at(controller).phase = Move::Phase::kCommitting;
    return;
  }
  std::erase_if(take_over.all,
                [&](const Placement& placement) { return placement.controller == controller; });
  EndMove(controller, Error(ErrorCode::kUnavailable, EngineName(move.to) + " was lost as well"));
}

void Conductor::LookAtTakeOvers() {
  std::vector<std::string> due;
  for (const auto& [engine, take_over] : take_overs_) {
    if (take_over.waiting.empty() || clock_.NowNs() >= take_over.deadline_ns) due.push_back(engine);
  }
  for (const std::string& engine : due) CommitTakeOver(engine);
}

void Conductor::CommitTakeOver(const std::string& engine) {
  TakeOver& take_over = take_overs_.at(engine);
  if (clock_.NowNs() < take_over.not_before_ns) return;
  if (const Status status = state_.MoveControllers(take_over.all); !status.ok()) {
    spdlog::error("what {} left behind can't be stored as taken yet: {}", EngineName(engine),
                  status.error().message);
    take_over.not_before_ns = take_over.deadline_ns = clock_.NowNs() + options_.retry_min_ns;
    return;
  }
  const TakeOver done = std::move(take_overs_.extract(engine).mapped());
  v1::UpgradeStatus status = done.status;
  const auto late = static_cast<uint32_t>(done.waiting.size());
  status.set_state(v1::UPGRADE_STATE_DONE);
  status.set_moved(static_cast<uint32_t>(done.all.size()));
  status.set_message(fmt::format("{} has died: {} controllers were taken at once, {} are attached anew",
                                 EngineName(engine), done.all.size() - late, late));
  *status.mutable_ended_time() = TimeUtil::GetCurrentTime();
  spdlog::warn("{}", status.message());
  const bool upgrading = upgrade_ && upgrade_->intent.from == engine;
  if (!upgrading) state_.ReportUpgrade(engine, status, HostState::Keep::kStored);
  for (const Placement& placement : done.all) {
    if (moves_.contains(placement.controller)) EndMove(placement.controller, Ok{});
  }
}

// How many stand by on each engine, for people. Returns when it wants to be called again.
uint64_t Conductor::CountStandbys(uint64_t now_ns) {
  const bool wanted =
      std::any_of(engines_.begin(), engines_.end(), [](const auto& e) { return e.second.recount; });
  if (!wanted) return kForEver;
  if (now_ns < recount_ns_) return recount_ns_;
  recount_ns_ = now_ns + kRecountNs;
  for (auto& [peer, engine] : engines_) {
    if (!std::exchange(engine.recount, false) || engine.foreign) continue;
    const auto count =
        std::count_if(engine.controllers.begin(), engine.controllers.end(), [](const auto& controller) {
          return StandsBy(controller.second) && controller.second.targets_busy.empty();
        });
    if (std::exchange(engine.standing_by, static_cast<uint32_t>(count)) != count)
      ReportEngine(engine.info, true, "");
  }
  return kForEver;
}

}  // namespace cleat::control
