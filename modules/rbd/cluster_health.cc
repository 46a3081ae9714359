// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/cluster_health.h"

#include <algorithm>
#include <optional>

namespace cleat::modules {
namespace {

constexpr size_t kFullPoolsNamed = 2;

// "[WRN] POOL_FULL: 1 pool(s) full", with "(MUTED) " before it when somebody has muted that check.
bool IsCheck(std::string_view line, std::string_view check) {
  const size_t at = line.find(check);
  return at != std::string_view::npos && (at == 0 || line[at - 1] == ' ');
}

// "pool 'vms' is full (no space)". A pool's name may have anything in it but ends before the last quote.
std::optional<FullPool> ParseFullPool(std::string_view line) {
  constexpr std::string_view kBefore = "pool '";
  constexpr std::string_view kAfter = "' is full (";
  const size_t begin = line.find(kBefore);
  const size_t end = line.rfind(kAfter);
  const size_t last = line.rfind(')');
  if (begin == std::string_view::npos || end == std::string_view::npos || last == std::string_view::npos)
    return std::nullopt;
  const size_t name = begin + kBefore.size();
  const size_t why = end + kAfter.size();
  if (end < name || last < why) return std::nullopt;
  return FullPool{.pool = std::string(line.substr(name, end - name)),
                  .why = std::string(line.substr(why, last - why))};
}

}  // namespace

ClusterHealth ParseHealth(std::string_view text) {
  ClusterHealth health;
  bool pools_follow = false;
  text = text.substr(0, kHealthBytesMax);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (!line.starts_with(' ')) {
      pools_follow = IsCheck(line, "POOL_FULL:");
      const bool flags = IsCheck(line, "OSDMAP_FLAGS:");
      const bool pause = line.find("pauserd") != line.npos || line.find("pausewr") != line.npos;
      health.paused = health.paused || (flags && pause);
    } else if (pools_follow) {
      if (auto pool = ParseFullPool(line)) health.full.push_back(*std::move(pool));
    }
  }
  return health;
}

std::string DescribeFull(const ClusterHealth& health, const std::set<std::string>& pools) {
  std::string text;
  size_t count = 0;
  for (const FullPool& full : health.full) {
    if (!pools.contains(full.pool)) continue;
    if (++count > kFullPoolsNamed) continue;
    text += (text.empty() ? "pool '" : ", pool '") + full.pool + "' (" + full.why + ")";
  }
  if (count > kFullPoolsNamed) text += " and " + std::to_string(count - kFullPoolsNamed) + " more";
  for (char& letter : text) {
    if (letter < ' ' || letter > '~') letter = '?';  // a name may be no text at all
  }
  return text;
}

}  // namespace cleat::modules
