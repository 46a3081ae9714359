// SPDX-License-Identifier: Apache-2.0
#include "control/state/disks/kept_disks.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

constexpr uint64_t kHexDigits = 16;

Result<DiskIdentity> ParseUid(std::string_view name, const std::string& uid) {
  uint64_t value = 0;
  const char* const end = uid.data() + uid.size();
  const bool parsed = uid.size() == kHexDigits && std::from_chars(uid.data(), end, value, 16).ptr == end;
  if (parsed) return DiskIdentity(value);
  return RefuseFor(name, v1::REASON_INVALID_FIELD,
                   fmt::format("{}: uid '{:.40}' is not {} hexadecimal digits (cleatctl disk list --deleted)",
                               name, uid, kHexDigits),
                   {{"field", "uid"}});
}

Error IdTaken(const std::string& name, bool kept) {
  return RefuseFor(name, v1::REASON_ID_TAKEN,
                   kept ? fmt::format("{} is another disk by now: delete that one first", name)
                        : fmt::format("{} is there, and not deleted", name),
                   {{"conflict", name}});
}

}  // namespace

std::string KeptName(const std::string& id) {
  return "deleted " + DiskName(id);
}

void AddPurge(const DiskRow& row, WriteNames& names) {
  if (const std::string& pool = PoolOf(row.spec); !pool.empty()) names.changes.insert(pool);
}

bool NamesPurge(const DiskRow& row, const WriteNames& names) {
  return PoolOf(row.spec).empty() || names.changes.contains(PoolOf(row.spec));
}

Error KeyNotKept(const std::string& name, std::string_view why) {
  return RefuseFor(
      name, v1::REASON_KEY_NOT_KEPT,
      fmt::format("{} is encrypted, and its key would be destroyed: {}. Without it nobody can read what the "
                  "disk holds, unless the key is kept elsewhere, too",
                  name, why));
}

Result<const DeletedDiskRow*> KeptDisks::Find(const std::string& id, const std::string& uid) const {
  const std::string name = DiskName(id);
  const auto all = core_.tables.deleted.Of(id);
  if (uid.empty()) return all.empty() ? nullptr : all.back();
  CLEAT_ASSIGN(const auto identity, ParseUid(name, uid));
  for (const DeletedDiskRow* row : all) {
    if (core_.view.IdentityOf(row->disk) == identity) return row;
  }
  return nullptr;
}

// ---- Undeleting

Status KeptDisks::CheckUndelete(const DeletedDiskRow& row) {
  const std::string& id = row.disk.id;
  const std::string name = DiskName(id);
  CLEAT_TRY(storages_.CheckNotBusy(id));
  if (const DiskEntry* live = core_.tables.disks.Find(id)) {
    if (live->row.deleting) return Busy(name, name + " is still being removed");
    return IdTaken(name, true);
  }
  return disks_.CheckRoom(id, row.disk.spec);
}

Result<v1::Disk> KeptDisks::Undelete(const v1::UndeleteDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  core_.writes.Await({.changes = {name, KeptName(id)}});
  CLEAT_ASSIGN(const auto found, Find(id, request.uid()));
  if (found == nullptr) {
    const DiskEntry* live = core_.tables.disks.Find(id);
    // The call was made before, and has succeeded.
    if (live != nullptr && !live->row.deleting && core_.view.UidOf(live->row) == request.uid())
      return core_.view.Show(*live);
    if (live != nullptr && request.uid().empty()) return IdTaken(name, false);
    return RefuseFor(name, v1::REASON_RESOURCE_NOT_FOUND,
                     fmt::format("{}{}{} is not kept: cleatctl disk list --deleted shows those that are",
                                 name, request.uid().empty() ? "" : " with the uid ", request.uid()));
  }
  CLEAT_TRY(CheckUndelete(*found));
  const DeletedDiskRow kept = *found;
  storages_.SetBusy(
      id, {.storage = ClaimOfStorage(kept.disk.spec), .wwn = kept.disk.spec.wwn(), .doing = "undeleted"});
  auto disk = UndeleteBusy(kept);
  storages_.EndBusy(id);
  return disk;
}

Result<v1::Disk> KeptDisks::UndeleteBusy(const DeletedDiskRow& kept) {
  const std::string& id = kept.disk.id;
  CLEAT_ASSIGN(const auto identity, RestoreUnlocked(kept.disk));
  CLEAT_TRY(storages_.CheckSameStorage(id, kept.disk.spec, identity));
  auto disk = CommitUndelete(id, kept.disk.revision);
  if (!disk.ok()) storages_.Drop(id);
  return disk;
}

Result<DiskStorages::Identity> KeptDisks::RestoreUnlocked(const DiskRow& row) {
  const bool log_lost = storages_.IsLogLost(row);
  const StateUnlock unlocked(core_.mutex);
  return storages_.Restore(row.id, row.spec, log_lost);
}

