// SPDX-License-Identifier: Apache-2.0
// Paths that the host's operator lists: what is served though its path is listed no more, and engines whose lists are not cleatd's.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/refusals.h"

namespace cleat::control {
namespace {

constexpr size_t kExcludedShownMax = 3;

// The first of them, and how many there are.
std::string Shown(const std::vector<std::string>& excluded) {
  const std::vector<std::string> some(
      excluded.begin(),
      excluded.begin() + static_cast<std::ptrdiff_t>(std::min(excluded.size(), kExcludedShownMax)));
  return fmt::format("{}{}", fmt::join(some, ", "),
                     excluded.size() > some.size() ? fmt::format(" ({} in all)", excluded.size()) : "");
}

}  // namespace

// ---- Paths that are listed no more ----

std::optional<std::string> HostState::WhyUnlisted(const DiskRow& row) const {
  const std::string& file = FileOf(row.spec);
  if (file.empty()) return std::nullopt;
  return paths_->WhyUnlisted(PathKind::kFile, file);
}

std::optional<std::string> HostState::WhyUnlisted(const ControllerRow& row) const {
  return paths_->WhyUnlisted(PathKind::kSocket, row.spec.socket_path());
}

std::optional<std::string> HostState::WhyUnlisted(const ClusterRow& row) const {
  if (row.spec.conf_file().empty()) return std::nullopt;
  return paths_->WhyUnlisted(PathKind::kKey, row.spec.conf_file());
}

std::map<std::string, std::string> HostState::Unlisted() {
  std::map<std::string, std::string> unlisted;
  const auto add = [&](std::string name, const auto& row) {
    if (auto why = WhyUnlisted(row)) unlisted.emplace(std::move(name), std::move(*why));
  };
  const MutexLock lock(mutex_);
  for (const auto& [id, entry] : disks_) add(DiskName(id), entry.row);
  for (const auto& [id, entry] : controllers_) add(ControllerName(id), entry.row);
  for (const auto& [id, entry] : clusters_) add(ClusterName(id), entry.row);
  return unlisted;
}

// ---- Engines' lists ----

void HostState::PathsChanged() {
  const MutexLock lock(mutex_);
  changed_.paths = true;
  for (auto& [id, entry] : engines_) {
    if (entry.paths) Publish(id, entry);
  }
  wake_();
}

void HostState::ReportEnginePaths(const std::string& engine, const std::string& text) {
  std::optional<PathLists> paths;
  if (!text.empty()) {
    auto parsed = ParseEnginePaths(text);
    if (!parsed.ok())
      return spdlog::error(
          "{}: path lists of its hello can't be read: {}; restart the engine with a correct list",
          EngineName(engine), parsed.error().message);
    paths = std::move(*parsed);
  }
  const MutexLock lock(mutex_);
  EngineEntry& entry = engines_[engine];
  if (entry.paths == paths) return;
  entry.paths = std::move(paths);
  if (entry.revision != 0) Publish(engine, entry);  // one that is new is told of by ReportEngine
}

std::string HostState::PathDifferenceOf(const std::string& engine) {
  const MutexLock lock(mutex_);
  const auto found = engines_.find(engine);
  if (found == engines_.end() || !found->second.paths) return {};
  return PathDifference(*paths_->lists(), *found->second.paths);
}

std::vector<std::string> HostState::ExcludedOn(const std::string& engine,
                                               const ControllerEntry& entry) const {
  std::vector<std::string> excluded;
  const auto found = engines_.find(engine);
  if (found == engines_.end() || !found->second.paths) return excluded;
  const auto ours = paths_->lists();
  const PathLists& theirs = *found->second.paths;
  if (*ours == theirs) return excluded;
  const auto look = [&](PathKind kind, const std::string& path, const char* what, const std::string& name) {
    if (!path.empty() && ExcludesPath(*ours, theirs, kind, path))
      excluded.push_back(fmt::format("{} '{}' of {}", what, path, name));
  };
  look(PathKind::kSocket, entry.row.spec.socket_path(), "socket", ControllerName(entry.row.id));
  for (const auto& [id, attachment] : entry.attachments) {
    const std::string& name = attachment.row.spec.disk();
    const v1::DiskSpec& disk = disks_.at(*ParseDiskName(name)).row.spec;
    look(PathKind::kFile, FileOf(disk), "file", name);
    const std::string& cluster = ClusterOf(disk);
    if (cluster.empty()) continue;
    look(PathKind::kKey, clusters_.at(*ParseClusterName(cluster)).row.spec.conf_file(), "conf file", cluster);
  }
  return excluded;
}

std::string HostState::ExcludedFrom(const std::string& engine, const std::string& controller) {
  const MutexLock lock(mutex_);
  const ControllerEntry* entry = FindController(controller);
  if (entry == nullptr) return {};
  const std::vector<std::string> excluded = ExcludedOn(engine, *entry);
  return excluded.empty() ? std::string() : Shown(excluded);
}

Status HostState::CheckPathsOf(const std::string& from, const std::string& to) const {
  std::vector<std::string> excluded;
  for (const auto& [id, entry] : controllers_) {
    if (entry.row.engine != from || entry.row.deleting) continue;
    for (std::string& path : ExcludedOn(to, entry)) excluded.push_back(std::move(path));
  }
  if (excluded.empty()) return Ok{};
  return RefuseFor(
      EngineName(to), v1::REASON_PATH_NOT_ALLOWED,
      fmt::format("{} can't get the controllers of {}: it does not take for listed: {}. Correct "
                  "{} and reload cleatd, or start {} with cleatd's --paths and --state-dir",
                  EngineName(to), EngineName(from), Shown(excluded), PathLists::kDefaultPath, to));
}

std::string HostState::PathNote(const std::string& id, const EngineEntry& entry) const {
  if (!entry.paths) return {};
  std::string note = PathDifference(*paths_->lists(), *entry.paths);
  if (note.empty() || !StandsBy(id)) return note;
  std::vector<std::string> excluded;
  for (const auto& [controller, one] : controllers_) {
    if (EngineName(one.row.engine) != entry.status.stands_by_for()) continue;
    for (std::string& path : ExcludedOn(id, one)) excluded.push_back(std::move(path));
  }
  if (!excluded.empty()) note += "; it does not stand by for what uses " + Shown(excluded);
  return note;
}

}  // namespace cleat::control
