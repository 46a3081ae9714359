// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/moves/upgrade_coordinator.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/log_request.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

using google::protobuf::util::TimeUtil;

}  // namespace

void AddFailure(v1::UpgradeStatus& status, const std::string& controller, const std::string& why) {
  status.set_failed_total(status.failed_total() + 1);
  if (status.failed_size() >= kUpgradeFailuresMax) return;
  v1::UpgradeFailure& failure = *status.add_failed();
  failure.set_controller(ControllerName(controller));
  failure.set_reason(why);
}

v1::UpgradeState EndOf(const v1::UpgradeStatus& status) {
  return status.failed_total() == 0 ? v1::UPGRADE_STATE_DONE : v1::UPGRADE_STATE_FAILED;
}

UpgradeStep PlanUpgrade(const Upgrade& upgrade, const UpgradeLimits& limits) {
  using Kind = UpgradeStep::Kind;
  const bool to_prepare = !upgrade.waiting.empty();
  const bool to_move = !upgrade.prepared.empty();
  const bool preparing = !upgrade.preparing.empty();
  if (upgrade.intent.cancelled && (to_prepare || preparing || to_move)) return {.kind = Kind::kGiveUp};
  if (to_prepare && upgrade.preparing.size() < limits.preparing_max)
    return {.kind = Kind::kPrepare, .controller = *upgrade.waiting.begin()};
  if (to_prepare || preparing) return {};
  const bool may_move =
      upgrade.moving.size() < limits.moving_max && upgrade.held_up.size() < limits.held_up_max;
  if (to_move && may_move) return {.kind = Kind::kMove, .controller = *upgrade.prepared.begin()};
  if (to_move || !upgrade.moving.empty() || !upgrade.held_up.empty()) return {};
  return {.kind = Kind::kEnd};
}

void UpgradeCoordinator::OnIntent(UpgradeIntent intent) {
  if (upgrade_) {
    upgrade_->intent.cancelled = intent.cancelled;
    return;
  }
  Upgrade& upgrade = upgrade_.emplace();
  upgrade.status = intent.status;
  upgrade.waiting.insert(intent.controllers.begin(), intent.controllers.end());
  upgrade.intent = std::move(intent);
}

void UpgradeCoordinator::ReconcileUpgrade() {
  const UpgradeLimits limits{.preparing_max = context_.options.preparing_max,
                             .moving_max = context_.options.moving_max,
                             .held_up_max = context_.options.held_up_max};
  while (upgrade_) {
    const log::RequestScope request(upgrade_->intent.asked_by.request);
    NoteHeldUp();
    const UpgradeStep step = PlanUpgrade(*upgrade_, limits);
    switch (step.kind) {
      case UpgradeStep::Kind::kNothing:
        return;
      case UpgradeStep::Kind::kPrepare:
        Prepare(step.controller);
        break;
      case UpgradeStep::Kind::kMove:
        MoveNow(step.controller);
        break;
      case UpgradeStep::Kind::kGiveUp:
        GiveUp();
        break;
      case UpgradeStep::Kind::kEnd:
        End();
        break;
    }
  }
}

void UpgradeCoordinator::Prepare(const std::string& controller) {
  Upgrade& upgrade = *upgrade_;
  upgrade.waiting.erase(controller);
  if (moves_.Has(controller)) {
    AddFailure(upgrade.status, controller, "an earlier attempt to move it has not been answered yet");
    return Report();
  }
  upgrade.preparing.insert(controller);
  moves_.Begin(controller, upgrade.intent);
}

void UpgradeCoordinator::MoveNow(const std::string& controller) {
  upgrade_->prepared.erase(controller);
  upgrade_->moving.insert(controller);
  upgrade_->status.set_current(ControllerName(controller));
  moves_.Settle(controller);
}

