// SPDX-License-Identifier: Apache-2.0
#include "engine/process/watchdog.h"

#include <spdlog/spdlog.h>

#include "base/clock.h"

namespace cleat::engine {

void Watchdog::Start() {
  if (interval_ns_ > 0) Spawn(Run());
}

Task<void> Watchdog::Stop() {
  cancel_.Cancel();
  co_await rounds_.Close();
}

Task<void> Watchdog::Run() {
  const Gate::Holder inside(rounds_);
  while (!cancel_.cancelled()) {
    control_.AddTimer(late_, control_.now_ns() + interval_ns_);
    for (Reactor* reactor : reactors_) {
      asked_ = reactor;
      co_await reactor->Enter();
      co_await control_.Enter();
    }
    late_.Cancel();
    alive_();
    co_await control_.SleepFor(interval_ns_, &cancel_);
  }
}

void Watchdog::Late::Fire(Timer& timer) {
  const Watchdog& watchdog = static_cast<Late&>(timer).watchdog;
  spdlog::error(
      "{}: no answer for {} s: its guests' disks stand still; the service manager restarts this engine "
      "unless it answers",
      watchdog.asked_->name(), watchdog.interval_ns_ / kNsPerSecond);
}

}  // namespace cleat::engine
