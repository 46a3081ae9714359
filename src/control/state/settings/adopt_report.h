// SPDX-License-Identifier: Apache-2.0
// What engines say of a group or a cluster.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace cleat::control {

// What this engine says, or (no report) that it does not know it any more. True: that is news.
template <typename Report>
bool AdoptReport(std::map<std::string, Report>& engines, const std::string& engine,
                 const std::optional<Report>& report) {
  const auto known = engines.find(engine);
  if (!report) {
    if (known == engines.end()) return false;
    engines.erase(known);
    return true;
  }
  if (known != engines.end() && known->second == *report) return false;
  engines[engine] = *report;
  return true;
}

}  // namespace cleat::control
