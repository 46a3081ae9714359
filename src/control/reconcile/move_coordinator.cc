// SPDX-License-Identifier: Apache-2.0
// A controller's way from one engine to another. As all of the reconciler it is driven by levels: whatever happens, the
// move is looked at with what both engines are known to have (LookAtMove), and goes on from there.
//
//   PREPARING -> PREPARED -> SETTLING -> YIELDING -> TAKING -> COMMITTING -> (the other engine's)
//       |            |           |           |          |
//       +------------+-----------+-----------+          +---> TAKING BACK -> (stays)
//       |   it stays: nothing was touched    |
//       +- its engine has died: TAKING without its help
//
// Nothing is taken from an engine that may serve: it has yielded, or its process has ended (OnDead). A connection's end
// proves nothing. One that was asked to take may serve until it has said no, died or come back without it (MayServe); only
// who has yielded and still has everything open is asked to take it back before that, when the time is over: then the
// disks' locks decide. What both let go is taken by somebody: by who it was meant for, by who had it, or, after a restart
// of cleatd, by the engine that its row names.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {
namespace {

double Seconds(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerSecond);
}

Error Stays(std::string why) {
  return {ErrorCode::kUnavailable, std::move(why)};
}

// It is not to be moved any more.
Error NotWanted() {
  return {ErrorCode::kNotFound, "it is gone, or elsewhere"};
}

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

// Usually events have told already, and more of it.
void MarkTaken(ControllerView& view) {
  const bool stood_by = StandsBy(view);
  Mark(view, stood_by ? engine::v1::CONTROLLER_STATE_CONNECTING : view.actual->state(),
       engine::v1::ATTACHMENT_STATE_STANDBY, engine::v1::ATTACHMENT_STATE_ACTIVE);
}

bool IsFenced(const ControllerView& view) {
  return std::any_of(view.attachments.begin(), view.attachments.end(), [](const auto& attachment) {
    return attachment.second.state() == engine::v1::ATTACHMENT_STATE_FENCED;
  });
}

std::string WhatIsAwaited(const ControllerIntent& intent, const ControllerView& there) {
  for (const AttachmentIntent& attachment : intent.attachments) {
    const auto known = there.attachments.find(attachment.row.spec.target());
    if (known == there.attachments.end() || known->second.state() != engine::v1::ATTACHMENT_STATE_STANDBY) {
      return DiskName(attachment.disk.id) + " is still being opened there";
    }
  }
  return "something is still being done about it";
}

}  // namespace

// ---- Beside moves ----

bool Reconciler::IsHeld(const EngineView& engine, const std::string& controller) const {
  const auto found = moves_.find(controller);
  if (found == moves_.end()) return false;
  const Move& move = found->second;
  if (engine.info.id != move.from && engine.info.id != move.to) return false;
  return move.phase >= Move::Phase::kYielding || (move.crash && engine.info.id == move.from);
}

bool Reconciler::IsMoving(const std::vector<std::string>& controllers) const {
  return std::any_of(controllers.begin(), controllers.end(), [&](const std::string& controller) {
    const auto found = moves_.find(controller);
    return found != moves_.end() && found->second.phase >= Move::Phase::kYielding;
  });
}

// Who serves a controller is where it is, whatever its row says: the store was not written when cleatd ended, say. True:
// nothing else is to be done about it now.
bool Reconciler::Adopt(EngineView& engine, const std::string& controller, const ControllerView& view,
                       const ControllerIntent& intent) {
  if (!intent.exists || intent.row.engine.empty() || intent.row.engine == engine.info.id) return false;
  if (engine.info.protocol < kProtocolMoves || !Serves(view)) return false;
  if (view.actual->controller().revision() != intent.row.revision) return false;
  const bool right = std::all_of(view.attachments.begin(), view.attachments.end(), [&](const auto& known) {
    return std::any_of(intent.attachments.begin(), intent.attachments.end(),
                       [&](const AttachmentIntent& wanted) {
                         return wanted.row.spec.target() == known.first &&
                                wanted.row.revision == known.second.attachment().revision();
                       });
  });
  if (!right) return false;
  if (EngineView* other = FindByName(intent.row.engine)) {
    const auto found = other->controllers.find(controller);
    if (found != other->controllers.end() && Serves(found->second)) return false;
    if (found != other->controllers.end() && found->second.busy) return true;
  }
  const Status status = state_.MoveControllers({{.controller = controller, .engine = engine.info.id}});
  Later(status, {.controller = controller, .disk = {}});
  if (!status.ok()) return true;
  spdlog::info("{} is served by {}: it is that one's now, was {}'s", ControllerName(controller),
               EngineName(engine.info.id), EngineName(intent.row.engine));
  ReportView(engine, controller);
  return true;
}

