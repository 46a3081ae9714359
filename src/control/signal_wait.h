// SPDX-License-Identifier: Apache-2.0
// cleatd's main thread, once it serves: waits for signals, and tells the service manager meanwhile that cleatd works, for as long as it
// does. The manager kills a service that it has not heard of for its limit (WatchdogSec=), so that a proof of life goes when it is due,
// whether or not signals come in between.
//
// One thread. All that it is given outlives it.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "base/notify.h"

namespace cleat::control {

class SignalWait {
 public:
  // Proofs of life within the manager's limit: one may be late without harm.
  static constexpr uint64_t kProofsPerLimit = 3;
  using GoesOn = std::function<bool()>;

  // `signals` are blocked in all threads.
  SignalWait(const sigset_t& signals, ServiceNotifier& manager, const Clock& clock)
      : signals_(signals),
        manager_(manager),
        clock_(clock),
        interval_ns_(manager.watchdog_ns() / kProofsPerLimit),
        due_ns_(clock.NowNs() + interval_ns_) {}

  // The next of the signals. `goes_on` is asked before each proof, which is left out when it says no.
  int Next(const GoesOn& goes_on);

 private:
  const sigset_t signals_;
  ServiceNotifier& manager_;
  const Clock& clock_;
  const uint64_t interval_ns_;  // 0: the manager wants no proofs
  uint64_t due_ns_;             // of the next proof
};

}  // namespace cleat::control
