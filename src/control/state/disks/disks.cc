// SPDX-License-Identifier: Apache-2.0
#include "control/state/disks/disks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/model/page.h"
#include "control/state/disks/kept_disks.h"
#include "control/state/writes/update_mask.h"
#include "control/validate/backends.h"
#include "control/validate/disk_settings.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// The names of a new disk's write: the disk's cluster or subsystem, and its pool, stay meanwhile.
WriteNames NamesOf(const DiskRow& row) {
  WriteNames names{.changes = {DiskName(row.id)}};
  if (const std::string& remote = RemoteOf(row.spec); !remote.empty()) names.needs.insert(remote);
  if (const std::string& pool = PoolOf(row.spec); !pool.empty()) names.needs.insert(pool);
  if (const std::string& file = FileOf(row.spec); !file.empty()) names.needs.insert(StorageName(file));
  return names;
}

}  // namespace

// ---- From the store

Status Disks::Fill(std::vector<DiskRow> rows) {
  for (DiskRow& row : rows) {
    DiskEntry entry{
        .row = std::move(row), .status = {}, .attachments = {}, .revision = core_.publisher.newest() + 1};
    entry.status.set_state(v1::DISK_STATE_READY);
    if (KeepsMemory(entry.row.spec) && !entry.row.deleting) {
      if (entry.row.reached_engine) {
        // The reconciler finds out at the engines' inventories.
        entry.status.set_state(v1::DISK_STATE_PENDING);
        core_.publisher.DiskChanged(entry.row.id);
      } else {
        CLEAT_TRY(storages_.MakeMemory(entry.row));
      }
    }
    CLEAT_TRY(remote_.Fill(entry.row));
    if (const std::string& name = PoolOf(entry.row.spec); !name.empty()) {
      const auto pool = ParsePoolName(name);
      if (!pool.ok() || !core_.tables.pools.Has(*pool)) {
        return Refuse(v1::REASON_STORE_DAMAGED,
                      fmt::format("store: {} is there, but not its pool {}", DiskName(entry.row.id), name));
      }
      pools_.Join(entry.row, PoolExtents::As::kDisk);
      SetLost(entry);
    }
    Insert(std::move(entry));
  }
  return Ok{};
}

DiskEntry& Disks::Insert(DiskEntry entry) {
  const std::string id = entry.row.id;
  DiskEntry& kept = core_.tables.disks.Insert(id, std::move(entry));
  storages_.Claim(kept.row);
  return kept;
}

DiskEntry& Disks::Add(DiskEntry entry) {
  DiskEntry& kept = Insert(std::move(entry));
  remote_.Join(kept.row);
  pools_.Join(kept.row, PoolExtents::As::kDisk);
  core_.publisher.Publish(kept);
  return kept;
}

// ---- Creating

Result<v1::Disk> Disks::Create(const v1::CreateDiskRequest& request) {
  const std::string& id = request.disk_id();
  CLEAT_TRY(CheckId("disk_id", id));
  v1::DiskSpec asked = request.disk().spec();
  CLEAT_ASSIGN(const auto key, keys_.ExtractKey(id, &asked));
  CLEAT_ASSIGN(auto spec, CompleteDiskSpec(id, std::move(asked)));
  CLEAT_TRY(keys_.SetWrappedKey(id, key, &spec));
  CLEAT_ASSIGN(auto labels, CheckLabels(DiskName(id), request.disk().labels()));
  {
    const StateLock lock(core_.mutex);
    core_.writes.Await({.changes = {DiskName(id)}});
    CLEAT_ASSIGN(auto existing, CheckNew(id, spec));
    if (existing != nullptr) {
      CLEAT_TRY(keys_.CompareKey(existing->row, key));
      if (existing->row.labels != labels) return AlreadyExistsWithOtherLabels(DiskName(id));
      return core_.view.Show(*existing);
    }
    storages_.SetBusy(id, {.storage = ClaimOfStorage(spec), .wwn = spec.wwn(), .doing = "created"});
  }
  pools_.AwaitOpen(spec);
  const auto prepared = storages_.Prepare(id, spec);
  DiskEntry entry;
  entry.row.id = id;
  entry.row.spec = std::move(spec);
  entry.row.labels = std::move(labels);
  auto made = [&] {
    const StateLock lock(core_.mutex);
    auto committed = Commit(std::move(entry), key, prepared);
    storages_.EndBusy(id);
    return committed;
  }();
  if (made.ok()) pools_.AwaitMap(made->spec());
  return made;
}

