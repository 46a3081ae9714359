// SPDX-License-Identifier: Apache-2.0
#include "control/paths/engine_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace cleat::control {
namespace {

constexpr size_t kLinesShownMax = 5;

std::vector<std::string> LinesOf(const PathLists& lists) {
  std::vector<std::string> lines;
  const std::string text = lists.Text();
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Lines of the one that the other lacks: "'files /srv', ... and 3 more".
std::string MissingIn(const std::vector<std::string>& there, const std::vector<std::string>& lines) {
  std::vector<std::string> missing;
  for (const std::string& line : lines) {
    if (std::find(there.begin(), there.end(), line) == there.end())
      missing.push_back(fmt::format("'{}'", line));
  }
  const size_t more = missing.size() - std::min(missing.size(), kLinesShownMax);
  missing.resize(missing.size() - more);
  return fmt::format("{}{}", fmt::join(missing, ", "), more == 0 ? "" : fmt::format(" and {} more", more));
}

}  // namespace

Result<PathLists> ParseEnginePaths(const std::string& text) {
  return PathLists::Parse(text, "the engine's list of paths", PathLists());
}

std::string PathDifference(const PathLists& ours, const PathLists& engines) {
  if (ours == engines) return {};
  const std::vector<std::string> our_lines = LinesOf(ours);
  const std::vector<std::string> engines_lines = LinesOf(engines);
  const std::string lacks = MissingIn(engines_lines, our_lines);
  const std::string besides = MissingIn(our_lines, engines_lines);
  std::string difference = "its list of paths is not cleatd's:";
  if (!lacks.empty()) difference += " it lacks " + lacks;
  if (!besides.empty()) difference += (lacks.empty() ? " it has " : ", and has ") + besides;
  return difference +
         fmt::format(": correct {} and reload cleatd, or give both the same --paths and --state-dir",
                     PathLists::kDefaultPath);
}

bool ExcludesPath(const PathLists& ours, const PathLists& engines, PathKind kind, const std::string& path) {
  // A disk's path may name a device as well as a file.
  bool listed = false;
  for (const PathKind one : {kind, kind == PathKind::kFile ? PathKind::kDevice : kind}) {
    if (!ours.EntryOf(one, path)) continue;
    if (engines.EntryOf(one, path)) return false;
    listed = true;
  }
  return listed;
}

}  // namespace cleat::control
