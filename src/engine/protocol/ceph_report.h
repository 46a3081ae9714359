// SPDX-License-Identifier: Apache-2.0
// What the engine says of its connections to Ceph, as plain values: the part of spec.h that is about clusters alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleat::engine {

// The connections to Ceph clusters. Without any: nothing at all.
struct CephClientReport {
  std::string cluster;
  std::string id;  // "client.4123"; empty: not connected
  uint32_t images = 0;
  uint64_t busy_ns = 0;  // 0 when below kCephBusyNsMin
  bool blocklisted = false;
  bool operator==(const CephClientReport&) const = default;
};
// What is wrong with a cluster. Since: UNIX time in seconds; 0: that is not wrong.
struct CephClusterReport {
  std::string name;
  uint64_t silent_since_s = 0;  // its monitors do not answer
  uint64_t full_since_s = 0;
  std::string full;  // which of its pools, for people
  uint64_t paused_since_s = 0;
  bool operator==(const CephClusterReport&) const = default;
};
struct CephReport {
  uint32_t threads = 0;
  uint32_t clients_total = 0;
  std::vector<CephClientReport> clients;    // up to kCephClientsMax, the longest busy ones first
  std::vector<CephClusterReport> clusters;  // that anything is known of; up to kClustersMax
  bool operator==(const CephReport&) const = default;
};

}  // namespace cleat::engine