Result<DiskEntry*> Disks::CheckNew(const std::string& id, const v1::DiskSpec& spec) {
  const std::string name = DiskName(id);
  CLEAT_TRY(storages_.CheckNotBusy(id));
  if (DiskEntry* existing = core_.tables.disks.Find(id)) {
    if (existing->row.deleting) return Busy(name, name + " is still being removed");
    const v1::DiskSpec present = AsDeclared(existing->row.spec);
    const v1::DiskSpec wanted = AsDeclared(spec);
    if (SameSpec(present, wanted)) return existing;
    return AlreadyExists(name, present, wanted);
  }
  CLEAT_TRY(CheckRoom(id, spec));
  return nullptr;
}

Status Disks::CheckRoom(const std::string& id, const v1::DiskSpec& spec) {
  const std::string name = DiskName(id);
  if (core_.tables.disks.size() + storages_.busy() >= kDisksMax) {
    return RefuseFor(name, v1::REASON_TOO_MANY_RESOURCES,
                     fmt::format("{}: there are {} disks, which is the most: delete one", name, kDisksMax),
                     {{"limit", std::to_string(kDisksMax)}});
  }
  CLEAT_TRY(remote_.Check(id, spec));
  CLEAT_TRY(pools_.CheckPoolOf(id, spec));
  return storages_.CheckUnique(id, spec);
}

// The disk is busy, so that nobody else makes it.
Result<v1::Disk> Disks::Commit(DiskEntry entry, const std::optional<keys::Secret>& key,
                               const Result<DiskStorages::Identity>& prepared) {
  const std::string id = entry.row.id;
  CLEAT_TRY(prepared);
  CLEAT_TRY(storages_.CheckSameStorage(id, entry.row.spec, *prepared));
  const WriteNames names = NamesOf(entry.row);
  core_.writes.Await(names);
  // The cluster, the subsystem or the pool may have gone while the mutex was let go.
  CLEAT_TRY(remote_.Check(id, entry.row.spec));
  CLEAT_TRY(pools_.CheckPoolOf(id, entry.row.spec));
  const v1::DiskSpec unplaced = entry.row.spec;
  CLEAT_TRY(pools_.Place(id, entry.row.spec));
  // As may the key-encryption key.
  Status status = keys_.SetWrappedKey(id, key, &entry.row.spec);
  entry.row.revision = entry.row.intent_revision = core_.publisher.NextRevision();
  if (HasSettings(entry.row.spec)) entry.row.limits_revision = entry.row.revision;
  entry.status.set_state(v1::DISK_STATE_READY);
  if (status.ok()) status = core_.writes.Write(names, {entry.row});
  if (!status.ok()) {
    pools_.GiveBack(entry.row.spec, unplaced);
    storages_.Drop(id);
    return std::move(status).error();
  }
  const DiskEntry& kept = Add(std::move(entry));
  spdlog::info("{}: created: {} bytes", DiskName(id), kept.row.spec.size_bytes());
  return core_.view.Show(kept);
}

// ---- Reading

Result<v1::Disk> Disks::Get(const v1::GetDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const StateLock lock(core_.mutex);
  const DiskEntry* entry = core_.tables.disks.Find(id);
  if (entry == nullptr) return NotFound(request.name());
  return core_.view.Show(*entry);
}