Result<v1::Disk> KeptDisks::CommitUndelete(const std::string& id, uint64_t kept_revision) {
  const std::string name = DiskName(id);
  WriteNames names{.changes = {name, KeptName(id)}};
  // While the mutex was let go, the kept row and what it is stored in may have gone, and the key may have been wrapped anew.
  const DeletedDiskRow* found = core_.tables.deleted.Find(id, kept_revision);
  if (found == nullptr) return NotFound(name);
  if (const std::string& remote = RemoteOf(found->disk.spec); !remote.empty()) names.needs.insert(remote);
  if (const std::string& pool = PoolOf(found->disk.spec); !pool.empty()) names.needs.insert(pool);
  core_.writes.Await(names);
  found = core_.tables.deleted.Find(id, kept_revision);
  if (found == nullptr) return NotFound(name);
  const DiskRow kept = found->disk;
  CLEAT_TRY(remote_.Check(kept.id, kept.spec));
  DiskEntry entry;
  entry.row = kept;
  entry.row.intent_revision = core_.publisher.NextRevision();
  // A disk of memory comes back as another disk: what its guest has under way was for the content that is gone.
  if (KeptMemoryOf(kept.spec) == KeptMemory::kContent) entry.row.revision = entry.row.intent_revision;
  entry.status.set_state(v1::DISK_STATE_READY);
  SetLost(entry);
  CLEAT_TRY(core_.writes.Write(names, {EraseDeletedDiskRow{kept.revision}, entry.row}));
  core_.tables.deleted.Erase(kept.id, kept.revision);
  pools_.Leave(kept, PoolExtents::As::kDeleted);
  const DiskEntry& added = disks_.Add(std::move(entry));
  spdlog::info("{}: undeleted: uid {}{}", name, core_.view.UidOf(added.row),
               KeptMemoryOf(kept.spec) == KeptMemory::kContent
                   ? ", empty: its content was freed when it was deleted"
                   : "");
  v1::Disk shown = core_.view.Show(added);
  if (KeptMemoryOf(kept.spec) == KeptMemory::kContent)
    shown.mutable_status()->set_message("it is empty: its content was freed when it was deleted");
  return shown;
}

// ---- Purging

Result<v1::PurgeDiskResponse> KeptDisks::Purge(const v1::PurgeDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  WriteNames names{.changes = {KeptName(id)}};
  for (const DeletedDiskRow* row : core_.tables.deleted.Of(id)) AddPurge(row->disk, names);
  core_.writes.Await(names);
  CLEAT_ASSIGN(const auto found, Find(id, request.uid()));
  v1::PurgeDiskResponse response;
  if (found == nullptr) return response;
  const DiskRow row = found->disk;
  if (!NamesPurge(row, names)) return Busy(name, name + " was deleted a moment ago");
  const size_t count = core_.tables.deleted.Of(id).size();
  if (request.uid().empty() && count > 1) {
    return RefuseFor(
        name, v1::REASON_UID_NEEDED,
        fmt::format("{} deleted disks called {} are kept, {} for one: say which with its uid (cleatctl disk "
                    "list --deleted)",
                    count, name, core_.view.UidOf(row)),
        {{"field", "uid"}});
  }
  if (request.spare_key() && row.spec.has_encryption()) return KeyNotKept(name, "that is what purging does");
  *response.mutable_disk() = core_.view.Show(*found);
  const DeletedDiskRow kept = *found;
  CLEAT_TRY(Erase(names, {kept}));
  spdlog::info("{}: purged: uid {}", name, response.disk().uid());
  return response;
}

// The names' pools are those of the disks.
Status KeptDisks::Erase(const WriteNames& names, const std::vector<DeletedDiskRow>& rows) {
  std::vector<DiskRow> disks;
  StoreChange change;
  for (const DeletedDiskRow& row : rows) {
    disks.push_back(row.disk);
    change.emplace_back(EraseDeletedDiskRow{row.disk.revision});
  }
  std::vector<PoolRow> pools = pools_.RowsWithout(disks);
  change.insert(change.end(), pools.begin(), pools.end());
  CLEAT_TRY(core_.writes.WriteAndCutLog(names, change));
  for (const DiskRow& disk : disks) {
    core_.tables.deleted.Erase(disk.id, disk.revision);
    pools_.Leave(disk, PoolExtents::As::kDeleted);
  }
  pools_.Purged(std::move(pools));
  return Ok{};
}

Status KeptDisks::PurgeExpired() {
  const StateLock lock(core_.mutex);
  WriteNames names;
  for (const DeletedDiskRow* row : core_.tables.deleted.Expired(keep_.now_s())) {
    names.changes.insert(KeptName(row->disk.id));
    AddPurge(row->disk, names);
  }
  core_.writes.Await(names);
  std::vector<DeletedDiskRow> expired;
  for (const DeletedDiskRow* row : core_.tables.deleted.Expired(keep_.now_s())) {
    const bool named = names.changes.contains(KeptName(row->disk.id)) && NamesPurge(row->disk, names);
    if (named) expired.push_back(*row);  // else the next time
  }
  if (expired.empty()) return Ok{};
  CLEAT_TRY(Erase(names, expired));
  for (const DeletedDiskRow& row : expired) {
    spdlog::info("{}: purged: uid {}, deleted {} s ago", DiskName(row.disk.id), core_.view.UidOf(row.disk),
                 keep_.now_s() - row.delete_time_s);
  }
  return Ok{};
}

size_t KeptDisks::Count() {
  const StateLock lock(core_.mutex);
  return core_.tables.deleted.size();
}

}  // namespace cleat::control
