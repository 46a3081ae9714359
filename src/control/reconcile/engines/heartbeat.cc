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
  answered_ns_ = own_ns;
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

uint64_t Heartbeat::ControlSilentNs(uint64_t own_ns) const {
  return waits_ ? own_ns - heard_ns_ : 0;
}

uint64_t Heartbeat::StillNs(const ReactorSeen& reactor) const {
  return reactor.still ? answered_ns_ - reactor.since_ns : 0;
}

uint64_t Heartbeat::SilentNs(uint64_t own_ns) const {
  uint64_t silent_ns = ControlSilentNs(own_ns);
  for (const auto& [name, reactor] : reactors_) silent_ns = std::max(silent_ns, StillNs(reactor));
  return silent_ns;
}

bool Heartbeat::HasStillReactor(const HeartbeatTimes& times) const {
  return std::ranges::any_of(reactors_,
                             [&](const auto& reactor) { return StillNs(reactor.second) >= times.limit_ns; });
}

std::string Heartbeat::Problem(uint64_t own_ns, const HeartbeatTimes& times) const {
  if (ControlSilentNs(own_ns) >= times.limit_ns)
    return fmt::format("no answer for {:.2g} s", ToSeconds(times.limit_ns));
  for (const auto& [name, reactor] : reactors_) {
    if (StillNs(reactor) >= times.limit_ns)
      return fmt::format("its {} has stood still for {:.2g} s", name, ToSeconds(times.limit_ns));
  }
  return {};
}

}  // namespace cleat::control
