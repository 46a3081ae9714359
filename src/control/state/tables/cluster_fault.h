// SPDX-License-Identifier: Apache-2.0
// What is wrong with a Ceph cluster, as its engines and its disks have it, in words for people. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "cleat/v1/cleat.pb.h"

namespace cleat::control {

// The worst first.
enum class ClusterFault : uint8_t {
  kSilent,      // its monitors do not answer
  kFull,        // pools are full: writes to them wait
  kPaused,      // its reads or writes are paused
  kUnanswered,  // the storage of attached disks does not answer
  kFailing,     // ... or fails requests
};

// Since it began, until it ends.
struct FaultEpisode {
  uint64_t since_s = 0;           // UNIX time
  std::string what;               // "its monitors do not answer engines/a"
  std::set<std::string> engines;  // ids: those that say so
  bool operator==(const FaultEpisode&) const = default;
};

using FaultEpisodes = std::map<ClusterFault, FaultEpisode>;

v1::ClusterState StateOf(ClusterFault fault);
// "clusters/a: its monitors do not answer engines/a since ...: see that they run ..."
std::string Describe(const std::string& cluster, ClusterFault fault, const FaultEpisode& episode);
// What holds up that engine's calls to the cluster, worst first; its end when there is nothing.
FaultEpisodes::const_iterator FindHoldingUp(const FaultEpisodes& faults, const std::string& engine);

}  // namespace cleat::control
