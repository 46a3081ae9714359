// SPDX-License-Identifier: Apache-2.0
// Deleted disks that are kept: what DeleteDisk leaves, and how that comes back or goes for good.
#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/page.h"
#include "control/refusals.h"
#include "control/spec_rules.h"

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

Error KeyNotKept(const std::string& name, std::string_view why) {
  return RefuseFor(
      name, v1::REASON_KEY_NOT_KEPT,
      fmt::format("{} is encrypted, and its key would be destroyed: {}. Without it nobody can read what the "
                  "disk holds, unless the key is kept elsewhere, too",
                  name, why));
}

google::protobuf::Timestamp TimestampOf(uint64_t seconds) {
  google::protobuf::Timestamp time;
  time.set_seconds(static_cast<int64_t>(seconds));
  return time;
}

}  // namespace

std::string HostState::UidOf(const DiskRow& row) const {
  return fmt::format("{:016x}", IdentityOf(row).value());
}

v1::Disk HostState::Show(const DeletedDiskRow& row) const {
  DiskEntry entry;
  entry.row = row.disk;
  entry.revision = row.disk.intent_revision;
  entry.status.set_state(v1::DISK_STATE_DELETED);
  if (IsKeptMemory(row.disk.spec)) {
    entry.status.set_message(
        "its content was freed when it was deleted: undeleted, it is another disk, and empty");
  }
  v1::Disk disk = Show(entry);
  *disk.mutable_delete_time() = TimestampOf(row.delete_time_s);
  *disk.mutable_purge_time() = TimestampOf(row.purge_time_s);
  return disk;
}

// ---- Deleting

Status HostState::CheckKeepDeleted(const DiskRow& row, const v1::DeleteDiskRequest& request) const {
  const std::string& name = request.name();
  const bool kept = KeepsDeleted() && !request.purge();
  if (request.spare_key() && row.spec.has_encryption() && !kept) {
    return KeyNotKept(name, request.purge() ? "the request purges it" : "this cleatd keeps no deleted disks");
  }
  if (!kept || deleted_.size() < kDeletedDisksMax) return Ok{};
  return RefuseFor(
      name, v1::REASON_TOO_MANY_DELETED,
      fmt::format("{}: {} deleted disks are kept, which is the most: purge some (cleatctl disk list "
                  "--deleted, disk purge), or delete it with purge (disk delete --purge)",
                  name, kDeletedDisksMax),
      {{"limit", std::to_string(kDeletedDisksMax)}});
}

std::optional<DeletedDiskRow> HostState::WhatIsKept(const DiskRow& row,
                                                    const v1::DeleteDiskRequest& request) {
  if (!KeepsDeleted() || request.purge()) return std::nullopt;
  DeletedDiskRow kept{.disk = row, .delete_time_s = keep_.now_s(), .purge_time_s = 0};
  kept.purge_time_s = kept.delete_time_s + keep_.time_s;
  kept.disk.intent_revision = NextRevision();
  // No engine and no process holds the memory of a deleted disk.
  kept.disk.reached_engine = false;
  kept.disk.kept_by.clear();
  return kept;
}

// ---- Undeleting

Result<const DeletedDiskRow*> HostState::FindDeleted(const std::string& id, const std::string& uid) const {
  const std::string name = DiskName(id);
  const auto all = deleted_.Of(id);
  if (uid.empty()) return all.empty() ? nullptr : all.back();
  CLEAT_ASSIGN(const auto identity, ParseUid(name, uid));
  for (const DeletedDiskRow* row : all) {
    if (IdentityOf(row->disk) == identity) return row;
  }
  return nullptr;
}

Status HostState::CheckUndelete(const DeletedDiskRow& row) {
  const std::string& id = row.disk.id;
  const std::string name = DiskName(id);
  if (const auto busy = busy_.find(id); busy != busy_.end())
    return Busy(name, fmt::format("{} is being {} by another call", name, busy->second.doing));
  if (const DiskEntry* live = FindDisk(id)) {
    if (live->row.deleting) return Busy(name, name + " is still being removed");
    return IdTaken(name, true);
  }
  return CheckRoomForDisk(id, row.disk.spec);
}

Result<v1::Disk> HostState::UndeleteDisk(const v1::UndeleteDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const std::string& name = request.name();
  const MutexLock lock(mutex_);
  CLEAT_ASSIGN(const auto found, FindDeleted(id, request.uid()));
  if (found == nullptr) {
    const DiskEntry* live = FindDisk(id);
    // The call was made before, and has succeeded.
    if (live != nullptr && !live->row.deleting && UidOf(live->row) == request.uid()) return Show(*live);
    if (live != nullptr && request.uid().empty()) return IdTaken(name, false);
    return RefuseFor(name, v1::REASON_RESOURCE_NOT_FOUND,
                     fmt::format("{}{}{} is not kept: cleatctl disk list --deleted shows those that are",
                                 name, request.uid().empty() ? "" : " with the uid ", request.uid()));
  }
  CLEAT_TRY(CheckUndelete(*found));
  const DeletedDiskRow kept = *found;
  const v1::DiskSpec& spec = kept.disk.spec;
  busy_.emplace(id, BusyDisk{.storage = ClaimOfStorage(spec), .wwn = spec.wwn(), .doing = "undeleted"});
  const auto ready = RestoreBackendUnlocked(id, spec);
  busy_.erase(id);
  CLEAT_TRY(ready);
  CLEAT_TRY(CheckSameStorage(id, spec, *ready));
  auto disk = CommitUndelete(id, kept.disk.revision);
  if (disk.ok()) return disk;
  memory_.Drop(id);
  storages_.Forget(id);
  return disk;
}

