// SPDX-License-Identifier: Apache-2.0
#include "control/state/tables/cluster_fault.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace cleat::control {
namespace {

const char* NextStep(ClusterFault fault) {
  switch (fault) {
    case ClusterFault::kSilent:
      return "see that they run, have a quorum and can be reached from this host (ceph -s)";
    case ClusterFault::kFull:
      return "make room, or raise the pool's quota (ceph df, ceph health detail)";
    case ClusterFault::kPaused:
      return "'ceph osd unpause' lets them go on";
    case ClusterFault::kUnanswered:
      return "see to its OSDs (ceph -s)";
    case ClusterFault::kFailing:
      return "the attachments' messages say why";
  }
  return "";
}

}  // namespace

v1::ClusterState StateOf(ClusterFault fault) {
  switch (fault) {
    case ClusterFault::kFull:
      return v1::CLUSTER_STATE_FULL;
    case ClusterFault::kFailing:
      return v1::CLUSTER_STATE_FAILING;
    case ClusterFault::kSilent:
    case ClusterFault::kPaused:
    case ClusterFault::kUnanswered:
      break;
  }
  return v1::CLUSTER_STATE_NOT_ANSWERING;
}

std::string Describe(const std::string& cluster, ClusterFault fault, const FaultEpisode& episode) {
  return fmt::format("{}: {} since {:%Y-%m-%dT%H:%M:%SZ}: {}", cluster, episode.what,
                     fmt::gmtime(static_cast<std::time_t>(episode.since_s)), NextStep(fault));
}

FaultEpisodes::const_iterator FindHoldingUp(const FaultEpisodes& faults, const std::string& engine) {
  return std::find_if(faults.begin(), faults.end(), [&engine](const auto& fault) {
    return fault.first < ClusterFault::kUnanswered && fault.second.engines.contains(engine);
  });
}

}  // namespace cleat::control