// Of a controller's own engine: whether another one has it, or may have.
bool Reconciler::MayBeElsewhere(const EngineView& engine, const ControllerRow& row,
                                const ControllerView& view) {
  if (Serves(view)) return false;
  for (const auto& [peer, other] : engines_) {
    const auto found = other.controllers.find(row.id);
    if (&other == &engine || other.foreign || found == other.controllers.end()) continue;
    if (Serves(found->second) || (StandsBy(found->second) && found->second.busy)) return true;
  }
  if (row.revision > started_revision_) return false;
  const std::string other = state_.InterruptedTo(engine.info.id);
  const uint64_t until_ns = started_ns_ + options_.reunion_ns;
  if (other.empty() || read_until_ns_ >= until_ns) return false;
  retries_.emplace(until_ns, Retry{.controller = row.id, .disk = {}});
  return true;
}

void Reconciler::ReportView(EngineView& engine, const std::string& controller) {
  const ControllerView& view = engine.controllers[controller];
  if (view.actual) state_.ReportController(engine.info.id, controller, StatusOf(engine, controller, view));
  for (const auto& [target, status] : view.attachments) {
    state_.ReportAttachment(engine.info.id, {controller, target, status.attachment().revision()},
                            ReportOf(status));
  }
}

// ---- The states ----

void Reconciler::BeginMove(const std::string& controller, const std::string& from, const std::string& to,
                           uint32_t drain_ms) {
  Move& move = moves_[controller];
  move.from = from;
  move.to = to;
  move.drain_ms = drain_ms;
  move.deadline_ns = clock_.NowNs() + options_.prepare_ns;
  state_.PrepareMove(controller, to);
  Look(controller);
}

void Reconciler::LookAtMove(const std::string& controller) {
  const auto found = moves_.find(controller);
  if (found == moves_.end()) return;
  Move& move = found->second;
  switch (move.phase) {
    case Move::Phase::kPreparing:
    case Move::Phase::kPrepared:
    case Move::Phase::kSettling:
      return move.crash ? LookAtCrash(controller, move) : LookAtPreparing(controller, move);
    case Move::Phase::kYielding:
      return LookAtYield(controller, move);
    case Move::Phase::kTaking:
      return LookAtTake(controller, move);
    case Move::Phase::kCommitting:
      return LookAtCommit(controller, move);
    case Move::Phase::kTakingBack:
      return LookAtTakeBack(controller, move);
  }
}

