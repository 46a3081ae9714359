// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/cluster_watch.h"

#include <algorithm>
#include <utility>

namespace cleat::modules {
namespace {

// The earlier one of two times of which 0 is none.
uint64_t Earlier(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0) return std::max(a, b);
  return std::min(a, b);
}

void Begin(uint64_t& since_s, bool is_so, ClusterWatch::Now now) {
  if (!is_so) since_s = 0;
  if (is_so && since_s == 0) since_s = now.unix_s;
}

}  // namespace

void ClusterWatch::Look(const std::vector<RadosClientStatus>& clients, Now now) {
  for (auto& [cluster, known] : known_) {
    known.used = known.connected = false;
    known.connecting_since_ns = 0;
    known.pools.clear();
  }
  for (const RadosClientStatus& client : clients) {
    Known& known = known_[client.cluster];
    known.used = true;
    known.tried_ns = now.ns;
    known.pools.insert(client.pools.begin(), client.pools.end());
    if (client.failed || client.blocklisted) continue;
    if (!client.id.empty()) {
      known.connected = true;
    } else if (client.busy_ns != 0) {
      known.connecting_since_ns =
          Earlier(known.connecting_since_ns, now.ns - std::min(now.ns, client.busy_ns));
    }
  }
  std::erase_if(known_, [now](const auto& one) {
    const Known& known = one.second;
    if (known.used || known.asked_ns != 0) return false;
    return known.failed_since_ns == 0 || now.ns >= known.tried_ns + kForgetNs;
  });
}

void ClusterWatch::Hear(Known& known, Now now) {
  known.heard = true;
  known.failed_since_ns = 0;
  known.tried_ns = now.ns;
}

void ClusterWatch::Fail(Known& known, uint64_t began_ns, Now now) {
  known.failed_since_ns = Earlier(known.failed_since_ns, began_ns);
  known.tried_ns = now.ns;
}

void ClusterWatch::Opened(const std::string& cluster, const Status& status, uint64_t began_ns, Now now) {
  if (!status && status.error().code == ErrorCode::kInvalidArgument) return;  // nobody was asked
  Known& known = known_[cluster];
  if (status || status.error().code != ErrorCode::kUnavailable) return Hear(known, now);
  Fail(known, began_ns, now);
}

std::vector<std::string> ClusterWatch::Due(Now now) const {
  std::vector<std::string> due;
  for (const auto& [cluster, known] : known_) {
    if (known.connected && known.asked_ns == 0 && now.ns >= known.ask_next_ns) due.push_back(cluster);
  }
  return due;
}

void ClusterWatch::Asked(const std::string& cluster, Now now) {
  Known& known = known_[cluster];
  known.asked_ns = now.ns;
  known.ask_next_ns = now.ns + kAskEveryNs;
}

void ClusterWatch::Answered(const std::string& cluster, const Result<ClusterHealth>& answer, Now now) {
  Known& known = known_[cluster];
  const uint64_t asked_ns = std::exchange(known.asked_ns, 0);
  if (!answer && answer.error().code == ErrorCode::kUnavailable) return Fail(known, asked_ns, now);
  Hear(known, now);
  // A client that may not ask for the health has it unknown.
  const ClusterHealth health = answer ? *answer : ClusterHealth();
  known.condition.full = DescribeFull(health, known.pools);
  Begin(known.condition.full_since_s, !known.condition.full.empty(), now);
  Begin(known.condition.paused_since_s, health.paused, now);
}

uint64_t ClusterWatch::SilentSinceNs(const Known& known, Now now) {
  const auto late = [now](uint64_t since_ns) { return now.ns >= since_ns + kSilentNs ? since_ns : 0; };
  uint64_t since_ns = known.failed_since_ns;
  if (known.asked_ns != 0) since_ns = Earlier(since_ns, late(known.asked_ns));
  // A client that connects beside others that are connected may be late for its own reasons.
  const bool connecting = known.connecting_since_ns != 0 && !known.connected;
  return connecting ? Earlier(since_ns, late(known.connecting_since_ns)) : since_ns;
}

std::vector<ClusterCondition> ClusterWatch::Report(Now now) {
  std::vector<ClusterCondition> conditions;
  for (auto& [cluster, known] : known_) {
    const uint64_t since_ns = SilentSinceNs(known, now);
    uint64_t& since_s = known.condition.silent_since_s;
    Begin(since_s, since_ns != 0, {.ns = now.ns, .unix_s = now.unix_s - (now.ns - since_ns) / kNsPerSecond});
    if (!known.heard && !known.connected && since_ns == 0) continue;
    known.condition.cluster = cluster;
    conditions.push_back(known.condition);
  }
  return conditions;
}

}  // namespace cleat::modules