Result<v1::ListDisksResponse> Disks::List(const v1::ListDisksRequest& request) {
  CLEAT_ASSIGN(auto page, Page::Of(request.page_size()));
  // "ID" after a disk that is there, "ID/REVISION" after one that is deleted; the former comes first.
  const std::string& token = request.page_token();
  const size_t slash = token.find('/');
  std::pair<std::string, uint64_t> last(token.substr(0, slash), 0);
  if (slash != std::string::npos) last.second = RevisionOfEtag(std::string_view(token).substr(slash + 1));

  v1::ListDisksResponse response;
  const StateLock lock(core_.mutex);
  const ResourceTable<DiskEntry>& disks = core_.tables.disks;
  const DeletedDisks::Rows& rows = core_.tables.deleted.rows();
  auto live = disks.After(last.first);
  auto deleted = request.show_deleted() ? rows.upper_bound(last) : rows.end();
  while (live != disks.end() || deleted != rows.end()) {
    const bool take_live =
        live != disks.end() && (deleted == rows.end() || live->first <= deleted->first.first);
    v1::Disk disk = take_live ? core_.view.Show(live->second) : core_.view.Show(deleted->second);
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

// ---- Updating: labels, the settings that change while it is attached, and disks that grow

Result<v1::Disk> Disks::Update(const v1::UpdateDiskRequest& request) {
  const std::string& name = request.disk().name();
  CLEAT_ASSIGN(auto id, ParseDiskName(name));
  const auto& mask = request.update_mask();
  CLEAT_TRY(CheckMask(name, mask, {kSizePath, kLimitsPath, kOnNoSpacePath, kInDoubtPath, kLabelsPath}));
  CLEAT_ASSIGN(auto labels, CheckLabels(name, request.disk().labels()));
  auto updated = [&] {
    const StateLock lock(core_.mutex);
    return UpdateLocked(id, request, std::move(labels));
  }();
  if (updated.ok() && Names(mask, kSizePath) && !PoolOf(updated->spec()).empty())
    TellWhenMapped(*updated, id);
  return updated;
}

void Disks::TellWhenMapped(const v1::Disk& disk, const std::string& id) {
  pools_.AwaitMap(disk.spec());
  const StateLock lock(core_.mutex);
  core_.publisher.DiskChanged(id);
}

Result<v1::Disk> Disks::UpdateLocked(const std::string& id, const v1::UpdateDiskRequest& request,
                                     Labels labels) {
  const auto& mask = request.update_mask();
  const WriteNames names{.changes = {DiskName(id)}};
  core_.writes.Await(names);
  CLEAT_ASSIGN(auto found, FindForUpdate(id, request.disk().etag()));
  DiskEntry& entry = *found;
  v1::DiskSpec asked = entry.row.spec;
  if (Names(mask, kSizePath)) asked.set_size_bytes(request.disk().spec().size_bytes());
  if (Names(mask, kLimitsPath)) *asked.mutable_limits() = request.disk().spec().limits();
  if (Names(mask, kOnNoSpacePath)) asked.set_on_no_space(request.disk().spec().on_no_space());
  if (Names(mask, kInDoubtPath)) *asked.mutable_in_doubt() = request.disk().spec().in_doubt();
  CLEAT_ASSIGN(auto spec, CompleteDiskSpec(id, asked));
  if (!Names(mask, kLabelsPath)) labels = entry.row.labels;
  const v1::DiskSpec& now = entry.row.spec;
  const bool grows = spec.size_bytes() != now.size_bytes();
  if (!grows && SameSettings(spec, now) && labels == entry.row.labels) return core_.view.Show(entry);
  if (!grows) {
    CLEAT_TRY(CommitUpdate(entry, names, spec, std::move(labels)));
    return core_.view.Show(entry);
  }
  CLEAT_TRY(CheckGrows(entry, spec));
  storages_.SetBusy(id, {.storage = {}, .wwn = spec.wwn(), .doing = "made larger"});
  Status status = GrowUnlocked(id, spec);
  WriteNames growing = names;
  if (!PoolOf(spec).empty()) growing.needs.insert(PoolOf(spec));
  core_.writes.Await(growing);  // meanwhile others may have begun to; a busy disk stays
  // The map on the pool's drive, open by now, may have had the disk as purged.
  if (status.ok() && !PoolOf(spec).empty()) status = CheckGrows(entry, spec);
  if (status.ok()) status = CommitUpdate(entry, growing, spec, std::move(labels));
  storages_.EndBusy(id);
  CLEAT_TRY(status);
  return core_.view.Show(entry);
}

Result<DiskEntry*> Disks::FindForUpdate(const std::string& id, const std::string& etag) {
  const std::string name = DiskName(id);
  CLEAT_TRY(storages_.CheckNotBusy(id));
  DiskEntry* entry = core_.tables.disks.Find(id);
  if (entry == nullptr) return NotFound(name);
  if (entry->row.deleting) return Busy(name, name + " is being removed");
  CLEAT_TRY(CheckEtag(name, etag, entry->row.intent_revision));
  return entry;
}

Status Disks::CheckGrows(const DiskEntry& entry, const v1::DiskSpec& spec) const {
  const std::string name = DiskName(entry.row.id);
  const uint64_t size_before = entry.row.spec.size_bytes();
  if (spec.size_bytes() < size_before) {
    return RefuseFor(name, v1::REASON_DISK_CANNOT_SHRINK,
                     fmt::format("{} has {} bytes, and can't shrink to {}: disks only grow", name,
                                 size_before, spec.size_bytes()),
                     {{"field", kSizePath}});
  }
  if (entry.status.state() == v1::DISK_STATE_LOST)
    return RefuseFor(name, v1::REASON_DISK_LOST, entry.status.message());
  return Ok{};
}

Status Disks::GrowUnlocked(const std::string& id, const v1::DiskSpec& spec) {
  const StateUnlock unlocked(core_.mutex);
  pools_.AwaitOpen(spec);
  return storages_.Grow(id, spec);
}

Status Disks::CommitUpdate(DiskEntry& entry, const WriteNames& names, const v1::DiskSpec& spec,
                           Labels labels) {
  DiskRow row = entry.row;
  const uint64_t size_before = row.spec.size_bytes();
  // Its image may have grown further meanwhile.
  const uint64_t size_bytes = std::max(spec.size_bytes(), size_before);
  const bool grown = size_bytes != size_before;
  const v1::DiskSpec before = row.spec;
  const bool set = !SameSettings(spec, before);
  // The engine that owns the disk, or will, makes the image larger.
  if (GrowsInEngine(spec) && grown && row.image_bytes == 0) row.image_bytes = size_before;
  row.spec.set_size_bytes(size_bytes);
  row.labels = std::move(labels);
  row.intent_revision = core_.publisher.NextRevision();
  CopySettings(spec, row.spec);
  if (set) row.limits_revision = row.intent_revision;
  CLEAT_TRY(WriteGrown(entry.row, names, row));
  if (grown) pools_.Leave(entry.row, PoolExtents::As::kDisk);
  entry.row = std::move(row);
  if (grown) pools_.Join(entry.row, PoolExtents::As::kDisk);
  core_.publisher.Publish(entry);
  const std::string name = DiskName(entry.row.id);
  if (set || (grown && PoolOf(spec).empty())) core_.publisher.DiskChanged(entry.row.id);
  LogSettings(name, before, spec);
  if (grown) spdlog::info("{}: size changed: {} bytes, had {}", name, size_bytes, size_before);
  return Ok{};
}

// The disk's pool is among the names if it has become larger.
Status Disks::WriteGrown(const DiskRow& before, const WriteNames& names, DiskRow& row) {
  CLEAT_TRY(pools_.Place(row.id, row.spec));
  Status written = core_.writes.Write(names, {row});
  if (!written.ok()) pools_.GiveBack(row.spec, before.spec);
  return written;
}

// ---- Deleting

Result<v1::DeleteDiskResponse> Disks::Delete(const v1::DeleteDiskRequest& request) {
  CLEAT_ASSIGN(auto id, ParseDiskName(request.name()));
  const std::string& name = request.name();
  const StateLock lock(core_.mutex);
  WriteNames names{.changes = {name, KeptName(id)}};
  core_.writes.Await(names);
  CLEAT_TRY(storages_.CheckNotBusy(id));
  DiskEntry* entry = core_.tables.disks.Find(id);
  if (entry != nullptr && !PoolOf(entry->row.spec).empty()) {
    AddPurge(entry->row, names);
    core_.writes.Await(names);
    CLEAT_TRY(storages_.CheckNotBusy(id));
    entry = core_.tables.disks.Find(id);
  }
  if (entry == nullptr || entry->row.deleting) return v1::DeleteDiskResponse();
  if (!NamesPurge(entry->row, names)) return Busy(name, name + " was made anew a moment ago");
  CLEAT_TRY(CheckEtag(name, request.etag(), entry->row.intent_revision));
  CLEAT_TRY(CheckNotAttached(name, *entry));
  CLEAT_TRY(CheckKeepDeleted(entry->row, request));

  std::optional<DeletedDiskRow> kept = WhatIsKept(entry->row, request);
  std::optional<DiskRow> tombstone = TombstoneOf(entry->row);
  std::vector<PoolRow> pools;
  if (!kept) pools = pools_.RowsWithout({entry->row});
  CLEAT_TRY(WriteDeletion(names, entry->row, tombstone, kept, pools));
  v1::DeleteDiskResponse response;
  if (kept) {
    *response.mutable_disk() = core_.view.Show(*kept);
    pools_.Join(kept->disk, PoolExtents::As::kDeleted);
    core_.tables.deleted.Put(std::move(*kept));
  }
  pools_.Purged(std::move(pools));
  if (tombstone) {
    entry->row = std::move(*tombstone);
    storages_.DropMemory(id);
    core_.publisher.Publish(*entry);
    core_.publisher.DiskChanged(id);
  } else {
    Drop(id);
  }
  spdlog::info("{}: deleted{}", name,
               response.has_disk() ? fmt::format(", kept as uid {}", response.disk().uid()) : "");
  return response;
}

// An engine may hold the disk's memory.
std::optional<DiskRow> Disks::TombstoneOf(const DiskRow& row) {
  if (row.held_by.empty()) return std::nullopt;
  DiskRow tombstone = row;
  tombstone.deleting = true;
  tombstone.intent_revision = core_.publisher.NextRevision();
  return tombstone;
}

Status Disks::WriteDeletion(const WriteNames& names, const DiskRow& row,
                            const std::optional<DiskRow>& tombstone,
                            const std::optional<DeletedDiskRow>& kept, const std::vector<PoolRow>& pools) {
  StoreChange change(pools.begin(), pools.end());
  if (tombstone) {
    change.emplace_back(*tombstone);
  } else {
    change.emplace_back(EraseDiskRow{row.id});
  }
  if (!kept)
    return row.spec.has_encryption() ? core_.writes.WriteAndCutLog(names, change)
                                     : core_.writes.Write(names, change);
  change.emplace_back(*kept);
  const RowUnderWay keeping(keeping_);
  return core_.writes.Write(names, change);
}

Status Disks::CheckKeepDeleted(const DiskRow& row, const v1::DeleteDiskRequest& request) const {
  const std::string& name = request.name();
  const bool kept = keeps_deleted() && !request.purge();
  if (request.spare_key() && row.spec.has_encryption() && !kept) {
    return KeyNotKept(name, request.purge() ? "the request purges it" : "this cleatd keeps no deleted disks");
  }
  if (!kept || core_.tables.deleted.size() + keeping_ < kDeletedDisksMax) return Ok{};
  return RefuseFor(
      name, v1::REASON_TOO_MANY_DELETED,
      fmt::format("{}: {} deleted disks are kept, which is the most: purge some (cleatctl disk list "
                  "--deleted, disk purge), or delete it with purge (disk delete --purge)",
                  name, kDeletedDisksMax),
      {{"limit", std::to_string(kDeletedDisksMax)}});
}

std::optional<DeletedDiskRow> Disks::WhatIsKept(const DiskRow& row, const v1::DeleteDiskRequest& request) {
  if (!keeps_deleted() || request.purge()) return std::nullopt;
  DeletedDiskRow kept{.disk = row, .delete_time_s = keep_.now_s(), .purge_time_s = 0};
  kept.purge_time_s = kept.delete_time_s + keep_.time_s;
  kept.disk.intent_revision = core_.publisher.NextRevision();
  // No engine and no process holds the memory of a deleted disk. That an engine has used a namespace stays known: what it left in doubt at
  // the target does not end with the disk.
  if (KeptMemoryOf(row.spec) != KeptMemory::kDoubtLog) kept.disk.reached_engine = false;
  kept.disk.held_by.clear();
  return kept;
}

Status Disks::CheckNotAttached(const std::string& name, const DiskEntry& entry) const {
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

void Disks::Drop(const std::string& id) {
  const DiskRow row = core_.tables.disks.At(id).row;
  storages_.Release(row);
  remote_.Leave(row);
  pools_.Leave(row, PoolExtents::As::kDisk);
  core_.tables.disks.Erase(id);
  core_.publisher.PublishGone(DiskName(id));
}

// ---- The reconciler's side

std::optional<DiskRow> Disks::Row(const std::string& id) {
  const StateLock lock(core_.mutex);
  const DiskEntry* entry = core_.tables.disks.Find(id);
  return entry == nullptr ? std::nullopt : std::optional<DiskRow>(entry->row);
}

std::vector<std::string> Disks::InMemory() {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.disks) {
    if (KeepsMemory(entry.row.spec)) ids.push_back(id);
  }
  return ids;
}

std::optional<DiskRow> Disks::MemoryRow(const std::string& id) {
  const StateLock lock(core_.mutex);
  const DiskEntry* entry = core_.tables.disks.Find(id);
  if (entry == nullptr || !KeepsMemory(entry->row.spec)) return std::nullopt;
  return entry->row;
}

bool Disks::IsFor(const std::string& disk_id, const std::string& engine) {
  const StateLock lock(core_.mutex);
  const DiskEntry* disk = core_.tables.disks.Find(disk_id);
  return disk != nullptr &&
         std::any_of(disk->attachments.begin(), disk->attachments.end(),
                     [&](const auto& attachment) CLEAT_REQUIRES(holds_state) {
                       const ControllerEntry* controller =
                           core_.tables.controllers.Find(ParseAttachmentName(attachment.first)->controller);
                       return controller != nullptr && core_.roles.IsFor(*controller, engine);
                     });
}

std::vector<std::string> Disks::ControllersWith(const std::string& disk_id) {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  const DiskEntry* entry = core_.tables.disks.Find(disk_id);
  if (entry == nullptr) return ids;
  for (const auto& [name, use] : entry->attachments) ids.push_back(ParseAttachmentName(name)->controller);
  return ids;
}

void Disks::Report(const std::string& id, v1::DiskState state, const std::string& message) {
  const StateLock lock(core_.mutex);
  DiskEntry* entry = core_.tables.disks.Find(id);
  if (entry == nullptr || (entry->status.state() == state && entry->status.message() == message)) return;
  entry->status.set_state(state);
  entry->status.set_message(message);
  core_.publisher.Publish(*entry);
}

Status Disks::RecordKept(const std::string& disk_id, const std::string& engine, bool kept) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {DiskName(disk_id)}};
  core_.writes.Await(names);
  DiskEntry* entry = core_.tables.disks.Find(disk_id);
  if (entry == nullptr || entry->row.held_by.contains(engine) == kept) return Ok{};
  DiskRow row = entry->row;
  if (kept) {
    row.held_by.insert(engine);
    row.reached_engine = true;
  } else {
    row.held_by.erase(engine);
  }
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  if (entry->row.deleting) core_.publisher.Publish(*entry);
  return Ok{};
}