void Reconciler::LookAtPreparing(const std::string& controller, Move& move) {
  const ControllerIntent intent = state_.IntentOf(controller);
  if (!intent.exists || intent.row.deleting || intent.row.engine != move.from) {
    return EndMove(controller, NotWanted());
  }
  EngineView* to = FindByName(move.to);
  if (to == nullptr) return EndMove(controller, Stays(EngineName(move.to) + " is not connected any more"));
  if (const std::string excluded = state_.ExcludedFrom(move.to, controller); !excluded.empty())
    return EndMove(controller,
                   Stays(fmt::format("{} does not take for listed: {}", EngineName(move.to), excluded)));
  EngineView* from = FindByName(move.from);
  const ControllerView& there = to->controllers[controller];
  if (from != nullptr) {
    const ControllerView& here = from->controllers[controller];
    if (from->left_alone.contains(controller)) {
      return EndMove(controller,
                     Stays("it is left alone since the store was restored: change or delete it first"));
    }
    if (IsFenced(here)) {
      return EndMove(controller, Stays("a disk of it is shut out of its storage: detach that first"));
    }
    const bool prepared = IsPrepared(intent, &here, there);
    if (prepared && move.phase == Move::Phase::kPreparing) {
      move.phase = Move::Phase::kPrepared;
      return TellPrepared(controller);
    }
    const bool quiet = IsQuiet(intent, *from, here) && !IsResizing(intent, *to);
    if (prepared && quiet && move.phase == Move::Phase::kSettling) return StartYield(controller, move, *from);
  }
  if (move.phase == Move::Phase::kPrepared) return;
  if (move.phase == Move::Phase::kPreparing) {
    move.deadline_ns = std::max(move.deadline_ns, to->progress_ns + options_.prepare_ns);
  }
  if (read_until_ns_ < move.deadline_ns) return WakeFor(controller, move);
  const std::string& last = there.last_error;
  EndMove(controller, Stays(fmt::format("{} has not prepared it within {:.3g} s: {}", EngineName(move.to),
                                        Seconds(options_.prepare_ns),
                                        !last.empty()     ? last
                                        : from == nullptr ? EngineName(move.from) + " is not connected"
                                                          : WhatIsAwaited(intent, there))));
}

void Reconciler::StartYield(const std::string& controller, Move& move, EngineView& from) {
  const uint64_t now_ns = clock_.NowNs();
  move.phase = Move::Phase::kYielding;
  move.asked = from.info.peer;
  move.pause_from_ns = now_ns;
  move.deadline_ns = now_ns + move.drain_ms * kNsPerMs + options_.yield_grace_ns;
  engine::v1::Envelope envelope;
  envelope.mutable_yield_controller()->set_name(ControllerName(controller));
  envelope.mutable_yield_controller()->set_drain_ms(move.drain_ms);
  AskFor(from, controller, std::move(envelope), {}, std::nullopt,
         [this, controller](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
           if (reply.ok()) MarkStandby(view);
           OnYielded(answered, controller, reply);
         });
  WakeFor(controller, move);
}

// Without its move - that was given up - it is taken again as an ordinary step.
void Reconciler::OnYielded(EngineView& from, const std::string& controller, const engine::v1::Reply& reply) {
  const auto found = moves_.find(controller);
  if (found == moves_.end() || found->second.phase != Move::Phase::kYielding ||
      found->second.asked != from.info.peer) {
    return;
  }
  Move& move = found->second;
  if (!reply.ok()) return EndMove(controller, FromEngine(reply));
  move.hand_over = reply.hand_over();
  if (move.told) return StartTakeBack(controller, move, move.why);
  StartTake(controller, move);
}

void Reconciler::LookAtYield(const std::string& controller, Move& move) {
  EngineView* from = FindByName(move.from);
  if (from != nullptr && from->info.peer != move.asked) {
    const std::string why = EngineName(move.from) + " lost its connection while it let go";
    if (StandsBy(from->controllers[controller])) return StartTakeBack(controller, move, why);
    return EndMove(controller, Stays(why));
  }
  FailIfLate(controller, move,
             fmt::format("{} does not answer whether it has let go", EngineName(move.from)));
}

bool Reconciler::MayServe(const std::string& controller, Move& move) {
  if (move.asked_to_take == 0) return false;
  EngineView* to = FindByName(move.to);
  const bool disproved = to == nullptr
                             ? dead_.contains(move.to)
                             : to->info.peer != move.asked_to_take && !Serves(to->controllers[controller]);
  if (disproved) move.asked_to_take = 0;
  return !disproved;
}

void Reconciler::StartTake(const std::string& controller, Move& move) {
  EngineView* to = FindByName(move.to);
  if (to == nullptr) {
    return StartTakeBack(controller, move, EngineName(move.to) + " is not connected any more");
  }
  move.phase = Move::Phase::kTaking;
  move.asked = move.asked_to_take = to->info.peer;
  move.deadline_ns = clock_.NowNs() + options_.take_ns;
  AskTake(*to, controller, move.hand_over, counters_ == nullptr ? UniqueFd() : counters_->Share(move.from));
  WakeFor(controller, move);
}

