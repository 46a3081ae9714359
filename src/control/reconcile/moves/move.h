// SPDX-License-Identifier: Apache-2.0
// A controller on its way from one engine to another: what is known of the move, and the decision what to do next, a pure function of
// that, of what both engines have, and of time. MoveCoordinator executes it; docs/upgrade.md has the picture.
//
//   PREPARING -> PREPARED -> SETTLING -> YIELDING -> TAKING -> COMMITTING -> (the other engine's)
//       |            |           |           |          |
//       +------------+-----------+-----------+          +---> TAKING BACK -> (stays)
//       |   it stays: nothing was touched    |
//       +- its engine has died: TAKING without its help
//
// Nothing is taken from an engine that may serve: it has yielded, or its process has ended. A connection's end proves nothing. An
// engine that was asked to take may serve until it has said no, died or come back without the controller (MayStillServe); only an
// engine that has yielded and still has everything open is asked to take the controller back before that, when the time is over: then
// the disks' locks decide. What both let go is taken by somebody: by the engine it was meant for, by the one that had it, or, after a
// restart of cleatd, by the one that its row names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/link/engine_link.h"
#include "control/model/change_recorder.h"
#include "control/model/intent.h"
#include "control/reconcile/engines/engine_view.h"

namespace cleat::control {

struct Move {
  // In the order in which they come. From kYielding on, no ordinary step is taken for the controller on either engine.
  enum class Phase : uint8_t {
    kPreparing,   // `to` opens what `from` serves
    kPrepared,    // waits for its turn
    kSettling,    // its turn: waits until nothing else is asked of either engine about it
    kYielding,    // `from` was asked to let go
    kTaking,      // `to` was asked to take
    kCommitting,  // `to` has it: the store is to say so
    kTakingBack,  // `to` can't have it: `from` was asked to take it again, or will be when it is connected
  };
  std::string controller;
  std::string from;
  std::string to;
  Phase phase = Phase::kPreparing;
  uint32_t drain_ms = 0;
  bool crash = false;     // `from` has died: there is nobody to yield, and no way back
  bool reported = false;  // MoveEvents heard that it has failed, though it may still end otherwise
  uint64_t deadline_ns = 0;
  uint64_t turn_until_ns = 0;  // when the next controller's turn begins, whatever this one waits for
  uint64_t wake_ns = 0;        // when it is looked at for the deadline; 0: it isn't
  PeerId asked = 0;            // in this phase; the answer comes from that connection or never
  // The connection of `to` over which it was asked to take: it may serve since. 0: it was not asked, or has said no, died or come back
  // without the controller.
  PeerId asked_to_take = 0;
  uint64_t pause_from_ns = 0;
  uint64_t pause_ns = 0;
  std::optional<engine::v1::HandOver> hand_over;
  // Of an export's hosts, as `from` gave them when it let go: for whoever is asked to take next, once. Closed with the move.
  UniqueFd connections = {};
  std::string why;  // it is taken back
  AskedBy asked_by = {};
};

// The two engines of a move.
struct MoveSides {
  const EngineView* from = nullptr;  // null: not connected
  const EngineView* to = nullptr;
  bool from_died = false;
  bool to_died = false;
};

struct MoveStep {
  enum class Kind : uint8_t {
    kNothing,       // until something happens
    kWait,          // the same, or until `deadline_ns`
    kWaitOrReport,  // the same, until the move's deadline; then those who wait for it hear that it failed, and why
    kReportPrepared,
    kYield,
    kTake,
    kPrepareAgain,  // the taking came to nothing
    kCommit,        // `to` has it
    kStore,         // that `to` has it
    kTakenOver,     // from the dead one
    kNotTakenOver,
    kTakeBack,  // why
    kAskTakeBack,
    kEnd,  // it stays, and why
  };
  Kind kind = Kind::kNothing;
  Error why{ErrorCode::kUnavailable, {}};
  uint64_t deadline_ns = 0;
  bool to_has_not = false;  // `to`, which was asked to take it, is known not to have it
};

// Whether the controller's guest waits for an answer of an engine.
bool IsGuestWaiting(const Move& move);
// Whether `to` was asked to take the controller and may serve it since.
bool MayStillServe(const Move& move, const MoveSides& sides);

struct MoveTimes {
  uint64_t now_ns = 0;
  uint64_t read_until_ns = 0;  // what came before was heard
  uint64_t prepare_ns = 0;
  uint64_t take_ns = 0;
};
// `excluded`: the controller's paths that `to` does not take for listed, for people.
MoveStep PlanPreparing(const Move& move, const MoveSides& sides, const ControllerIntent& intent,
                       const std::string& excluded, const MoveTimes& times);
// For a move from an engine that has died, until `to` is asked: `to` takes the controller as soon as it has everything, and is asked again
// when it can't.
MoveStep PlanTakeOver(const Move& move, const MoveSides& sides, const ControllerIntent& intent,
                      const MoveTimes& times);
MoveStep PlanYielding(const Move& move, const MoveSides& sides);
MoveStep PlanTaking(const Move& move, const MoveSides& sides, const MoveTimes& times);
MoveStep PlanCommitting(const Move& move, const MoveSides& sides);
MoveStep PlanTakingBack(const Move& move, const MoveSides& sides);

}  // namespace cleat::control
