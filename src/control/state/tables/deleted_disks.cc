// SPDX-License-Identifier: Apache-2.0
#include "control/state/tables/deleted_disks.h"

#include <algorithm>

namespace cleat::control {

void DeletedDisks::Put(DeletedDiskRow row) {
  const std::pair key(row.disk.id, row.disk.revision);
  rows_.insert_or_assign(key, std::move(row));
}

const DeletedDiskRow* DeletedDisks::Find(const std::string& id, uint64_t revision) const {
  const auto it = rows_.find({id, revision});
  return it == rows_.end() ? nullptr : &it->second;
}

// The revision of the deletion gives the order, not its time: clocks may be set back.
std::vector<const DeletedDiskRow*> DeletedDisks::Of(const std::string& id) const {
  std::vector<const DeletedDiskRow*> found;
  for (auto it = rows_.lower_bound({id, 0}); it != rows_.end() && it->first.first == id; ++it)
    found.push_back(&it->second);
  std::sort(found.begin(), found.end(),
            [](const auto* a, const auto* b) { return a->disk.intent_revision < b->disk.intent_revision; });
  return found;
}

std::vector<const DeletedDiskRow*> DeletedDisks::Expired(uint64_t now_s) const {
  std::vector<const DeletedDiskRow*> found;
  for (const auto& [key, row] : rows_) {
    if (row.purge_time_s <= now_s) found.push_back(&row);
  }
  return found;
}

}  // namespace cleat::control
