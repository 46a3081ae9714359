// SPDX-License-Identifier: Apache-2.0
// The engine's side of heartbeats (Heartbeat in engine.proto): how far its reactors are, and whether cleatd goes on asking. On the control
// reactor, which answers for itself by answering.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "engine/protocol/spec.h"
#include "reactor/reactor.h"

namespace cleat::engine {

class Heartbeats {
 public:
  // cleatd asks several times a second. One look a second, and each counts as one whatever came between them: time in which this process
  // was stopped is not cleatd's.
  static constexpr uint64_t kLookNs = kNsPerSecond;
  static constexpr uint32_t kSilentLooksMax = 3;

  // The reactors outlive it; only I/O reactors are given.
  Heartbeats(Reactor& control, std::vector<const Reactor*> reactors)
      : control_(control), reactors_(std::move(reactors)) {}

  // A cleatd that asks is connected.
  void Begin();
  // The connection has ended.
  void End();
  // cleatd has asked.
  void OnHeartbeat();
  std::vector<ReactorProgress> Progress() const;
  bool cleatd_is_silent() const { return silent_looks_ >= kSilentLooksMax; }

 private:
  struct Look : Timer {
    explicit Look(Heartbeats& h) : Timer(&Fire), heartbeats(h) {}
    static void Fire(Timer& timer) { static_cast<Look&>(timer).heartbeats.OnLook(); }
    Heartbeats& heartbeats;
  };
  void OnLook();

  Reactor& control_;
  const std::vector<const Reactor*> reactors_;
  Look look_{*this};
  uint32_t silent_looks_ = 0;
};

}  // namespace cleat::engine
