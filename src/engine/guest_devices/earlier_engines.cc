// SPDX-License-Identifier: Apache-2.0
#include "engine/guest_devices/earlier_engines.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "reactor/reactor.h"

namespace cleat::engine {

Task<void> EarlierEngines::Ended() {
  constexpr uint64_t kLookMinNs = kNsPerMs;
  constexpr uint64_t kLookMaxNs = 100 * kNsPerMs;
  const std::function<std::optional<std::string>()> look = [this] { return ours_.FindDeadWithIo(); };
  Reactor& reactor = *Reactor::Current();
  bool said = false;
  for (uint64_t wait_ns = kLookMinNs;; wait_ns = std::min(2 * wait_ns, kLookMaxNs)) {
    const std::optional<std::string> dead = co_await blocking_.Run(look);
    if (!dead) break;
    if (!std::exchange(said, true))
      spdlog::warn(
          "earlier engines: reads of one that is dead are still under way ({}): requests of its guests to "
          "disks that "
          "are gone are answered when those have ended",
          *dead);
    co_await reactor.SleepFor(wait_ns);
  }
  if (said) spdlog::info("earlier engines: their last reads have ended");
}

}  // namespace cleat::engine
