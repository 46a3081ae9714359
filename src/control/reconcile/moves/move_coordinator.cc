// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/moves/move_coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

void Mark(ControllerView& view, engine::v1::ControllerState controller, engine::v1::AttachmentState from,
          engine::v1::AttachmentState to) {
  if (view.actual) view.actual->set_state(controller);
  for (auto& [target, status] : view.attachments) {
    if (status.state() == from) status.set_state(to);
  }
}

void MarkStandby(ControllerView& view) {
  Mark(view, engine::v1::CONTROLLER_STATE_STANDBY, engine::v1::ATTACHMENT_STATE_ACTIVE,
       engine::v1::ATTACHMENT_STATE_STANDBY);
}

// Usually events have told this already, and more.
void MarkTaken(ControllerView& view) {
  const bool stood_by = StandsBy(view);
  Mark(view, stood_by ? engine::v1::CONTROLLER_STATE_CONNECTING : view.actual->state(),
       engine::v1::ATTACHMENT_STATE_STANDBY, engine::v1::ATTACHMENT_STATE_ACTIVE);
}

Status StaysBecause(const std::string& why) {
  return Error(ErrorCode::kUnavailable, why);
}

void LogEnd(const Move& move, const Status& status) {
  if (!status.ok()) {
    if (status.error().code == ErrorCode::kNotFound) return;
    return spdlog::warn("{}: not moved from {} to {}: {}", ControllerName(move.controller),
                        EngineName(move.from), EngineName(move.to), status.error().message);
  }
  const std::string how =
      move.crash ? std::string("it had been prepared there for the death of the other")
                 : fmt::format("its guest waited for {:.3g} ms",
                               static_cast<double>(move.pause_ns) / static_cast<double>(kNsPerMs));
  spdlog::info("{}: moved from {} to {}: {}", ControllerName(move.controller), EngineName(move.from),
               EngineName(move.to), how);
}

}  // namespace

// ---- Beside moves ----

const Move* MoveCoordinator::Find(const std::string& controller) const {
  const auto found = moves_.find(controller);
  return found == moves_.end() ? nullptr : &found->second;
}

bool MoveCoordinator::Holds(const EngineView& engine, const std::string& controller) const {
  const Move* move = Find(controller);
  if (move == nullptr) return false;
  if (engine.info.id != move->from && engine.info.id != move->to) return false;
  return move->phase >= Move::Phase::kYielding || (move->crash && engine.info.id == move->from);
}

bool MoveCoordinator::IsMoving(const std::vector<std::string>& controllers) const {
  return std::any_of(controllers.begin(), controllers.end(), [&](const std::string& controller) {
    const Move* move = Find(controller);
    return move != nullptr && move->phase >= Move::Phase::kYielding;
  });
}

bool MoveCoordinator::IsTakingOverFrom(const std::string& engine) const {
  return std::any_of(moves_.begin(), moves_.end(),
                     [&](const auto& entry) { return entry.second.crash && entry.second.from == engine; });
}

bool MoveCoordinator::MayServe(const std::string& controller) {
  const auto found = moves_.find(controller);
  if (found == moves_.end()) return false;
  Move& move = found->second;
  const bool may_serve = MayStillServe(move, SidesOf(move));
  if (!may_serve) move.asked_to_take = 0;
  return may_serve;
}

// ---- Beginning and reconciling a move ----

void MoveCoordinator::Begin(const std::string& controller, const UpgradeIntent& upgrade) {
  Move& move = moves_[controller];
  move.controller = controller;
  move.from = upgrade.from;
  move.to = upgrade.to;
  move.drain_ms = upgrade.drain_ms;
  move.asked_by = upgrade.asked_by;
  move.deadline_ns = context_.now_ns() + context_.options.prepare_ns;
  context_.state.controllers().PrepareMove(controller, upgrade.to);
  reconcile_.Controller(controller);
}

void MoveCoordinator::Settle(const std::string& controller) {
  Move& move = moves_.at(controller);
  move.phase = Move::Phase::kSettling;
  move.deadline_ns = context_.now_ns() + context_.options.prepare_ns;
  move.turn_until_ns = context_.now_ns() + context_.options.turn_ns;
  context_.retries.Add(move.turn_until_ns, ControllerId{controller});
  ReconcileMove(controller);
}

