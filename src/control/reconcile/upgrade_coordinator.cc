// SPDX-License-Identifier: Apache-2.0
// Many moves together: an upgrade, which prepares all controllers of an engine on another one and then moves them one by
// one; and what is left behind by an engine that died, which those that have it standing by take side by side.
#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"

namespace cleat::control {
namespace {

using google::protobuf::util::TimeUtil;

constexpr uint64_t kRecountNs = 100 * kNsPerMs;
constexpr uint64_t kForEver = ~uint64_t{0};

void AddFailure(v1::UpgradeStatus& status, const std::string& controller, const std::string& why) {
  status.set_failed_total(status.failed_total() + 1);
  if (status.failed_size() >= kUpgradeFailuresMax) return;
  v1::UpgradeFailure& failure = *status.add_failed();
  failure.set_controller(ControllerName(controller));
  failure.set_reason(why);
}

// Its guest is on its way to or from another controller. Who stands by knows neither which of the two has it now nor when
// that changes; the engine that was told does, when it is back.
bool IsMigrating(const ControllerIntent& intent) {
  return std::ranges::any_of(intent.attachments, [](const AttachmentIntent& attachment) {
    return attachment.row.spec.mode() != v1::ATTACHMENT_MODE_ACTIVE;
  });
}

v1::UpgradeState EndOf(const v1::UpgradeStatus& status) {
  return status.failed_total() == 0 ? v1::UPGRADE_STATE_DONE : v1::UPGRADE_STATE_FAILED;
}

}  // namespace

// ---- Upgrades ----

void Reconciler::BeginUpgrade(UpgradeIntent intent) {
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
void Reconciler::LookAtUpgrade() {
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
      AddFailure(upgrade.status, controller, "an earlier attempt to move it has not been answered yet");
      ReportUpgrade();
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

void Reconciler::EndUpgrade() {
  v1::UpgradeStatus& status = upgrade_->status;
  status.clear_current();
  *status.mutable_ended_time() = TimeUtil::GetCurrentTime();
  if (upgrade_->intent.cancelled) {
    status.set_state(v1::UPGRADE_STATE_CANCELLED);
  } else {
    status.set_state(EndOf(status));
  }
  status.set_message(fmt::format("{} of {} controllers were moved", status.moved(), status.total()));
  spdlog::info("upgrade of {} to {}: {}, {}", EngineName(upgrade_->intent.from), status.to(),
               v1::UpgradeState_Name(status.state()), status.message());
  state_.ReportUpgrade(upgrade_->intent.from, status, HostState::Keep::kStored);
  upgrade_.reset();
}

// Of an upgrade: whether an engine was asked to let a controller go or to take it, and has not answered.
bool Reconciler::GuestWaits() const {
  if (!upgrade_) return false;
  return std::any_of(upgrade_->moving.begin(), upgrade_->moving.end(), [&](const std::string& controller) {
    const auto found = moves_.find(controller);
    if (found == moves_.end()) return false;
    const Move::Phase phase = found->second.phase;
    return phase == Move::Phase::kYielding || phase == Move::Phase::kTaking ||
           phase == Move::Phase::kTakingBack;
  });
}

void Reconciler::ReportUpgrade() {
  state_.ReportUpgrade(upgrade_->intent.from, upgrade_->status, HostState::Keep::kShown);
}

void Reconciler::TellPrepared(const std::string& controller) {
  if (!upgrade_ || upgrade_->preparing.erase(controller) == 0) return;
  upgrade_->prepared.insert(controller);
  upgrade_->status.set_prepared(upgrade_->status.prepared() + 1);
  ReportUpgrade();
}

void Reconciler::TellMoved(const std::string& controller, const Move& move, const Status& status) {
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
    AddFailure(shown, controller, status.error().message);
  }
  ReportUpgrade();
}

// ---- After an engine's death ----

// By whom each of its controllers is to be taken that nobody is asked to take yet.
std::vector<Placement> Reconciler::HeirsOf(const std::string& engine) {
  const bool upgrading = upgrade_ && upgrade_->intent.from == engine && !upgrade_->intent.cancelled;
  const std::string successor = upgrading ? upgrade_->intent.to : state_.StandbyFor(engine);
  const auto begun = take_overs_.find(engine);
  std::vector<Placement> heirs;
  for (const std::string& controller : state_.ControllersOn(engine)) {
    const auto same = [&](const Placement& placement) { return placement.controller == controller; };
    if (begun != take_overs_.end() && std::ranges::any_of(begun->second.all, same)) continue;
    const auto move = moves_.find(controller);
    const std::string to = move == moves_.end() ? successor : move->second.to;
    // One that was asked to take it may have it, though its connection is lost.
    const bool may_serve = move != moves_.end() && MayServe(controller, move->second);
    const ControllerIntent intent = state_.IntentOf(controller);
    if (!may_serve && IsMigrating(intent)) continue;
    // The standby has not prepared a controller whose paths its lists exclude.
    const bool stands_by = move == moves_.end() && !upgrading;
    if (stands_by && intent.exists && !intent.prepared_on.contains(to)) continue;
    if (!to.empty() && (FindByName(to) != nullptr || may_serve))
      heirs.push_back({.controller = controller, .engine = to});
  }
  return heirs;
}

void Reconciler::StartCrash(const std::string& engine, const Placement& heir) {
  const std::string& controller = heir.controller;
  Move& move = moves_[controller];
  move.from = engine;
  move.to = heir.engine;
  move.crash = true;
  if (move.pause_from_ns == 0) move.pause_from_ns = clock_.NowNs();
  if (move.phase != Move::Phase::kCommitting) {
    move.phase = MayServe(controller, move) ? Move::Phase::kTaking : Move::Phase::kPreparing;
    move.asked = move.asked_to_take;
  }
  state_.PrepareMove(controller, heir.engine);
  if (!upgrade_ || upgrade_->intent.from != engine) return;
  Upgrade& upgrade = *upgrade_;
  const size_t known = upgrade.waiting.erase(controller) + upgrade.preparing.erase(controller) +
                       upgrade.prepared.erase(controller);
  if (known != 0) upgrade.moving.insert(controller);
}

// Also while what an earlier process of that name left behind is being taken.
void Reconciler::TakeOverFrom(const std::string& engine) {
  const std::vector<Placement> heirs = HeirsOf(engine);
  if (heirs.empty()) return;
  spdlog::warn("{} has died: {} controllers are taken by who has them standing by", EngineName(engine),
               heirs.size());
  TakeOver& take_over = take_overs_[engine];
  take_over.deadline_ns = clock_.NowNs() + options_.take_over_ns;
  std::vector<std::string> asked;
  for (const Placement& heir : heirs) {
    take_over.all.push_back(heir);
    if (state_.IntentOf(heir.controller).row.deleting) continue;
    StartCrash(engine, heir);
    take_over.waiting.insert(heir.controller);
    asked.push_back(heir.controller);
  }
  v1::UpgradeStatus& status = take_over.status;
  status.set_to(EngineName(heirs.front().engine));
  status.set_state(v1::UPGRADE_STATE_RUNNING);
  status.set_message(EngineName(engine) + " has died");
  status.set_total(status.total() + static_cast<uint32_t>(heirs.size()));
  *status.mutable_started_time() = TimeUtil::GetCurrentTime();
  const v1::UpgradeStatus shown = status;
  for (const std::string& controller : asked) LookAtMove(controller);
  // After they have been asked: guests are waiting.
  const bool upgrading = upgrade_ && upgrade_->intent.from == engine;
  if (!upgrading) state_.ReportUpgrade(engine, shown, HostState::Keep::kStored);
}

void Reconciler::TellTaken(const std::string& controller, const Move& move, bool taken) {
  const auto found = take_overs_.find(move.from);
  if (found == take_overs_.end()) return;  // it is being committed
  TakeOver& take_over = found->second;
  take_over.waiting.erase(controller);
  if (taken) {
    moves_.at(controller).phase = Move::Phase::kCommitting;
    return;
  }
  std::erase_if(take_over.all,
                [&](const Placement& placement) { return placement.controller == controller; });
  const Error why(ErrorCode::kUnavailable, EngineName(move.to) + " was lost as well");
  AddFailure(take_over.status, controller, why.message);
  EndMove(controller, why);
}

void Reconciler::LookAtTakeOvers() {
  std::vector<std::string> due;
  for (const auto& [engine, take_over] : take_overs_) {
    if (take_over.waiting.empty() || read_until_ns_ >= take_over.deadline_ns) due.push_back(engine);
  }
  for (const std::string& engine : due) CommitTakeOver(engine);
}

void Reconciler::CommitTakeOver(const std::string& engine) {
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
  status.set_state(EndOf(status));
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
uint64_t Reconciler::CountStandbys(uint64_t now_ns) {
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
    const bool alone_changed =
        std::exchange(engine.left_alone_told, engine.left_alone.size()) != engine.left_alone.size();
    if (std::exchange(engine.standing_by, static_cast<uint32_t>(count)) != count || alone_changed)
      ReportEngine(engine.info, true, "");
  }
  return kForEver;
}

}  // namespace cleat::control
