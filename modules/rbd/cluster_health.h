// SPDX-License-Identifier: Apache-2.0
// What a cluster's monitors say that holds up the I/O of its images. librados tells nothing of it: requests that a full pool does
// not take wait, as those of an OSD that is away do. Plain values; any thread.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace cleat::modules {

struct FullPool {
  std::string pool;
  std::string why;  // "no space", "running out of quota"
  bool operator==(const FullPool&) const = default;
};

struct ClusterHealth {
  std::vector<FullPool> full;
  bool paused = false;  // `ceph osd pause`: reads or writes wait until `ceph osd unpause`
  bool operator==(const ClusterHealth&) const = default;
};

// The monitors' command, and how its answer reads: one line for each check, and indented ones with its details.
inline constexpr char kHealthCommand[] = R"({"prefix": "health", "detail": "detail", "format": "plain"})";
inline constexpr size_t kHealthBytesMax = size_t{1} << 20;  // of an answer that are looked at
ClusterHealth ParseHealth(std::string_view text);

// The full ones of `pools`, for people: "pool 'vms' (no space), pool 'x' (running out of quota) and 3 more". Empty: none.
std::string DescribeFull(const ClusterHealth& health, const std::set<std::string>& pools);

}  // namespace cleat::modules
