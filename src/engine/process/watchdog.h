// SPDX-License-Identifier: Apache-2.0
// Proves to the service manager that this engine works, for as long as it does: asks each I/O reactor in turn for a sign of
// life, and passes it on when all have given one. A reactor that hangs - guests' disks stand still, and nobody else
// notices - leaves the manager without a word, which ends the process and starts a new one; what was in flight is run again.
//
// On the control reactor, which is thereby tried as well.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::engine {

class Watchdog {
 public:
  // Rounds within the manager's limit: one may be late without harm.
  static constexpr uint64_t kRoundsPerLimit = 3;

  // `alive` is called for each round that came to its end. The reactors outlive Stop().
  Watchdog(Reactor& control, std::vector<Reactor*> reactors, uint64_t limit_ns, std::function<void()> alive)
      : control_(control),
        reactors_(std::move(reactors)),
        interval_ns_(limit_ns / kRoundsPerLimit),
        alive_(std::move(alive)) {}

  // Nothing when the limit is 0.
  void Start();
  // Returns when the last round has ended: never while a reactor hangs.
  Task<void> Stop();

 private:
  struct Late : Timer {
    explicit Late(Watchdog& w) : Timer(&Fire), watchdog(w) {}
    static void Fire(Timer& timer);
    Watchdog& watchdog;
  };
  Task<void> Run();

  Reactor& control_;
  const std::vector<Reactor*> reactors_;
  const uint64_t interval_ns_;
  const std::function<void()> alive_;
  CancelToken cancel_;
  Gate rounds_{control_};
  Late late_{*this};
  Reactor* asked_ = nullptr;
};

}  // namespace cleat::engine
