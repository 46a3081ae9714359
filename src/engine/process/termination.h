// SPDX-License-Identifier: Apache-2.0
// How an engine ends when it is told to (SIGTERM, SIGINT): it drains - fetches nothing more, waits for what is in flight,
// gives its disks up - and then exits with 0. Storage that does not answer can't hold that up for ever: after the limit,
// or at a second signal, the process leaves at once, with 1. That is safe at any time for front ends that keep an in-flight
// log: what is in flight stands there and is run again by a successor, which gets the disks' locks when the kernel has
// ended the last I/O.
//
// On the control reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/reactor.h"

namespace cleat::engine {

class Termination {
 public:
  static constexpr uint32_t kDrainSecondsDefault = 30;  // a third of what systemd waits before it kills

  // `drain` starts draining; whoever has drained stops the reactor. `left` says what is still waited for, for the log.
  Termination(Reactor& control, uint32_t drain_s, std::function<void()> drain,
              std::function<std::string()> left)
      : control_(control), drain_s_(drain_s), drain_(std::move(drain)), left_(std::move(left)) {}

  // Before any thread is started: the signals come here only.
  static void BlockSignals();
  Status Start();

 private:
  struct Watch : FdWatch {
    explicit Watch(Termination& t) : FdWatch(&OnEvent), termination(t) {}
    static void OnEvent(FdWatch& watch, uint32_t /*events*/) {
      static_cast<Watch&>(watch).termination.OnSignal();
    }
    Termination& termination;
  };
  struct Limit : Timer {
    explicit Limit(Termination& t) : Timer(&Fire), termination(t) {}
    static void Fire(Timer& timer);
    Termination& termination;
  };

  void OnSignal();
  [[noreturn]] void Leave(const std::string& why);

  Reactor& control_;
  const uint32_t drain_s_;
  const std::function<void()> drain_;
  const std::function<std::string()> left_;
  UniqueFd fd_;
  Watch watch_{*this};
  Limit limit_{*this};
  bool terminating_ = false;
};

}  // namespace cleat::engine
