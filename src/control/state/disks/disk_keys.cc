// SPDX-License-Identifier: Apache-2.0
#include "control/state/disks/disk_keys.h"

#include <set>
#include <string>
#include <utility>
#include <variant>

#include "base/log.h"
#include "control/model/names.h"
#include "control/state/disks/kept_disks.h"

namespace cleat::control {

Status DiskKeys::CheckSameKey(const std::string& disk_id, const v1::DiskSpec& spec) {
  v1::DiskSpec asked = spec;
  CLEAT_ASSIGN(const auto key, keys_.ExtractKey(disk_id, &asked));
  const StateLock lock(core_.mutex);
  const DiskEntry* entry = core_.tables.disks.Find(disk_id);
  return entry == nullptr ? Status(Ok{}) : keys_.CompareKey(entry->row, key);
}

WriteNames DiskKeys::NamesOfKeys() const {
  std::set<std::string> ids;
  for (const auto& [id, entry] : core_.tables.disks) {
    if (entry.row.spec.has_encryption()) ids.insert(id);
  }
  for (const auto& [key, kept] : core_.tables.deleted.rows()) ids.insert(key.first);
  storages_.AddBusy(ids);
  WriteNames names;
  for (const std::string& id : ids) names.changes.insert({DiskName(id), KeptName(id)});
  return names;
}

Status DiskKeys::RewrapKeys() {
  const StateLock lock(core_.mutex);
  const WriteNames names = NamesOfKeys();
  core_.writes.Await(names);
  StoreChange change;
  size_t failed = 0;
  for (const auto& [id, entry] : core_.tables.disks) {
    DiskRow row = entry.row;
    if (names.changes.contains(DiskName(id)) && keys_.Rewrap(row, failed))
      change.emplace_back(std::move(row));
  }
  for (const auto& [key, kept] : core_.tables.deleted.rows()) {
    DeletedDiskRow row = kept;
    if (names.changes.contains(KeptName(key.first)) && keys_.Rewrap(row.disk, failed))
      change.emplace_back(std::move(row));
  }
  if (failed > 0) {
    spdlog::error(
        "disk keys: {} not unwrapped, those of deleted disks among them; they stay wrapped as they are, and "
        "their disks can't be attached: give cleatd the key-encryption key that the line above names, then "
        "reload it",
        failed);
  }
  if (change.empty()) return Ok{};
  CLEAT_TRY(core_.writes.Write(names, change));
  for (RowChange& changed : change) SetRewrapped(changed);
  spdlog::info("disk keys: {} wrapped anew: under key-encryption key {}", change.size(),
               keys_.keyring()->current_id());
  return Ok{};
}

void DiskKeys::SetRewrapped(RowChange& changed) {
  if (auto* const deleted = std::get_if<DeletedDiskRow>(&changed)) {
    core_.tables.deleted.Put(std::move(*deleted));
    return;
  }
  auto& row = std::get<DiskRow>(changed);
  DiskEntry& entry = core_.tables.disks.At(row.id);
  entry.row = std::move(row);
  core_.publisher.Publish(entry);
}

}  // namespace cleat::control
