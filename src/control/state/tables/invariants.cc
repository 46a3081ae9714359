// SPDX-License-Identifier: Apache-2.0
#include "control/state/tables/invariants.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

Error Broken(const std::string& name, const std::string& what) {
  return {ErrorCode::kInternal, fmt::format("{}: {}", name, what)};
}

Status CheckClusters(const Tables& tables) {
  size_t listed = 0;
  size_t members = 0;
  for (const auto& [id, cluster] : tables.clusters) listed += cluster.disks.size();
  for (const auto& [id, disk] : tables.disks) {
    const std::string& name = ClusterOf(disk.row.spec);
    if (name.empty()) continue;
    ++members;
    const ClusterEntry* const cluster = tables.clusters.Find(*ParseClusterName(name));
    if (cluster == nullptr || !cluster->disks.contains(id))
      return Broken(DiskName(id), name + " does not list it");
  }
  if (listed != members) return Broken("clusters", fmt::format("list {} disks, not {}", listed, members));
  return Ok{};
}

Status CheckSubsystems(const Tables& tables) {
  std::set<std::string> nqns;
  size_t listed = 0;
  size_t members = 0;
  for (const auto& [id, subsystem] : tables.subsystems) {
    listed += subsystem.disks.size();
    if (!nqns.insert(subsystem.row.spec.nqn()).second)
      return Broken(SubsystemName(id), "has the NQN of another subsystem");
  }
  for (const auto& [id, disk] : tables.disks) {
    const std::string& name = SubsystemOf(disk.row.spec);
    if (name.empty()) continue;
    ++members;
    const SubsystemEntry* const subsystem = tables.subsystems.Find(*ParseSubsystemName(name));
    if (subsystem == nullptr || !subsystem->disks.contains(id))
      return Broken(DiskName(id), name + " does not list it");
  }
  if (listed != members) return Broken("subsystems", fmt::format("list {} disks, not {}", listed, members));
  return Ok{};
}

// No extent has two owners, and none is a disk's and free.
class PoolExtentsSeen {
 public:
  explicit PoolExtentsSeen(const PoolEntry& entry)
      : name_(PoolName(entry.row.id)), extents_(entry.row.extents) {}

  Status Add(const std::string& whose, const pool::ExtentRuns& runs) {
    for (const pool::ExtentRun& run : runs) {
      if (run.count == 0 || run.end() > extents_) return Broken(name_, whose + " has extents beyond its end");
      if (!seen_.IsFree(run)) return Broken(name_, whose + " has extents that are another's, too");
      seen_.Add(run);
    }
    return Ok{};
  }

 private:
  const std::string name_;
  const uint32_t extents_;
  pool::ExtentSet seen_;
};

Status CheckDiskOfPool(const Tables& tables, const DiskRow& row, const std::string& whose,
                       std::map<std::string, PoolExtentsSeen>& seen) {
  const std::string& name = PoolOf(row.spec);
  if (name.empty()) return Ok{};
  const PoolEntry* const pool = tables.pools.Find(*ParsePoolName(name));
  if (pool == nullptr) return Broken(whose, name + " is not there");
  return seen.at(pool->row.id).Add(whose, ExtentsOf(row.spec));
}

Status CheckPools(const Tables& tables) {
  std::map<std::string, PoolExtentsSeen> seen;
  std::map<std::string, uint64_t> members;
  for (const auto& [id, pool] : tables.pools) {
    PoolExtentsSeen& extents = seen.try_emplace(id, pool).first->second;
    CLEAT_TRY(extents.Add("what is to be erased", pool.row.to_erase));
    CLEAT_TRY(extents.Add("what is free", pool.free.Runs()));
    for (const pool::MapDisk& disk : pool.row.unknown)
      CLEAT_TRY(extents.Add("an unknown disk", disk.extents));
  }
  for (const auto& [id, disk] : tables.disks) {
    CLEAT_TRY(CheckDiskOfPool(tables, disk.row, DiskName(id), seen));
    if (const std::string& name = PoolOf(disk.row.spec); !name.empty()) {
      const PoolEntry& pool = tables.pools.At(*ParsePoolName(name));
      if (!pool.disks.contains(id)) return Broken(DiskName(id), name + " does not list it");
      ++members[pool.row.id];
    }
  }
  for (const auto& [key, row] : tables.deleted.rows())
    CLEAT_TRY(CheckDiskOfPool(tables, row.disk, "deleted " + DiskName(row.disk.id), seen));
  for (const auto& [id, pool] : tables.pools) {
    if (pool.disks.size() != members[id])
      return Broken(PoolName(id), fmt::format("lists {} disks, not {}", pool.disks.size(), members[id]));
  }
  return Ok{};
}

