// SPDX-License-Identifier: Apache-2.0
// Disks, from the API's side.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/backends.h"
#include "control/disk_file.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/refusals.h"
#include "control/spec_rules.h"

namespace cleat::control {
namespace {

bool CanShareStorage(const v1::DiskSpec& a, const v1::DiskSpec& b) {
  return a.access_mode() == v1::ACCESS_MODE_MANY_READERS && b.access_mode() == v1::ACCESS_MODE_MANY_READERS;
}

// What no two disks may have, as keys of `claims_`.
std::vector<std::string> ClaimsOf(const v1::DiskSpec& spec) {
  std::vector<std::string> claims{"wwn " + spec.wwn()};
  if (std::string storage = ClaimOfStorage(spec); !storage.empty()) claims.push_back(std::move(storage));
  return claims;
}

}  // namespace

Status HostState::FillDisks(std::vector<DiskRow> rows) {
  for (DiskRow& row : rows) {
    DiskEntry entry{.row = std::move(row), .status = {}, .attachments = {}, .revision = revision_ + 1};
    entry.status.set_state(v1::DISK_STATE_READY);
    if (IsKeptMemory(entry.row.spec) && !entry.row.deleting) {
      if (entry.row.reached_engine) {
        // The reconciler finds out at the engines' inventories.
        entry.status.set_state(v1::DISK_STATE_PENDING);
      } else {
        CLEAT_TRY(memory_.Make(entry.row.id, entry.row.spec.size_bytes()));
      }
    }
    if (IsInCluster(entry.row.spec)) {
      const std::string& name = ClusterOf(entry.row.spec);
      const auto cluster = ParseClusterName(name);
      if (!cluster.ok() || FindCluster(*cluster) == nullptr) {
        return Refuse(v1::REASON_STORE_DAMAGED, fmt::format("store: {} is there, but not its cluster {}",
                                                            DiskName(entry.row.id), name));
      }
      FindCluster(*cluster)->disks.insert(entry.row.id);
    }
    AddDisk(std::move(entry));
  }
  return Ok{};
}

Result<v1::Disk> HostState::CreateDisk(const v1::CreateDiskRequest& request) {
  const std::string& id = request.disk_id();
  CLEAT_TRY(CheckId("disk_id", id));
  v1::DiskSpec asked = request.disk().spec();
  CLEAT_ASSIGN(const auto key, TakeKey(id, &asked));
  CLEAT_ASSIGN(auto spec, CompleteDiskSpec(id, std::move(asked)));
  CLEAT_TRY(PutKey(id, key, &spec));
  CLEAT_ASSIGN(auto labels, CheckLabels(DiskName(id), request.disk().labels()));
  {
    const MutexLock lock(mutex_);
    CLEAT_ASSIGN(auto existing, CheckNewDisk(id, spec));
    if (existing != nullptr) {
      CLEAT_TRY(CompareKey(existing->row, key));
      if (existing->row.labels != labels) return TakenByOtherLabels(DiskName(id));
      return Show(*existing);
    }
    busy_.emplace(id, BusyDisk{.storage = ClaimOfStorage(spec), .wwn = spec.wwn(), .doing = "created"});
  }
  const auto prepared = PrepareBackend(id, spec);
  const MutexLock lock(mutex_);
  busy_.erase(id);
  CLEAT_TRY(prepared);
  CLEAT_TRY(CheckSameStorage(id, spec, *prepared));
  DiskEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  entry.row.labels = std::move(labels);
  return CommitDisk(std::move(entry));
}

Result<HostState::DiskEntry*> HostState::CheckNewDisk(const std::string& id, const v1::DiskSpec& spec) {
  const std::string name = DiskName(id);
  if (const auto busy = busy_.find(id); busy != busy_.end()) {
    return Busy(name, fmt::format("{} is being {} by another call", name, busy->second.doing));
  }
  if (DiskEntry* existing = FindDisk(id)) {
    if (existing->row.deleting) return Busy(name, name + " is still being removed");
    const v1::DiskSpec present = WithoutKey(existing->row.spec);
    const v1::DiskSpec wanted = WithoutKey(spec);
    if (SameSpec(present, wanted)) return existing;
    return TakenByOther(name, present, wanted);
  }
  CLEAT_TRY(CheckRoomForDisk(id, spec));
  return nullptr;
}

Status HostState::CheckRoomForDisk(const std::string& id, const v1::DiskSpec& spec) {
  const std::string name = DiskName(id);
  if (disks_.size() + busy_.size() >= kDisksMax) {
    return RefuseFor(name, v1::REASON_TOO_MANY_RESOURCES,
                     fmt::format("{}: there are {} disks, which is the most: delete one", name, kDisksMax),
                     {{"limit", std::to_string(kDisksMax)}});
  }
  CLEAT_TRY(CheckClusterOf(id, spec));
  return CheckUnique(id, spec);
}

std::string HostState::BehindLimits(const DiskEntry& entry) const {
  for (const auto& [name, use] : entry.attachments) {
    const bool open = use.size_bytes != 0 && !use.detaching;
    if (open && use.limits_revision < entry.row.limits_revision) return name;
  }
  return {};
}

HostState::DiskEntry& HostState::AddDisk(DiskEntry entry) {
  const std::string id = entry.row.id;
  DiskEntry& kept = disks_.emplace(id, std::move(entry)).first->second;
  for (std::string& claim : ClaimsOf(kept.row.spec)) claims_.emplace(std::move(claim), id);
  return kept;
}

// No other disk may have its file, image or world wide name, unless both only read the same thing.
Status HostState::CheckUnique(const std::string& id, const v1::DiskSpec& spec) const {
  const std::string name = DiskName(id);
  const auto claim = ClaimOf(spec);
  const std::string storage = claim ? claim->Key() : std::string();
  std::set<std::string> others;
  for (const std::string& key : ClaimsOf(spec)) {
    const auto [first, last] = claims_.equal_range(key);
    for (auto it = first; it != last; ++it) others.insert(it->second);
  }
  for (const std::string& other_id : others) {
    const DiskEntry& other = disks_.at(other_id);
    const bool same_storage = claim && ClaimOfStorage(other.row.spec) == storage;
    const bool same_wwn = other.row.spec.wwn() == spec.wwn();
    if (same_storage && CanShareStorage(other.row.spec, spec)) continue;
    const std::string other_name = DiskName(other_id);
    if ((same_storage || same_wwn) && other.row.deleting) {
      return Busy(
          name,
          fmt::format("{}: its file or wwn is still used by {}, which is being removed", name, other_name),
          other_name);
    }
    if (same_storage) {
      return RefuseFor(
          name, claim->when_taken,
          fmt::format("{}: {} '{}' is used by {}: two disks can share {} only if both are MANY_READERS. "
                      "Name another {}, or delete that disk (cleatctl disk delete {})",
                      name, claim->noun, claim->which, other_name, claim->with_an, claim->noun, other_id),
          {{"conflict", other_name}});
    }
    if (same_wwn) {
      return RefuseFor(name, v1::REASON_WWN_TAKEN,
                       fmt::format("{}: wwn {} is the one of {}: leave it out, or give another", name,
                                   spec.wwn(), other_name),
                       {{"conflict", other_name}});
    }
  }
  for (const auto& [other_id, other] : busy_) {
    if ((!storage.empty() && other.storage == storage) || other.wwn == spec.wwn()) {
      return Busy(
          name, fmt::format("{}: {} or the wwn is being looked at for {}", name, storage, DiskName(other_id)),
          DiskName(other_id));
    }
  }
  return Ok{};
}

Result<HostState::BackendIdentity> HostState::PrepareBackend(const std::string& id,
                                                             const v1::DiskSpec& spec) {
  if (IsKeptMemory(spec)) {
    CLEAT_TRY(memory_.Make(id, spec.size_bytes()));
  }
  if (FileOf(spec).empty()) return BackendIdentity();
  CLEAT_ASSIGN(auto identity, PrepareDiskFile(DiskName(id), spec, *paths_));
  AwaitLooks(id, identity);
  return BackendIdentity(identity);
}

Result<HostState::BackendIdentity> HostState::RestoreBackend(const std::string& id,
                                                             const v1::DiskSpec& spec) {
  if (FileOf(spec).empty()) return PrepareBackend(id, spec);
  CLEAT_ASSIGN(auto identity, CheckDiskFile(DiskName(id), spec, *paths_));
  AwaitLooks(id, identity);
  return BackendIdentity(identity);
}

// A disk whose file hangs can't be compared: then only the engines' locks keep two disks of one file apart. Those that are known
// are looked at all the same: a file that is gone must not keep others from its inode because a third one hangs.
void HostState::AwaitLooks(const std::string& id, const StorageIdentity& identity) {
  storages_.AwaitLooks();
  storages_.LookAtOthersWith(id, identity);
  if (storages_.AwaitLooks()) return;
  spdlog::warn(
      "{}: storage not compared with every disk's: a file does not answer; until it does, only the engines' "
      "locks keep two disks of one file apart",
      DiskName(id));
}

Status HostState::CheckSameStorage(const std::string& id, const v1::DiskSpec& spec,
                                   const BackendIdentity& identity) {
  if (!identity) return Ok{};
  for (const std::string& other_id : storages_.OthersWith(id, *identity)) {
    const DiskEntry* other = FindDisk(other_id);
    if (other == nullptr || CanShareStorage(other->row.spec, spec)) continue;
    const std::string name = DiskName(id);
    const std::string other_name = DiskName(other_id);
    return RefuseFor(
        name, v1::REASON_FILE_TAKEN,
        fmt::format("{}: file '{}' is the same as '{}', or has a part of it, which is used by {}: two "
                    "disks can share a file only if both are MANY_READERS. Name another file, or "
                    "delete that disk (cleatctl disk delete {})",
                    name, FileOf(spec), FileOf(other->row.spec), other_name, other_id),
        {{"conflict", other_name}});
  }
  storages_.Keep({id, FileOf(spec)}, *identity);
  return Ok{};
}

Result<v1::Disk> HostState::CommitDisk(DiskEntry entry) {
  const std::string id = entry.row.id;
  // It may have gone while the mutex was let go.
  CLEAT_TRY(CheckClusterOf(id, entry.row.spec));
  entry.row.revision = entry.row.intent_revision = NextRevision();
  if (entry.row.spec.has_limits()) entry.row.limits_revision = entry.row.revision;
  entry.status.set_state(v1::DISK_STATE_READY);
  if (auto status = store_.Put(entry.row); !status.ok()) {
    memory_.Drop(id);
    storages_.Forget(id);
    return std::move(status).error();
  }
  DiskEntry& kept = AddDisk(std::move(entry));
  JoinCluster(kept.row);
  Publish(kept);
  spdlog::info("{}: created: {} bytes", DiskName(id), kept.row.spec.size_bytes());
  return Show(kept);
}

Result<v1::Disk> HostState::GetDisk(const v1::GetDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const MutexLock lock(mutex_);
  const DiskEntry* entry = FindDisk(id);
  if (entry == nullptr) return NotThere(request.name());
  return Show(*entry);
}

Result<v1::DeleteDiskResponse> HostState::DeleteDisk(const v1::DeleteDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const std::string& name = request.name();
  const MutexLock lock(mutex_);
  AwaitAttaching([&](const Attaching& other) { return other.disk == id; });
  if (const auto busy = busy_.find(id); busy != busy_.end()) {
    return Busy(name, fmt::format("{} is being {}", name, busy->second.doing));
  }
  DiskEntry* entry = FindDisk(id);
  if (entry == nullptr || entry->row.deleting) return v1::DeleteDiskResponse();
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));

  CLEAT_TRY(CheckNotAttached(name, *entry));
  CLEAT_TRY(CheckKeepDeleted(entry->row, request));

  std::optional<DeletedDiskRow> kept = WhatIsKept(entry->row, request);
  std::optional<DiskRow> tombstone;
  if (!entry->row.kept_by.empty()) {
    tombstone = entry->row;
    tombstone->deleting = true;
    tombstone->intent_revision = NextRevision();
  }
  CLEAT_TRY(store_.RemoveDisk(id, tombstone ? &*tombstone : nullptr, kept ? &*kept : nullptr));
  if (!kept && entry->row.spec.has_encryption()) store_.CutLog();
  v1::DeleteDiskResponse response;
  if (kept) {
    *response.mutable_disk() = Show(*kept);
    deleted_.Put(std::move(*kept));
  }
  if (tombstone) {
    entry->row = std::move(*tombstone);
    memory_.Drop(id);
    Publish(*entry);
    DiskChanged(id);
  } else {
    DropDisk(*entry);
  }
  spdlog::info("{}: deleted{}", name,
               response.has_disk() ? fmt::format(", kept as uid {}", response.disk().uid()) : "");
  return response;
}