// Compared with what was heard, not with the clock: a cleatd that was held up itself learns first which moves have ended.
void UpgradeCoordinator::NoteHeldUp() {
  Upgrade& upgrade = *upgrade_;
  for (auto next = upgrade.moving.begin(); next != upgrade.moving.end();) {
    const std::string controller = *next++;
    const Move* move = moves_.Find(controller);
    if (move == nullptr || move->turn_until_ns == 0 || context_.read_until_ns < move->turn_until_ns) continue;
    spdlog::info("{}: move to {} takes long: the next controller is moved beside it",
                 ControllerName(controller), EngineName(move->to));
    upgrade.held_up.insert(upgrade.moving.extract(controller));
  }
}

void UpgradeCoordinator::GiveUp() {
  Upgrade& upgrade = *upgrade_;
  upgrade.waiting.clear();
  std::vector<std::string> left(upgrade.preparing.begin(), upgrade.preparing.end());
  left.insert(left.end(), upgrade.prepared.begin(), upgrade.prepared.end());
  upgrade.preparing.clear();
  upgrade.prepared.clear();
  for (const std::string& controller : left) moves_.End(controller, Error(ErrorCode::kNotFound, "cancelled"));
}

void UpgradeCoordinator::End() {
  const UpgradeIntent& intent = upgrade_->intent;
  const RecorderScope recorder(intent.asked_by.recorder);
  v1::UpgradeStatus& status = upgrade_->status;
  status.clear_current();
  *status.mutable_ended_time() = TimeUtil::GetCurrentTime();
  status.set_state(intent.cancelled ? v1::UPGRADE_STATE_CANCELLED : EndOf(status));
  status.set_message(fmt::format("{} of {} controllers were moved", status.moved(), status.total()));
  spdlog::info("{}: upgrade to {} ended: {}, {}", EngineName(intent.from), status.to(),
               v1::UpgradeState_Name(status.state()), status.message());
  // Where the engine has died meanwhile, the store says that its controllers are on their way until they have arrived: a cleatd that is
  // started anew must not give one of them to its former engine before it knows whether the other one serves it.
  const bool is_taken_over = moves_.IsTakingOverFrom(intent.from);
  context_.state.upgrades().Report(intent.from, status,
                                   is_taken_over ? Upgrades::Keep::kShown : Upgrades::Keep::kStored);
  upgrade_.reset();
}

void UpgradeCoordinator::OnPrepared(const std::string& controller) {
  if (!upgrade_ || upgrade_->preparing.erase(controller) == 0) return;
  upgrade_->prepared.insert(controller);
  upgrade_->status.set_prepared(upgrade_->status.prepared() + 1);
  Report();
}

void UpgradeCoordinator::OnMoved(const std::string& controller, const Move& move, const Status& status) {
  if (!upgrade_ || upgrade_->intent.from != move.from) return;
  Upgrade& upgrade = *upgrade_;
  const size_t known = upgrade.waiting.erase(controller) + upgrade.preparing.erase(controller) +
                       upgrade.prepared.erase(controller) + upgrade.moving.erase(controller) +
                       upgrade.held_up.erase(controller);
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
  Report();
}

void UpgradeCoordinator::OnTakenOverFrom(const std::string& engine, const std::string& controller) {
  if (!upgrade_ || upgrade_->intent.from != engine) return;
  Upgrade& upgrade = *upgrade_;
  const size_t known = upgrade.waiting.erase(controller) + upgrade.preparing.erase(controller) +
                       upgrade.prepared.erase(controller);
  if (known != 0) upgrade.moving.insert(controller);
}

const UpgradeIntent* UpgradeCoordinator::RunningFrom(const std::string& engine) const {
  return upgrade_ && upgrade_->intent.from == engine ? &upgrade_->intent : nullptr;
}

bool UpgradeCoordinator::GuestWaits() const {
  if (!upgrade_) return false;
  const auto waits = [this](const std::string& controller) {
    const Move* move = moves_.Find(controller);
    return move != nullptr && IsGuestWaiting(*move);
  };
  return std::any_of(upgrade_->moving.begin(), upgrade_->moving.end(), waits) ||
         std::any_of(upgrade_->held_up.begin(), upgrade_->held_up.end(), waits);
}

void UpgradeCoordinator::Report() {
  context_.state.upgrades().Report(upgrade_->intent.from, upgrade_->status, Upgrades::Keep::kShown);
}

}  // namespace cleat::control
