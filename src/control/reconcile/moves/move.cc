// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/moves/move.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "control/model/names.h"
#include "control/model/seconds.h"

namespace cleat::control {
namespace {

using Kind = MoveStep::Kind;

MoveStep Because(Kind kind, std::string why) {
  return {.kind = kind, .why = {ErrorCode::kUnavailable, std::move(why)}};
}

MoveStep Stays(std::string why) {
  return Because(Kind::kEnd, std::move(why));
}

// The end of a move that nobody wants any more.
MoveStep NotWanted() {
  return {.kind = Kind::kEnd, .why = {ErrorCode::kNotFound, "it is gone, or elsewhere"}};
}

const ControllerView& ViewOf(const EngineView& engine, const std::string& controller) {
  static const ControllerView kNothing;
  const ControllerView* view = engine.FindController(controller);
  return view == nullptr ? kNothing : *view;
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

// Why the controller can't be moved, whatever else is; nothing when it can.
std::optional<MoveStep> ObstacleOf(const Move& move, const MoveSides& sides, const ControllerIntent& intent,
                                   const std::string& excluded) {
  if (!intent.exists || intent.row.deleting || intent.row.engine != move.from) return NotWanted();
  if (sides.to == nullptr) return Stays(EngineName(move.to) + " is not connected any more");
  if (!excluded.empty())
    return Stays(fmt::format("{} does not take for listed: {}", EngineName(move.to), excluded));
  if (sides.from == nullptr) return std::nullopt;
  if (sides.from->unclaimed.contains(move.controller))
    return Stays("it is left alone since the store was restored: change or delete it first");
  if (IsFenced(ViewOf(*sides.from, move.controller)))
    return Stays("a disk of it is shut out of its storage: detach that first");
  return std::nullopt;
}

std::string WhyNotPrepared(const Move& move, const MoveSides& sides, const ControllerIntent& intent,
                           uint64_t prepare_ns) {
  const ControllerView& there = ViewOf(*sides.to, move.controller);
  const std::string reason = !there.last_error.empty() ? there.last_error
                             : sides.from == nullptr   ? EngineName(move.from) + " is not connected"
                                                       : WhatIsAwaited(intent, there);
  return fmt::format("{} has not prepared it within {:.3g} s: {}", EngineName(move.to), ToSeconds(prepare_ns),
                     reason);
}

}  // namespace

bool IsGuestWaiting(const Move& move) {
  return move.phase == Move::Phase::kYielding || move.phase == Move::Phase::kTaking ||
         move.phase == Move::Phase::kTakingBack;
}

bool MayStillServe(const Move& move, const MoveSides& sides) {
  if (move.asked_to_take == 0) return false;
  if (sides.to == nullptr) return !sides.to_died;
  return sides.to->info.peer == move.asked_to_take || Serves(ViewOf(*sides.to, move.controller));
}

MoveStep PlanPreparing(const Move& move, const MoveSides& sides, const ControllerIntent& intent,
                       const std::string& excluded, const MoveTimes& times) {
  if (auto obstacle = ObstacleOf(move, sides, intent, excluded)) return *std::move(obstacle);
  if (sides.from != nullptr) {
    const ControllerView& here = ViewOf(*sides.from, move.controller);
    const bool prepared = IsPrepared(intent, &here, ViewOf(*sides.to, move.controller));
    if (prepared && move.phase == Move::Phase::kPreparing) return {.kind = Kind::kReportPrepared};
    const bool quiet = IsQuiet(intent, *sides.from, here) && !IsResizing(intent, *sides.to);
    if (prepared && quiet && move.phase == Move::Phase::kSettling) return {.kind = Kind::kYield};
  }
  if (move.phase == Move::Phase::kPrepared) return {};
  uint64_t deadline_ns = move.deadline_ns;
  if (move.phase == Move::Phase::kPreparing)
    deadline_ns = std::max(deadline_ns, sides.to->progress_ns + times.prepare_ns);
  if (times.read_until_ns < deadline_ns) return {.kind = Kind::kWait, .deadline_ns = deadline_ns};
  return Stays(WhyNotPrepared(move, sides, intent, times.prepare_ns));
}

MoveStep PlanTakeOver(const Move& move, const MoveSides& sides, const ControllerIntent& intent,
                      const MoveTimes& times) {
  if (sides.to == nullptr) return {.kind = Kind::kNotTakenOver};
  if (!intent.exists || intent.row.deleting) return {.kind = Kind::kTakenOver};
  const ControllerView& there = ViewOf(*sides.to, move.controller);
  if (Serves(there)) return {.kind = Kind::kTakenOver};
  // The silent engine was not asked, or said no: whichever of the two goes on first may have the controller.
  if (!sides.to->not_answering.empty()) return {.kind = Kind::kNotTakenOver};
  if (!IsPrepared(intent, nullptr, there) || !there.request.Ready(times.now_ns)) return {};
  return {.kind = Kind::kTake};
}

MoveStep PlanYielding(const Move& move, const MoveSides& sides) {
  if (sides.from != nullptr && sides.from->info.peer != move.asked) {
    const std::string why = EngineName(move.from) + " lost its connection while it let go";
    return Because(StandsBy(ViewOf(*sides.from, move.controller)) ? Kind::kTakeBack : Kind::kEnd, why);
  }
  return Because(Kind::kWaitOrReport,
                 fmt::format("{} does not answer whether it has let go", EngineName(move.from)));
}

MoveStep PlanTaking(const Move& move, const MoveSides& sides, const MoveTimes& times) {
  const bool back = sides.to != nullptr && sides.to->info.peer != move.asked;
  if (back && Serves(ViewOf(*sides.to, move.controller))) return {.kind = Kind::kCommit};
  const bool may_serve = MayStillServe(move, sides);
  if (move.crash) {
    if (may_serve) return {};
    return {.kind = Kind::kPrepareAgain, .to_has_not = true};
  }
  if (!may_serve) {
    MoveStep step = Because(Kind::kTakeBack, EngineName(move.to) + " was lost while it took it");
    step.to_has_not = true;
    return step;
  }
  if (times.read_until_ns < move.deadline_ns) return {.kind = Kind::kWait, .deadline_ns = move.deadline_ns};
  return Because(Kind::kTakeBack, fmt::format("{} has not taken it within {:.3g} s", EngineName(move.to),
                                              ToSeconds(times.take_ns)));
}

MoveStep PlanCommitting(const Move& move, const MoveSides& sides) {
  if (sides.to_died) {
    if (move.crash) return {.kind = Kind::kNotTakenOver};
    return Because(Kind::kTakeBack, EngineName(move.to) + " has died right after it took it");
  }
  return {.kind = move.crash ? Kind::kTakenOver : Kind::kStore};
}

MoveStep PlanTakingBack(const Move& move, const MoveSides& sides) {
  const bool asked = sides.from != nullptr && move.asked == sides.from->info.peer;
  // The answer of `to` came late, and nobody else was asked.
  if (!asked && sides.to != nullptr && Serves(ViewOf(*sides.to, move.controller)))
    return {.kind = Kind::kCommit};
  if (sides.from == nullptr) {
    const bool both_lost = sides.from_died && sides.to == nullptr && !MayStillServe(move, sides);
    return Because(both_lost ? Kind::kEnd : Kind::kWaitOrReport, move.why);
  }
  if (asked) return Because(Kind::kWaitOrReport, move.why);
  const ControllerView& here = ViewOf(*sides.from, move.controller);
  if (here.request.busy()) return {};
  if (StandsBy(here)) return {.kind = Kind::kAskTakeBack};
  // Otherwise `from` serves, or was started anew and gets everything by ordinary steps.
  if (!Serves(here) && MayStillServe(move, sides)) return Because(Kind::kWaitOrReport, move.why);
  return Stays(move.why);
}

}  // namespace cleat::control
