// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/moves/take_over_coordinator.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

using google::protobuf::util::TimeUtil;

// Whether the controller's guest is on its way to or from another controller. An engine that stands by knows neither which of the two
// controllers has the guest now nor when that changes; the engine that was told does, when it is back.
bool IsMigrating(const ControllerIntent& intent) {
  return std::ranges::any_of(intent.attachments, [](const AttachmentIntent& attachment) {
    return attachment.row.spec.mode() != v1::ATTACHMENT_MODE_ACTIVE;
  });
}

bool Contains(const std::vector<Placement>& placements, const std::string& controller) {
  return std::ranges::any_of(placements,
                             [&](const Placement& placement) { return placement.controller == controller; });
}

}  // namespace

bool MayTakeOver(const ControllerIntent& intent, const Standby& standby) {
  if (!standby.may_serve && IsMigrating(intent)) return false;
  // The standby has not prepared a controller whose paths its lists exclude.
  if (!standby.by_move && intent.exists && !intent.prepared_on.contains(standby.engine)) return false;
  return !standby.engine.empty() && (standby.answers || standby.may_serve);
}

bool TakeOverCoordinator::IsBegun(const std::string& engine, const std::string& controller) const {
  const auto begun = take_overs_.find(engine);
  return begun != take_overs_.end() && Contains(begun->second.all, controller);
}

bool TakeOverCoordinator::IsSilent(const std::string& engine) const {
  const EngineView* const view = context_.engines.FindByName(engine);
  return view != nullptr && !view->not_answering.empty();
}

void TakeOverCoordinator::LogIfSilent(const std::string& engine) const {
  const std::string standby = context_.state.engines().StandbyFor(engine);
  if (!IsSilent(standby)) return;
  const auto controllers = context_.state.controllers().On(engine);
  const auto waiting = std::ranges::count_if(
      controllers, [&](const std::string& controller) { return !IsBegun(engine, controller); });
  if (waiting == 0) return;
  spdlog::error(
      "{}: take-over not begun: {} does not answer; the guests of {} controllers wait until one of the two "
      "goes on",
      EngineName(engine), EngineName(standby), waiting);
}

std::vector<Placement> TakeOverCoordinator::StandbysOf(const std::string& engine) {
  const UpgradeIntent* upgrade = upgrades_.RunningFrom(engine);
  const bool upgrading = upgrade != nullptr && !upgrade->cancelled;
  const std::string successor = upgrading ? upgrade->to : context_.state.engines().StandbyFor(engine);
  std::vector<Placement> standbys;
  for (const std::string& controller : context_.state.controllers().On(engine)) {
    if (IsBegun(engine, controller)) continue;
    const Move* move = moves_.Find(controller);
    Standby standby{.engine = move == nullptr ? successor : move->to};
    // A request to an engine that does not answer lies there until it goes on, and meanwhile nobody else may have the controller.
    standby.answers = context_.engines.FindByName(standby.engine) != nullptr && !IsSilent(standby.engine);
    // An engine that was asked to take the controller may have it, though its connection is lost.
    standby.may_serve = moves_.MayServe(controller);
    standby.by_move = move != nullptr || upgrading;
    if (MayTakeOver(context_.state.controllers().IntentOf(controller), standby))
      standbys.push_back({.controller = controller, .engine = standby.engine});
  }
  return standbys;
}

void TakeOverCoordinator::Begin(const std::string& engine) {
  const std::vector<Placement> standbys = StandbysOf(engine);
  if (standbys.empty()) return LogIfSilent(engine);
  spdlog::warn("{}: take-over began: it has died, and {} controllers go to their standby engines",
               EngineName(engine), standbys.size());
  TakeOver& take_over = take_overs_[engine];
  take_over.deadline_ns = context_.now_ns() + context_.options.take_over_ns;
  std::vector<std::string> asked;
  for (const Placement& standby : standbys) {
    take_over.all.push_back(standby);
    if (context_.state.controllers().IntentOf(standby.controller).row.deleting) continue;
    moves_.TakeOver(engine, standby);
    upgrades_.OnTakenOverFrom(engine, standby.controller);
    take_over.waiting.insert(standby.controller);
    asked.push_back(standby.controller);
  }
  v1::UpgradeStatus& status = take_over.status;
  status.set_to(EngineName(standbys.front().engine));
  status.set_state(v1::UPGRADE_STATE_RUNNING);
  status.set_message(EngineName(engine) + " has died");
  status.set_total(status.total() + static_cast<uint32_t>(asked.size()));
  *status.mutable_started_time() = TimeUtil::GetCurrentTime();
  const v1::UpgradeStatus shown = status;
  for (const std::string& controller : asked) moves_.ReconcileMove(controller);
  // Stored after the engines were asked, since guests are waiting.
  Report(engine, shown);
}

