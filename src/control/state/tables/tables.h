// SPDX-License-Identifier: Apache-2.0
// All resources of the host, and what belongs to none of them. Attachments lie in their controllers' entries. What one table says of
// another is in invariants.h. Under the state's mutex.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/model/intent.h"
#include "control/model/model.h"
#include "control/model/names.h"
#include "control/state/tables/deleted_disks.h"
#include "control/state/tables/entries.h"
#include "control/state/tables/resource_table.h"

namespace cleat::control {

struct Tables {
  ResourceTable<DiskEntry> disks;
  DeletedDisks deleted;
  ResourceTable<ClusterEntry> clusters;
  ResourceTable<SubsystemEntry> subsystems;
  ResourceTable<PoolEntry> pools;
  ResourceTable<GroupEntry> groups;
  ResourceTable<ControllerEntry> controllers;
  ResourceTable<EngineEntry> engines;
  std::optional<UpgradeIntent> upgrade = {};  // that is under way: one at a time
  std::vector<LostRevisions> lost = {};       // in order; as the store had them, they stay as they are
  uint64_t paths_checked_from = 0;            // Rows'

  AttachmentEntry* FindAttachment(const std::string& controller, const std::string& id) {
    ControllerEntry* const entry = controllers.Find(controller);
    if (entry == nullptr) return nullptr;
    const auto found = entry->attachments.find(id);
    return found == entry->attachments.end() ? nullptr : &found->second;
  }
  DiskEntry& DiskOf(const AttachmentRow& row) { return disks.At(*ParseDiskName(row.spec.disk())); }
  const DiskEntry& DiskOf(const AttachmentRow& row) const {
    return disks.At(*ParseDiskName(row.spec.disk()));
  }
  // The engine, which may be new: then with nothing known of it.
  EngineEntry& EngineOf(const std::string& id) {
    if (EngineEntry* const known = engines.Find(id)) return *known;
    return engines.Insert(id, EngineEntry{.id = id, .status = {}});
  }
};

}  // namespace cleat::control
