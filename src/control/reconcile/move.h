// SPDX-License-Identifier: Apache-2.0
// A controller on its way from one engine to another, and an upgrade, which is many of those. Plain data of the
// reconciler's; move_coordinator.cc has what happens to it, docs/upgrade.md the picture.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cleat/engine/v1/engine.pb.h"
#include "cleat/v1/cleat.pb.h"
#include "control/engine_link.h"
#include "control/intent.h"

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
  std::string from;
  std::string to;
  Phase phase = Phase::kPreparing;
  uint32_t drain_ms = 0;
  bool crash = false;  // `from` has died: there is nobody to yield, and no way back
  bool told = false;   // those who wait for it were told that it has failed
  uint64_t deadline_ns = 0;
  uint64_t wake_ns = 0;  // when it is looked at for the deadline; 0: it isn't
  PeerId asked = 0;      // in this phase; the answer comes from that connection or never
  PeerId asked_to_take =
      0;  // `to`, which may have it since, until it has said no, died or come back without it
  uint64_t pause_from_ns = 0;
  uint64_t pause_ns = 0;
  std::optional<engine::v1::HandOver> hand_over;
  std::string why;  // it is taken back
};

// Each controller that is still to be dealt with is in one of the sets.
struct Upgrade {
  UpgradeIntent intent;
  v1::UpgradeStatus status;
  std::set<std::string> waiting;
  std::set<std::string> preparing;
  std::set<std::string> prepared;
  std::set<std::string> moving;
  uint64_t longest_pause_ns = 0;
};

// Of a dead engine's controllers by those that have them standing by.
struct TakeOver {
  uint64_t deadline_ns = 0;    // from then on they are attached the ordinary way
  uint64_t not_before_ns = 0;  // the store is not tried again
  std::set<std::string> waiting;
  std::vector<Placement> all;
  v1::UpgradeStatus status;
};

}  // namespace cleat::control