void MoveCoordinator::TakeOver(const std::string& from, const Placement& standby) {
  const std::string& controller = standby.controller;
  Move& move = moves_[controller];
  move.controller = controller;
  move.from = from;
  move.to = standby.engine;
  move.crash = true;
  if (move.pause_from_ns == 0) move.pause_from_ns = context_.now_ns();
  if (move.phase != Move::Phase::kCommitting) {
    move.phase = MayServe(controller) ? Move::Phase::kTaking : Move::Phase::kPreparing;
    move.asked = move.asked_to_take;
  }
  context_.state.controllers().PrepareMove(controller, standby.engine);
}

void MoveCoordinator::NoteTakenOver(const std::string& controller) {
  moves_.at(controller).phase = Move::Phase::kCommitting;
}

void MoveCoordinator::ReconcileMove(const std::string& controller) {
  const auto found = moves_.find(controller);
  if (found == moves_.end()) return;
  Move& move = found->second;
  const log::RequestScope request(move.asked_by.request);
  Execute(move, Plan(move));
}

void MoveCoordinator::ReconcileAll() {
  std::vector<std::string> controllers;
  for (const auto& [controller, move] : moves_) controllers.push_back(controller);
  for (const std::string& controller : controllers) ReconcileMove(controller);
}

MoveSides MoveCoordinator::SidesOf(const Move& move) const {
  const ConnectedEngines& engines = context_.engines;
  return {.from = engines.FindByName(move.from),
          .to = engines.FindByName(move.to),
          .from_died = engines.IsDead(move.from),
          .to_died = engines.IsDead(move.to)};
}

MoveStep MoveCoordinator::Plan(const Move& move) const {
  const MoveSides sides = SidesOf(move);
  const MoveTimes times{.now_ns = context_.now_ns(),
                        .read_until_ns = context_.read_until_ns,
                        .prepare_ns = context_.options.prepare_ns,
                        .take_ns = context_.options.take_ns};
  switch (move.phase) {
    case Move::Phase::kPreparing:
    case Move::Phase::kPrepared:
    case Move::Phase::kSettling: {
      const ControllerIntent intent = context_.state.controllers().IntentOf(move.controller);
      if (move.crash) return PlanTakeOver(move, sides, intent, times);
      return PlanPreparing(move, sides, intent,
                           context_.state.engines().ExcludedFrom(move.to, move.controller), times);
    }
    case Move::Phase::kYielding:
      return PlanYielding(move, sides);
    case Move::Phase::kTaking:
      return PlanTaking(move, sides, times);
    case Move::Phase::kCommitting:
      return PlanCommitting(move, sides);
    case Move::Phase::kTakingBack:
      return PlanTakingBack(move, sides);
  }
  return {};
}

void MoveCoordinator::Execute(Move& move, const MoveStep& step) {
  const std::string controller = move.controller;
  if (step.to_has_not) move.asked_to_take = 0;
  switch (step.kind) {
    case MoveStep::Kind::kNothing:
      return;
    case MoveStep::Kind::kWait:
      move.deadline_ns = step.deadline_ns;
      return WakeFor(move);
    case MoveStep::Kind::kWaitOrReport:
      return ReportIfLate(move, step.why);
    case MoveStep::Kind::kReportPrepared:
      move.phase = Move::Phase::kPrepared;
      return events_.OnPrepared(controller);
    case MoveStep::Kind::kYield:
      return Yield(move);
    case MoveStep::Kind::kTake:
      move.hand_over.reset();
      return Take(move);
    case MoveStep::Kind::kPrepareAgain:
      move.phase = Move::Phase::kPreparing;
      return ReconcileMove(controller);
    case MoveStep::Kind::kCommit:
      return Commit(move);
    case MoveStep::Kind::kStore:
      return StoreCommit(move);
    case MoveStep::Kind::kTakenOver:
      return events_.OnTakenOver(controller, move, true);
    case MoveStep::Kind::kNotTakenOver:
      return events_.OnTakenOver(controller, move, false);
    case MoveStep::Kind::kTakeBack:
      return TakeBack(move, step.why.message);
    case MoveStep::Kind::kAskTakeBack:
      return AskTakeBack(move);
    case MoveStep::Kind::kEnd:
      return End(controller, step.why);
  }
}