Status HostState::CheckNotAttached(const std::string& name, const DiskEntry& entry) const {
  std::vector<std::string> live;
  for (const auto& [attachment, use] : entry.attachments) {
    if (!use.detaching) live.push_back(attachment);
  }
  if (!live.empty()) {
    const AttachmentsShown shown = ShowAttachments(live);
    return RefuseFor(
        name, v1::REASON_DISK_IN_USE,
        fmt::format("{} is in use by {}: detach it first ({})", name, shown.names, shown.commands),
        {{"conflict", live.front()}});
  }
  if (entry.attachments.empty()) return Ok{};
  const std::string& conflict = entry.attachments.begin()->first;
  return Busy(name, fmt::format("{} is still being detached from {}", name, conflict), conflict);
}

Status HostState::EraseDisk(DiskEntry& entry) {
  CLEAT_TRY(store_.EraseDisk(entry.row.id));
  DropDisk(entry);
  return Ok{};
}

void HostState::DropDisk(DiskEntry& entry) {
  const std::string id = entry.row.id;
  for (const std::string& claim : ClaimsOf(entry.row.spec)) {
    const auto [first, last] = claims_.equal_range(claim);
    const auto ours = std::find_if(first, last, [&](const auto& of) { return of.second == id; });
    if (ours != last) claims_.erase(ours);
  }
  LeaveCluster(entry.row);
  disks_.erase(id);
  memory_.Drop(id);
  storages_.Forget(id);
  PublishGone(DiskName(id));
}

}  // namespace cleat::control