void TakeOverCoordinator::OnTakenOver(const std::string& controller, const Move& move, bool taken) {
  const auto found = take_overs_.find(move.from);
  if (found == take_overs_.end()) return;  // it is being committed
  TakeOver& take_over = found->second;
  take_over.waiting.erase(controller);
  if (taken) {
    const ControllerIntent intent = context_.state.controllers().IntentOf(controller);
    if (intent.exists && !intent.row.deleting) {
      take_over.taken.insert(controller);
    } else {
      take_over.status.set_total(take_over.status.total() - 1);  // it was deleted meanwhile
    }
    return moves_.NoteTakenOver(controller);
  }
  std::erase_if(take_over.all,
                [&](const Placement& placement) { return placement.controller == controller; });
  const char* const what = IsSilent(move.to) ? " does not answer" : " was lost as well";
  const Error why(ErrorCode::kUnavailable, EngineName(move.to) + what);
  AddFailure(take_over.status, controller, why.message);
  moves_.End(controller, why);
}

void TakeOverCoordinator::ReconcileAll() {
  std::vector<std::string> due;
  for (const auto& [engine, take_over] : take_overs_) {
    if (take_over.IsDue(context_.read_until_ns)) due.push_back(engine);
  }
  for (const std::string& engine : due) Commit(engine);
}

std::vector<Placement> TakeOverCoordinator::UndecidedOf(const TakeOver& take_over) const {
  std::vector<Placement> undecided;
  std::ranges::copy_if(take_over.all, std::back_inserter(undecided), [&](const Placement& placement) {
    return take_over.waiting.contains(placement.controller) && IsSilent(placement.engine);
  });
  return undecided;
}

void TakeOverCoordinator::PutOff(const std::string& engine, TakeOver& take_over,
                                 std::vector<Placement> undecided) {
  const auto late = static_cast<uint32_t>(take_over.waiting.size() - undecided.size());
  take_over.late += late;
  take_over.waiting.clear();
  for (const Placement& placement : undecided) {
    take_over.waiting.insert(placement.controller);
    reporter_.ReportPending(
        engine, placement.controller,
        fmt::format("{} has ended, and {}, which was asked to take it and may serve, does not answer",
                    EngineName(engine), EngineName(placement.engine)));
  }
  take_over.all = std::move(undecided);
  take_over.deadline_ns = context_.now_ns() + context_.options.take_over_ns;
}

void TakeOverCoordinator::EndMoves(const std::vector<Placement>& placements) {
  for (const Placement& placement : placements) {
    if (moves_.Has(placement.controller)) moves_.End(placement.controller, Ok{});
  }
}

void TakeOverCoordinator::Commit(const std::string& engine) {
  TakeOver& take_over = take_overs_.at(engine);
  if (context_.now_ns() < take_over.not_before_ns) return;
  std::vector<Placement> undecided = UndecidedOf(take_over);
  std::vector<Placement> decided = take_over.all;
  std::erase_if(decided,
                [&](const Placement& placement) { return Contains(undecided, placement.controller); });
  if (const Status status = context_.state.controllers().Move(decided); !status.ok()) {
    spdlog::error("{}: take-over not stored: {}; tried again in {:.3g} s", EngineName(engine),
                  status.error().message,
                  static_cast<double>(context_.options.retry_min_ns) / static_cast<double>(kNsPerSecond));
    take_over.not_before_ns = take_over.deadline_ns = context_.now_ns() + context_.options.retry_min_ns;
    return;
  }
  if (undecided.empty()) {
    ReportDone(engine, take_overs_.extract(engine).mapped());
  } else {
    PutOff(engine, take_over, std::move(undecided));
  }
  EndMoves(decided);
}

void TakeOverCoordinator::ReportDone(const std::string& engine, const TakeOver& take_over) {
  v1::UpgradeStatus status = take_over.status;
  const uint32_t late = take_over.late + static_cast<uint32_t>(take_over.waiting.size());
  status.set_state(EndOf(status));
  const auto taken = static_cast<uint32_t>(take_over.taken.size());
  status.set_moved(taken + late);
  status.set_message(fmt::format("{} has died: {} controllers were taken at once, {} are attached anew",
                                 EngineName(engine), taken, late));
  *status.mutable_ended_time() = TimeUtil::GetCurrentTime();
  spdlog::warn("{}: take-over ended: {} controllers were taken at once, {} are attached anew",
               EngineName(engine), taken, late);
  Report(engine, status);
}

void TakeOverCoordinator::Report(const std::string& engine, const v1::UpgradeStatus& status) {
  if (upgrades_.RunningFrom(engine) != nullptr) return;
  context_.state.upgrades().Report(engine, status, Upgrades::Keep::kStored);
}

uint64_t TakeOverCoordinator::next_ns() const {
  uint64_t due_ns = RetryQueue::kNever;
  for (const auto& [engine, take_over] : take_overs_) due_ns = std::min(due_ns, take_over.deadline_ns);
  return due_ns;
}

}  // namespace cleat::control