void Reconciler::AskTake(EngineView& engine, const std::string& controller,
                         const std::optional<engine::v1::HandOver>& hand_over, UniqueFd counters) {
  engine::v1::Envelope envelope;
  envelope.mutable_take_controller()->set_name(ControllerName(controller));
  if (hand_over) *envelope.mutable_take_controller()->mutable_hand_over() = *hand_over;
  Ask(engine, controller, std::move(envelope), std::move(counters), std::nullopt,
      [this, controller](EngineView& answered, ControllerView& view, const Status& status) {
        if (status.ok()) {
          view.backoff = {};
          view.take_failed_since_ns = 0;
          if (view.actual) MarkTaken(view);
        } else {
          const uint64_t now_ns = clock_.NowNs();
          if (view.take_failed_since_ns == 0) view.take_failed_since_ns = now_ns;
          view.take_given_up = now_ns - view.take_failed_since_ns >= options_.take_over_ns;
          FailController(answered, view, controller, "taken", status);
        }
        OnTaken(answered, controller, status);
      });
}

void Reconciler::OnTaken(EngineView& engine, const std::string& controller, const Status& status) {
  const auto found = moves_.find(controller);
  if (found == moves_.end()) {
    if (status.ok()) ReportView(engine, controller);
    return;
  }
  Move& move = found->second;
  if (!status.ok() && move.asked_to_take == engine.info.peer) move.asked_to_take = 0;
  if (move.asked != engine.info.peer) return;  // late: what it has is seen in its view
  const std::string failure = status.ok() ? std::string() : status.error().message;
  if (move.phase == Move::Phase::kTaking) {
    if (status.ok()) return StartCommit(controller, move);
    if (!move.crash) return StartTakeBack(controller, move, failure);
    move.phase = Move::Phase::kPreparing;  // it is tried again
  } else if (move.phase == Move::Phase::kTakingBack) {
    if (!status.ok()) {
      move.why += fmt::format("; and {} can't take it back yet: {}", EngineName(move.from), failure);
    }
    EndMove(controller, Stays(move.why));
  }
}

void Reconciler::LookAtTake(const std::string& controller, Move& move) {
  EngineView* to = FindByName(move.to);
  const bool back = to != nullptr && to->info.peer != move.asked;
  if (back && Serves(to->controllers[controller])) return StartCommit(controller, move);
  const bool may_serve = MayServe(controller, move);
  if (move.crash) {
    if (may_serve) return;
    move.phase = Move::Phase::kPreparing;
    return LookAtCrash(controller, move);
  }
  if (!may_serve) return StartTakeBack(controller, move, EngineName(move.to) + " was lost while it took it");
  if (read_until_ns_ < move.deadline_ns) return WakeFor(controller, move);
  StartTakeBack(
      controller, move,
      fmt::format("{} has not taken it within {:.3g} s", EngineName(move.to), Seconds(options_.take_ns)));
}

void Reconciler::StartCommit(const std::string& controller, Move& move) {
  move.phase = Move::Phase::kCommitting;
  move.pause_ns = clock_.NowNs() - move.pause_from_ns;
  LookAtCommit(controller, move);
}

// Those that a death left behind are committed together.
void Reconciler::LookAtCommit(const std::string& controller, Move& move) {
  if (dead_.contains(move.to)) {
    if (move.crash) return TellTaken(controller, move, false);
    return StartTakeBack(controller, move, EngineName(move.to) + " has died right after it took it");
  }
  if (move.crash) return TellTaken(controller, move, true);
  const Status status = state_.MoveControllers({{.controller = controller, .engine = move.to}});
  if (status.ok()) return EndMove(controller, Ok{});
  spdlog::error("{} is served by {}, which can't be stored yet: {}", ControllerName(controller),
                EngineName(move.to), status.error().message);
  move.deadline_ns = clock_.NowNs() + options_.retry_max_ns;
  WakeFor(controller, move);
}