// ---- Steps ----

void MoveCoordinator::Yield(Move& move) {
  EngineView& from = *context_.engines.FindByName(move.from);
  const std::string controller = move.controller;
  const uint64_t now_ns = context_.now_ns();
  move.phase = Move::Phase::kYielding;
  move.asked = from.info.peer;
  move.pause_from_ns = now_ns;
  move.deadline_ns = now_ns + move.drain_ms * kNsPerMs + context_.options.yield_grace_ns;
  ControllerRequests::Request request;
  request.envelope.mutable_yield_controller()->set_name(ControllerName(controller));
  request.envelope.mutable_yield_controller()->set_drain_ms(move.drain_ms);
  requests_.AskForFd(from, controller, std::move(request),
                     [this, controller](EngineView& answered, ControllerView& view,
                                        const engine::v1::Reply& reply, UniqueFd connections) {
                       if (reply.ok()) MarkStandby(view);
                       OnYielded(answered, controller, reply, std::move(connections));
                     });
  WakeFor(move);
}

// A controller whose move was given up meanwhile is taken again as an ordinary step.
void MoveCoordinator::OnYielded(EngineView& from, const std::string& controller,
                                const engine::v1::Reply& reply, UniqueFd connections) {
  const auto found = moves_.find(controller);
  if (found == moves_.end() || found->second.phase != Move::Phase::kYielding ||
      found->second.asked != from.info.peer) {
    return;
  }
  Move& move = found->second;
  const log::RequestScope request(move.asked_by.request);
  if (!reply.ok()) return End(controller, FromEngine(reply));
  move.hand_over = reply.hand_over();
  move.connections = std::move(connections);
  if (move.reported) return TakeBack(move, move.why);
  Take(move);
}

void MoveCoordinator::Take(Move& move) {
  EngineView* to = context_.engines.FindByName(move.to);
  if (to == nullptr) return TakeBack(move, EngineName(move.to) + " is not connected any more");
  move.phase = Move::Phase::kTaking;
  move.asked = move.asked_to_take = to->info.peer;
  move.deadline_ns = context_.now_ns() + context_.options.take_ns;
  AskTake(*to, move.controller,
          {.hand_over = move.hand_over,
           .counters = counters_ == nullptr ? UniqueFd() : counters_->Share(move.from),
           .connections = std::move(move.connections)});
  WakeFor(move);
}

// An engine that knows nothing of connections is not given them: they are closed, and their hosts connect again.
void MoveCoordinator::AskTake(EngineView& engine, const std::string& controller, Given given) {
  ControllerRequests::Request request{.envelope = {}, .fds = FdsOf(std::move(given.counters))};
  engine::v1::TakeController& take = *request.envelope.mutable_take_controller();
  take.set_name(ControllerName(controller));
  if (given.hand_over) *take.mutable_hand_over() = *std::move(given.hand_over);
  if (engine.info.protocol >= kProtocolHandOver && given.connections.valid()) {
    if (!request.fds.empty()) take.set_counters(true);
    take.set_connections(true);
    request.fds.push_back(std::move(given.connections));
  } else if (given.connections.valid()) {
    spdlog::info(
        "{}: connections of its hosts are not given to engines/{}, which is too old: hosts connect again",
        ControllerName(controller), engine.info.id);
  }
  requests_.Ask(
      engine, controller, std::move(request),
      [this, controller](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
        OnTakeAnswer(answered, view, controller, FromEngine(reply));
      });
}

void MoveCoordinator::OnTakeAnswer(EngineView& engine, ControllerView& view, const std::string& controller,
                                   const Status& status) {
  if (status.ok()) {
    view.request.Done();
    view.take_failed_since_ns = 0;
    if (view.actual) MarkTaken(view);
  } else {
    const uint64_t now_ns = context_.now_ns();
    if (view.take_failed_since_ns == 0) view.take_failed_since_ns = now_ns;
    view.take_given_up = now_ns - view.take_failed_since_ns >= context_.options.take_over_ns;
    requests_.FailController(engine, view, controller, "TakeController", status);
  }
  OnTaken(engine, controller, status);
}

