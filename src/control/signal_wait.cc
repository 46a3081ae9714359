// SPDX-License-Identifier: Apache-2.0
#include "control/signal_wait.h"

#include <ctime>

namespace cleat::control {

int SignalWait::Next(const GoesOn& goes_on) {
  for (;;) {
    const uint64_t now_ns = clock_.NowNs();
    if (interval_ns_ != 0 && now_ns >= due_ns_) {
      due_ns_ = now_ns + interval_ns_;
      // Lost at worst, which the manager acts on.
      if (goes_on()) static_cast<void>(manager_.Alive());
    }
    const uint64_t wait_ns = due_ns_ - now_ns;
    const timespec wait{static_cast<time_t>(wait_ns / kNsPerSecond),
                        static_cast<long>(wait_ns % kNsPerSecond)};
    const int signal =
        interval_ns_ == 0 ? sigwaitinfo(&signals_, nullptr) : sigtimedwait(&signals_, nullptr, &wait);
    if (signal > 0) return signal;
  }
}

}  // namespace cleat::control