void Reconciler::StartTakeBack(const std::string& controller, Move& move, const std::string& why) {
  move.phase = Move::Phase::kTakingBack;
  move.why = why;
  move.asked = 0;
  move.deadline_ns = clock_.NowNs() + options_.take_ns;
  LookAtTakeBack(controller, move);
}

void Reconciler::LookAtTakeBack(const std::string& controller, Move& move) {
  EngineView* from = FindByName(move.from);
  EngineView* to = FindByName(move.to);
  const bool asked = from != nullptr && move.asked == from->info.peer;
  // Its answer came late, and nobody else was asked.
  if (!asked && to != nullptr && Serves(to->controllers[controller])) return StartCommit(controller, move);
  if (from == nullptr) {
    if (dead_.contains(move.from) && to == nullptr && !MayServe(controller, move))
      return EndMove(controller, Stays(move.why));
    return FailIfLate(controller, move, move.why);
  }
  if (asked) return FailIfLate(controller, move, move.why);
  const ControllerView& view = from->controllers[controller];
  if (view.busy) return;
  // It serves, or was started anew and gets everything as an ordinary step.
  if (!StandsBy(view) && !Serves(view) && MayServe(controller, move))
    return FailIfLate(controller, move, move.why);
  if (!StandsBy(view)) return EndMove(controller, Stays(move.why));
  move.asked = from->info.peer;
  AskTake(*from, controller, move.hand_over, {});
  WakeFor(controller, move);
}

// `from` has died: `to` takes it as soon as it has everything, and again when it can't.
void Reconciler::LookAtCrash(const std::string& controller, Move& move) {
  EngineView* to = FindByName(move.to);
  if (to == nullptr) return TellTaken(controller, move, false);
  const ControllerIntent intent = state_.IntentOf(controller);
  if (!intent.exists || intent.row.deleting) return TellTaken(controller, move, true);
  const ControllerView& there = to->controllers[controller];
  if (Serves(there)) return TellTaken(controller, move, true);
  if (!IsPrepared(intent, nullptr, there) || clock_.NowNs() < there.backoff.not_before_ns) return;
  move.hand_over.reset();
  StartTake(controller, move);
}

// ---- Limits and the end ----

// Those who wait for the move go on without it. It itself can only end with an answer, or with that engine.
void Reconciler::FailIfLate(const std::string& controller, Move& move, const std::string& why) {
  if (move.told) return;
  if (read_until_ns_ < move.deadline_ns) return WakeFor(controller, move);
  move.told = true;
  move.why = why;
  TellMoved(controller, move, Stays(why));
}

void Reconciler::WakeFor(const std::string& controller, Move& move) {
  if (move.wake_ns > read_until_ns_ && move.wake_ns <= move.deadline_ns) return;
  move.wake_ns = move.deadline_ns;
  retries_.emplace(move.deadline_ns, Retry{.controller = controller, .disk = {}});
}

void Reconciler::EndMove(const std::string& controller, const Status& status) {
  auto node = moves_.extract(controller);
  const Move& move = node.mapped();
  state_.PrepareMove(controller, "");
  if (status.ok()) {
    spdlog::info("{} was moved from {} to {}{}", ControllerName(controller), EngineName(move.from),
                 EngineName(move.to),
                 move.crash
                     ? std::string(", which was prepared for that")
                     : fmt::format(": its guest waited for {:.3g} ms",
                                   static_cast<double>(move.pause_ns) / static_cast<double>(kNsPerMs)));
  } else if (status.error().code != ErrorCode::kNotFound) {
    spdlog::warn("{} stays on {}: {}", ControllerName(controller), EngineName(move.from),
                 status.error().message);
  }
  const std::string& place = status.ok() ? move.to : move.from;
  if (EngineView* engine = FindByName(place)) {
    ReportView(*engine, controller);
  } else {
    ReportUnknown(place, controller);
  }
  if (!move.told) TellMoved(controller, move, status);
  Look(controller);
  for (const AttachmentIntent& attachment : state_.IntentOf(controller).attachments)
    LookAtDisk(attachment.disk.id);
}

}  // namespace cleat::control