void MoveCoordinator::OnTaken(EngineView& engine, const std::string& controller, const Status& status) {
  const auto found = moves_.find(controller);
  if (found == moves_.end()) {
    if (status.ok()) reporter_.ReportView(engine, controller);
    return;
  }
  Move& move = found->second;
  const log::RequestScope request(move.asked_by.request);
  if (!status.ok() && move.asked_to_take == engine.info.peer) move.asked_to_take = 0;
  if (move.asked != engine.info.peer) return;  // late: the view says what the engine has
  const std::string failure = status.ok() ? std::string() : status.error().message;
  if (move.phase == Move::Phase::kTaking) {
    if (status.ok()) return Commit(move);
    if (!move.crash) return TakeBack(move, failure);
    move.phase = Move::Phase::kPreparing;  // it is tried again
  } else if (move.phase == Move::Phase::kTakingBack) {
    if (!status.ok()) {
      move.why += fmt::format("; and {} can't take it back yet: {}", EngineName(move.from), failure);
    }
    End(controller, StaysBecause(move.why));
  }
}

void MoveCoordinator::Commit(Move& move) {
  move.phase = Move::Phase::kCommitting;
  move.pause_ns = context_.now_ns() - move.pause_from_ns;
  Execute(move, Plan(move));
}

// Moves from a dead engine don't come here: TakeOverCoordinator stores them together.
void MoveCoordinator::StoreCommit(Move& move) {
  const std::string controller = move.controller;
  const RecorderScope recorder(move.asked_by.recorder);
  const Status status = context_.state.controllers().Move({{.controller = controller, .engine = move.to}});
  if (status.ok()) return End(controller, Ok{});
  spdlog::error("{}: move to {} not stored: {}; tried again in {:.3g} s", ControllerName(controller),
                EngineName(move.to), status.error().message,
                static_cast<double>(context_.options.retry_max_ns) / static_cast<double>(kNsPerSecond));
  move.deadline_ns = context_.now_ns() + context_.options.retry_max_ns;
  WakeFor(move);
}

void MoveCoordinator::TakeBack(Move& move, const std::string& why) {
  move.phase = Move::Phase::kTakingBack;
  move.why = why;
  move.asked = 0;
  move.deadline_ns = context_.now_ns() + context_.options.take_ns;
  Execute(move, Plan(move));
}

void MoveCoordinator::AskTakeBack(Move& move) {
  EngineView& from = *context_.engines.FindByName(move.from);
  move.asked = from.info.peer;
  AskTake(from, move.controller,
          {.hand_over = move.hand_over, .counters = {}, .connections = std::move(move.connections)});
  WakeFor(move);
}

// ---- Limits and the end ----

// An upgrade goes on without a move that is late. The move itself can only end with an answer, or with that engine.
void MoveCoordinator::ReportIfLate(Move& move, const Error& why) {
  if (move.reported) return;
  if (context_.read_until_ns < move.deadline_ns) return WakeFor(move);
  move.reported = true;
  move.why = why.message;
  events_.OnMoved(move.controller, move, why);
}

void MoveCoordinator::WakeFor(Move& move) {
  if (move.wake_ns > context_.read_until_ns && move.wake_ns <= move.deadline_ns) return;
  move.wake_ns = move.deadline_ns;
  context_.retries.Add(move.deadline_ns, ControllerId{move.controller});
}

void MoveCoordinator::End(const std::string& controller, const Status& status) {
  const auto node = moves_.extract(controller);
  const Move& move = node.mapped();
  const std::string& id = move.controller;
  context_.state.controllers().PrepareMove(id, "");
  LogEnd(move, status);
  const std::string& place = status.ok() ? move.to : move.from;
  if (const EngineView* engine = context_.engines.FindByName(place)) {
    reporter_.ReportView(*engine, id);
  } else {
    reporter_.ReportUnknown(place, id);
  }
  if (!move.reported) events_.OnMoved(id, move, status);
  reconcile_.Controller(id);
  for (const AttachmentIntent& attachment : context_.state.controllers().IntentOf(id).attachments)
    reconcile_.Disk(attachment.disk.id);
}

}  // namespace cleat::control