Status Disks::Forget(const std::string& id) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {DiskName(id)}};
  core_.writes.Await(names);
  const DiskEntry* entry = core_.tables.disks.Find(id);
  if (entry == nullptr || !entry->row.deleting) return Ok{};
  CLEAT_TRY(core_.writes.Write(names, {EraseDiskRow{id}}));
  Drop(id);
  return Ok{};
}

void Disks::AdoptGrownSize(const std::string& id, uint64_t size_bytes) {
  const auto is_news = [&](const DiskEntry* entry) {
    return entry != nullptr && GrowsInEngine(entry->row.spec) && size_bytes > entry->row.spec.size_bytes() &&
           size_bytes <= kDiskBytesMax;
  };
  if (!is_news(core_.tables.disks.Find(id))) return;
  const WriteNames names{.changes = {DiskName(id)}};
  core_.writes.Await(names);
  DiskEntry* const entry = core_.tables.disks.Find(id);
  if (!is_news(entry)) return;
  DiskRow row = entry->row;
  row.spec.set_size_bytes(size_bytes);
  row.intent_revision = core_.publisher.NextRevision();
  if (auto status = core_.writes.Write(names, {row}); !status.ok()) {
    spdlog::error("{}: growth to {} bytes not stored: {}; see to the store's file system", DiskName(id),
                  size_bytes, status.error().message);
    return;
  }
  spdlog::info("{}: storage grew by itself: {} bytes, had {}", DiskName(id), size_bytes,
               entry->row.spec.size_bytes());
  entry->row = std::move(row);
  core_.publisher.Publish(*entry);
  core_.publisher.DiskChanged(id);
}

void Disks::AdoptImageSize(const std::string& id, uint64_t size_bytes) {
  const auto is_news = [&](const DiskEntry* entry) {
    return entry != nullptr && entry->row.image_bytes != 0 && size_bytes > entry->row.image_bytes;
  };
  if (!is_news(core_.tables.disks.Find(id))) return;
  const WriteNames names{.changes = {DiskName(id)}};
  core_.writes.Await(names);
  DiskEntry* const entry = core_.tables.disks.Find(id);
  if (!is_news(entry)) return;
  DiskRow row = entry->row;
  row.image_bytes = size_bytes < row.spec.size_bytes() ? size_bytes : 0;
  // Not stored, it is taken for smaller than it is: then nobody is told should somebody cut it off.
  if (auto status = core_.writes.Write(names, {row}); !status.ok()) {
    spdlog::warn("{}: image's size of {} bytes not stored: {}; see to the store's file system", DiskName(id),
                 size_bytes, status.error().message);
    return;
  }
  entry->row = std::move(row);
}

}  // namespace cleat::control
