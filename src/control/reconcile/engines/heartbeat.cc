// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/engines/heartbeat.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/model/seconds.h"

namespace cleat::control {
bool Heartbeat::IsDue(uint64_t own_ns, const HeartbeatTimes& times) const {
  return !waits_ && own_ns - asked_ns_ >= times.interval_ns;
}

void Heartbeat::Asked(uint64_t own_ns) {
  waits_ = true;
  asked_ns_ = heard_ns_ = own_ns;
}

void Heartbeat::Heard(uint64_t own_ns, uint64_t received) {
  if (received == received_) return;
  received_ = received;
  heard_ns_ = own_ns;
}

void Heartbeat::Answered(uint64_t own_ns, const engine::v1::Reply& reply) {
  waits_ = false;
  std::map<std::string, ReactorSeen> before = std::exchange(reactors_, {});
  for (const auto& progress : reply.reactors()) {
    const auto found = before.find(progress.name());
    ReactorSeen now{.turns = progress.turns(), .since_ns = own_ns};
    if (found != before.end() && !progress.asleep() && progress.turns() == found->second.turns) {
      now.still = true;
      now.since_ns = found->second.since_ns;
    }
    reactors_.emplace(progress.name(), now);
  }
}

uint64_t Heartbeat::SilentNs(uint64_t own_ns) const {
  uint64_t silent_ns = waits_ ? own_ns - heard_ns_ : 0;
  for (const auto& [name, reactor] : reactors_) {
    if (reactor.still) silent_ns = std::max(silent_ns, own_ns - reactor.since_ns);
  }
  return silent_ns;
}

std::string Heartbeat::Problem(uint64_t own_ns, const HeartbeatTimes& times) const {
  if (waits_ && own_ns - heard_ns_ >= times.limit_ns)
    return fmt::format("no answer for {:.2g} s", ToSeconds(times.limit_ns));
  for (const auto& [name, reactor] : reactors_) {
    if (reactor.still && own_ns - reactor.since_ns >= times.limit_ns)
      return fmt::format("its {} has stood still for {:.2g} s", name, ToSeconds(times.limit_ns));
  }
  return {};
}

}  // namespace cleat::control
