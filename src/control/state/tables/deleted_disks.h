// SPDX-License-Identifier: Apache-2.0
// The deleted disks that are kept, as the store has them: many may have had the same id. HostState's, under its mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "control/model/model.h"

namespace cleat::control {

// How long deleted disks are kept, and by which clock. What is kept already keeps its own time when that changes.
struct KeepDeleted {
  uint64_t time_s = 0;  // 0: not at all
  std::function<uint64_t()> now_s = SecondsSince1970;
};

class DeletedDisks {
 public:
  // By id, and by revision among those of an id.
  using Rows = std::map<std::pair<std::string, uint64_t>, DeletedDiskRow>;

  const Rows& rows() const { return rows_; }
  size_t size() const { return rows_.size(); }
  // Replaces the row of the same id and revision.
  void Put(DeletedDiskRow row);
  void Erase(const std::string& id, uint64_t revision) { rows_.erase({id, revision}); }
  // Null when that disk is not kept.
  const DeletedDiskRow* Find(const std::string& id, uint64_t revision) const;
  // All disks that had that id, the one that was deleted last at the end.
  std::vector<const DeletedDiskRow*> Of(const std::string& id) const;
  // The disks whose purge_time has come at `now_s`.
  std::vector<const DeletedDiskRow*> Expired(uint64_t now_s) const;

 private:
  Rows rows_;
};

}  // namespace cleat::control
