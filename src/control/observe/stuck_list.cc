// SPDX-License-Identifier: Apache-2.0
#include "control/observe/stuck_list.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "control/model/names.h"
#include "stats/disk_stats.h"

namespace cleat::control {
namespace {

using Place = std::tuple<std::string, std::string, std::string>;  // engine, controller, disk: names

struct InFlight {
  uint64_t requests = 0;
  uint64_t age_ns = 0;  // of the oldest
};

std::map<Place, InFlight> InFlightOf(const Counters& counters) {
  std::map<Place, InFlight> found;
  for (const CountersOf& engine : counters.Open()) {
    if (!engine.connected || !engine.reader) continue;
    for (const stats::DiskSeen& disk :
         stats::DisksOf(*engine.reader, counters.NowNs(), observe::SegmentReader::Which::kInFlight)) {
      found[{EngineName(engine.engine), disk.controller, disk.disk}] = {disk.in_flight, disk.age_ns};
    }
  }
  return found;
}

// A status says only of writes in doubt how many requests wait for them.
bool IsCounted(const v1::StuckAttachment& stuck) {
  return stuck.reason() == v1::STUCK_REASON_WRITES_IN_DOUBT;
}

void Count(const Counters& counters, std::vector<v1::StuckAttachment>& all) {
  if (std::ranges::all_of(all, IsCounted)) return;
  const std::map<Place, InFlight> in_flight = InFlightOf(counters);
  const auto now_s = static_cast<int64_t>(SecondsSince1970());
  for (v1::StuckAttachment& stuck : all) {
    if (IsCounted(stuck)) continue;
    const auto found = in_flight.find({stuck.engine(), stuck.controller(), stuck.disk()});
    if (found == in_flight.end() || found->second.requests == 0) continue;
    stuck.set_waiting(found->second.requests);
    stuck.mutable_since()->set_seconds(now_s - static_cast<int64_t>(found->second.age_ns / kNsPerSecond));
  }
}

// Of what is not known to have waited for any time: behind all others.
int64_t SinceSeconds(const v1::StuckAttachment& stuck) {
  return stuck.has_since() ? stuck.since().seconds() : std::numeric_limits<int64_t>::max();
}

}  // namespace

void AddStuck(std::vector<v1::StuckAttachment> stuck, const std::string& name, const Counters& counters,
              v1::ListSlowRequestsResponse& response) {
  std::erase_if(stuck, [&name](const v1::StuckAttachment& one) {
    return !name.empty() && name != one.disk() && name != one.controller() && name != one.engine();
  });
  Count(counters, stuck);
  std::ranges::stable_sort(stuck, {}, SinceSeconds);
  const size_t listed = std::min(stuck.size(), kStuckListMax);
  for (size_t i = 0; i < listed; ++i) *response.add_stuck() = std::move(stuck[i]);
  response.set_stuck_left_out(stuck.size() - listed);
}

}  // namespace cleat::control