Status CheckGroups(const Tables& tables) {
  std::set<uint32_t> slots;
  size_t listed = 0;
  size_t members = 0;
  for (const auto& [id, group] : tables.groups) {
    listed += group.controllers.size();
    if (!slots.insert(group.row.slot).second) return Broken(GroupName(id), "has the slot of another group");
  }
  for (const auto& [id, controller] : tables.controllers) {
    const std::string& name = controller.row.spec.group();
    if (name.empty()) continue;
    ++members;
    const GroupEntry* const group = tables.groups.Find(*ParseGroupName(name));
    if (group == nullptr || !group->controllers.contains(id))
      return Broken(ControllerName(id), name + " does not list it");
  }
  if (listed != members) return Broken("groups", fmt::format("list {} controllers, not {}", listed, members));
  return Ok{};
}

Status CheckAttachments(const Tables& tables) {
  size_t attachments = 0;
  size_t uses = 0;
  for (const auto& [id, disk] : tables.disks) uses += disk.attachments.size();
  for (const auto& [controller_id, controller] : tables.controllers) {
    std::set<uint32_t> targets;
    for (const auto& [id, attachment] : controller.attachments) {
      ++attachments;
      const std::string name = AttachmentName(controller_id, id);
      if (attachment.row.controller != controller_id || attachment.row.id != id)
        return Broken(name, "its row is another one's");
      if (!targets.insert(attachment.row.spec.target()).second)
        return Broken(name, "has the target of another attachment");
      const DiskEntry* const disk = tables.disks.Find(*ParseDiskName(attachment.row.spec.disk()));
      if (disk == nullptr) return Broken(name, "its disk is not there");
      const auto use = disk->attachments.find(name);
      if (use == disk->attachments.end()) return Broken(name, "its disk does not know of it");
      if (use->second.detaching != attachment.row.deleting)
        return Broken(name, "its disk does not know whether it is being detached");
    }
  }
  if (attachments != uses)
    return Broken("disks", fmt::format("know of {} attachments, not {}", uses, attachments));
  return Ok{};
}

Status CheckEngines(const Tables& tables) {
  std::map<std::string, uint32_t> controllers;
  for (const auto& [id, controller] : tables.controllers) {
    if (!controller.row.engine.empty()) ++controllers[controller.row.engine];
  }
  for (const auto& [id, engine] : tables.engines) {
    if (engine.id != id) return Broken(EngineName(id), "is called " + engine.id);
    if (engine.status.controllers() == controllers[id]) continue;
    return Broken(EngineName(id),
                  fmt::format("counts {} controllers, not {}", engine.status.controllers(), controllers[id]));
  }
  for (const auto& [id, count] : controllers) {
    if (!tables.engines.Has(id)) return Broken(EngineName(id), "has controllers and is not known");
  }
  if (tables.upgrade && !tables.engines.Has(tables.upgrade->from))
    return Broken(EngineName(tables.upgrade->from), "is being upgraded and is not known");
  return Ok{};
}

}  // namespace

Status CheckTables(const Tables& tables) {
  CLEAT_TRY(CheckClusters(tables));
  CLEAT_TRY(CheckSubsystems(tables));
  CLEAT_TRY(CheckPools(tables));
  CLEAT_TRY(CheckGroups(tables));
  CLEAT_TRY(CheckAttachments(tables));
  return CheckEngines(tables);
}

}  // namespace cleat::control
