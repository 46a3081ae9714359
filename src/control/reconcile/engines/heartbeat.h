// SPDX-License-Identifier: Apache-2.0
// Whether one engine goes on, from what came of it: plain data and arithmetic. An engine is asked several times a second; whatever it sends
// shows that its control reactor works, and its answers say how far its I/O reactors are. After the last answer nothing is known of
// these: a reactor that stood still then may have gone on.
//
// Time here is cleatd's own: time in which cleatd ran (HeartbeatMonitor). A host that stands still, or cores that others have, stop both
// sides, and neither is to blame.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"
#include "cleat/engine/v1/engine.pb.h"

namespace cleat::control {

struct HeartbeatTimes {
  uint64_t interval_ns = 150 * kNsPerMs;  // between two questions
  uint64_t limit_ns = 600 * kNsPerMs;     // of silence, or of a reactor that stands still
  // The most that one look counts: cleatd looks so often while it waits for an answer, and more time than that was not its own.
  uint64_t look_ns = 50 * kNsPerMs;
};

class Heartbeat {
 public:
  // Whether it is to be asked: no question is under way, and the last one is long enough ago.
  bool IsDue(uint64_t own_ns, const HeartbeatTimes& times) const;
  void Asked(uint64_t own_ns);
  // `received`: messages that have come over the connection so far. Any of them shows that the engine goes on.
  void Heard(uint64_t own_ns, uint64_t received);
  void Answered(uint64_t own_ns, const engine::v1::Reply& reply);

  // For how long it has been silent, or one of its reactors had stood still at the last answer; 0: neither.
  uint64_t SilentNs(uint64_t own_ns) const;
  // Whether a reactor had stood still for too long at the last answer, and its guests' I/O with it.
  bool HasStillReactor(const HeartbeatTimes& times) const;
  // What does not go on, for people, when that is too long: "no answer for 0.6 s". Empty: the engine goes on.
  std::string Problem(uint64_t own_ns, const HeartbeatTimes& times) const;
  bool waits() const { return waits_; }

 private:
  struct ReactorSeen {
    uint64_t turns = 0;
    bool still = false;     // it did nothing between the last two answers, and was not asleep
    uint64_t since_ns = 0;  // ... since
  };

  uint64_t ControlSilentNs(uint64_t own_ns) const;
  uint64_t StillNs(const ReactorSeen& reactor) const;

  bool waits_ = false;  // for an answer
  uint64_t asked_ns_ = 0;
  uint64_t heard_ns_ = 0;  // the latest sign of life; asked_ns_ when that is later
  uint64_t answered_ns_ = 0;
  uint64_t received_ = 0;
  std::map<std::string, ReactorSeen> reactors_;
};

}  // namespace cleat::control
