// SPDX-License-Identifier: Apache-2.0
#include "control/state/publish/engine_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

constexpr size_t kExcludedShownMax = 3;

}  // namespace

bool EngineRoles::StandsBy(const std::string& engine) const {
  const EngineEntry* const found = tables_.engines.Find(engine);
  if (found == nullptr) return false;
  const v1::EngineStatus& status = found->status;
  return status.connected() && status.protocol() >= kProtocolMoves && !status.stands_by_for().empty();
}

bool EngineRoles::OnlyStandsBy(const std::string& engine) const {
  return StandsBy(engine) && tables_.engines.At(engine).status.controllers() == 0;
}

std::string EngineRoles::StandbyOf(const std::string& principal) const {
  const std::string name = EngineName(principal);
  std::string silent;
  for (const auto& [id, entry] : tables_.engines) {
    if (entry.status.stands_by_for() != name || !StandsBy(id)) continue;
    if (!IsNotAnswering(entry)) return id;
    if (silent.empty()) silent = id;
  }
  return silent;  // what it has prepared stays so
}

std::set<std::string> EngineRoles::PreparedOn(const ControllerEntry& entry) const {
  std::set<std::string> engines;
  if (entry.row.engine.empty()) return engines;
  if (std::string standby = StandbyOf(entry.row.engine); !standby.empty()) {
    if (ExcludedOn(standby, entry).empty()) engines.insert(std::move(standby));
  }
  if (!entry.moving_to.empty()) engines.insert(entry.moving_to);
  engines.erase(entry.row.engine);
  return engines;
}

bool EngineRoles::IsFor(const ControllerEntry& entry, const std::string& engine) const {
  return entry.row.engine == engine || PreparedOn(entry).contains(engine);
}

std::vector<std::string> EngineRoles::ExcludedOn(const std::string& engine,
                                                 const ControllerEntry& entry) const {
  std::vector<std::string> excluded;
  const EngineEntry* const found = tables_.engines.Find(engine);
  if (found == nullptr || !found->paths) return excluded;
  const auto ours = paths_->lists();
  const PathLists& theirs = *found->paths;
  if (*ours == theirs) return excluded;
  const auto look = [&](PathKind kind, const std::string& path, const char* what, const std::string& name) {
    if (!path.empty() && ExcludesPath(*ours, theirs, kind, path))
      excluded.push_back(fmt::format("{} '{}' of {}", what, path, name));
  };
  look(PathKind::kSocket, entry.row.spec.socket_path(), "socket", ControllerName(entry.row.id));
  for (const auto& [id, attachment] : entry.attachments) {
    const std::string& name = attachment.row.spec.disk();
    const v1::DiskSpec& disk = tables_.disks.At(*ParseDiskName(name)).row.spec;
    look(PathKind::kFile, FileOf(disk), "file", name);
    const std::string& cluster = ClusterOf(disk);
    if (cluster.empty()) continue;
    look(PathKind::kKey, tables_.clusters.At(*ParseClusterName(cluster)).row.spec.conf_file(), "conf file",
         cluster);
  }
  return excluded;
}

std::string EngineRoles::PathNote(const EngineEntry& entry) const {
  if (!entry.paths) return {};
  std::string note = PathDifference(*paths_->lists(), *entry.paths);
  if (note.empty() || !StandsBy(entry.id)) return note;
  std::vector<std::string> excluded;
  for (const auto& [controller, one] : tables_.controllers) {
    if (EngineName(one.row.engine) != entry.status.stands_by_for()) continue;
    for (std::string& path : ExcludedOn(entry.id, one)) excluded.push_back(std::move(path));
  }
  if (!excluded.empty()) note += "; it does not stand by for what uses " + Shown(excluded);
  return note;
}

std::string EngineRoles::Shown(const std::vector<std::string>& excluded) {
  const std::vector<std::string> some(
      excluded.begin(),
      excluded.begin() + static_cast<std::ptrdiff_t>(std::min(excluded.size(), kExcludedShownMax)));
  return fmt::format("{}{}", fmt::join(some, ", "),
                     excluded.size() > some.size() ? fmt::format(" ({} in all)", excluded.size()) : "");
}

}  // namespace cleat::control