Result<HostState::BackendIdentity> HostState::RestoreBackendUnlocked(const std::string& id,
                                                                     const v1::DiskSpec& spec) {
  const MutexUnlock unlocked(mutex_);
  return RestoreBackend(id, spec);
}

Result<v1::Disk> HostState::CommitUndelete(const std::string& id, uint64_t kept_revision) {
  const std::string name = DiskName(id);
  // While the mutex was let go, the kept row and the cluster may have gone, and the key may have been wrapped anew.
  const DeletedDiskRow* const found = deleted_.Find(id, kept_revision);
  if (found == nullptr) return NotThere(name);
  const DiskRow kept = found->disk;
  CLEAT_TRY(CheckClusterOf(kept.id, kept.spec));
  DiskEntry entry;
  entry.row = kept;
  entry.row.intent_revision = NextRevision();
  // A disk of memory comes back as another disk: what its guest has under way was for the content that is gone.
  if (IsKeptMemory(kept.spec)) entry.row.revision = entry.row.intent_revision;
  entry.status.set_state(v1::DISK_STATE_READY);
  CLEAT_TRY(store_.UndeleteDisk(kept.revision, entry.row));
  deleted_.Erase(kept.id, kept.revision);
  DiskEntry& added = AddDisk(std::move(entry));
  JoinCluster(added.row);
  Publish(added);
  spdlog::info("{}: undeleted: uid {}{}", name, UidOf(added.row),
               IsKeptMemory(kept.spec) ? ", empty: its content was freed when it was deleted" : "");
  v1::Disk shown = Show(added);
  if (IsKeptMemory(kept.spec))
    shown.mutable_status()->set_message("it is empty: its content was freed when it was deleted");
  return shown;
}

// ---- Purging

Result<v1::PurgeDiskResponse> HostState::PurgeDisk(const v1::PurgeDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const std::string& name = request.name();
  const MutexLock lock(mutex_);
  CLEAT_ASSIGN(const auto found, FindDeleted(id, request.uid()));
  v1::PurgeDiskResponse response;
  if (found == nullptr) return response;
  const DiskRow& row = found->disk;
  const size_t count = deleted_.Of(id).size();
  if (request.uid().empty() && count > 1) {
    return RefuseFor(
        name, v1::REASON_UID_NEEDED,
        fmt::format("{} deleted disks called {} are kept, {} for one: say which with its uid (cleatctl disk "
                    "list --deleted)",
                    count, name, UidOf(row)),
        {{"field", "uid"}});
  }
  if (request.spare_key() && row.spec.has_encryption()) return KeyNotKept(name, "that is what purging does");
  *response.mutable_disk() = Show(*found);
  const uint64_t revision = row.revision;
  CLEAT_TRY(store_.PurgeDisks({&revision, 1}));
  spdlog::info("{}: purged: uid {}", name, response.disk().uid());
  deleted_.Erase(id, revision);
  return response;
}

Status HostState::PurgeExpired() {
  const MutexLock lock(mutex_);
  std::vector<uint64_t> revisions;
  const auto expired = deleted_.Expired(keep_.now_s());
  for (const DeletedDiskRow* row : expired) revisions.push_back(row->disk.revision);
  if (revisions.empty()) return Ok{};
  CLEAT_TRY(store_.PurgeDisks(revisions));
  for (const DeletedDiskRow* row : expired) {
    const DiskRow disk = row->disk;
    spdlog::info("{}: purged: uid {}, deleted {} s ago", DiskName(disk.id), UidOf(disk),
                 keep_.now_s() - row->delete_time_s);
    deleted_.Erase(disk.id, disk.revision);
  }
  return Ok{};
}

size_t HostState::DeletedDisksKept() {
  const MutexLock lock(mutex_);
  return deleted_.size();
}

// ---- Listing

Result<v1::ListDisksResponse> HostState::ListDisks(const v1::ListDisksRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  // "ID" after a disk that is there, "ID/REVISION" after one that is deleted; the former comes first.
  const std::string& token = request.page_token();
  const size_t slash = token.find('/');
  std::pair<std::string, uint64_t> last(token.substr(0, slash), 0);
  if (slash != std::string::npos) last.second = RevisionOfEtag(std::string_view(token).substr(slash + 1));

  v1::ListDisksResponse response;
  const MutexLock lock(mutex_);
  auto live = disks_.upper_bound(last.first);
  auto deleted = request.show_deleted() ? deleted_.rows().upper_bound(last) : deleted_.rows().end();
  while (live != disks_.end() || deleted != deleted_.rows().end()) {
    const bool take_live =
        live != disks_.end() && (deleted == deleted_.rows().end() || live->first <= deleted->first.first);
    v1::Disk disk = take_live ? Show(live->second) : Show(deleted->second);
    if (!page.Take(disk.ByteSizeLong())) {
      response.set_next_page_token(last.second == 0 ? last.first
                                                    : fmt::format("{}/{:x}", last.first, last.second));
      break;
    }
    *response.add_disks() = std::move(disk);
    if (take_live) {
      last = {(live++)->first, 0};
    } else {
      last = (deleted++)->first;
    }
  }
  return response;
}

}  // namespace cleat::control
