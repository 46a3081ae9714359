// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/pool_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/state/pools/host_uid.h"
#include "control/state/pools/pool_extents.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// What whoever makes the store anew needs of a disk, beside its extents. Labels are left out, and all of it but the name where it is too long.
std::string DescriptionOf(const DiskRow& row) {
  v1::Disk disk;
  disk.set_name(DiskName(row.id));
  *disk.mutable_spec() = AsDeclared(row.spec);
  std::string description = disk.SerializeAsString();
  if (description.size() <= pool::kDescriptionBytesMax) return description;
  disk.clear_spec();
  return disk.SerializeAsString();
}

}  // namespace

template <typename Visit>
void PoolWork::ForEachDisk(const PoolEntry& entry, Visit visit) const {
  for (const std::string& id : entry.disks) visit(core_.tables.disks.At(id).row, false);
  const std::string name = PoolName(entry.row.id);
  for (const auto& [key, row] : core_.tables.deleted.rows()) {
    if (PoolOf(row.disk.spec) == name) visit(row.disk, true);
  }
}

const pool::MapDisk* PoolWork::FindIn(const pool::Map& map, const DiskRow& row) const {
  const uint64_t identity = core_.view.IdentityOf(row).value();
  const auto found = std::find_if(map.disks.begin(), map.disks.end(),
                                  [&](const pool::MapDisk& disk) { return disk.identity == identity; });
  return found == map.disks.end() ? nullptr : &*found;
}

PoolEntry* PoolWork::Find(const Key& key) const {
  PoolEntry* const entry = core_.tables.pools.Find(key.id);
  return entry == nullptr || entry->row.uid != key.uid ? nullptr : entry;
}

// ---- Which pools there are

std::vector<std::string> PoolWork::Ids() {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.pools) ids.push_back(id);
  return ids;
}

std::optional<PoolWork::DriveInfo> PoolWork::DriveOf(const std::string& id) {
  const StateLock lock(core_.mutex);
  const PoolEntry* const entry = core_.tables.pools.Find(id);
  if (entry == nullptr) return std::nullopt;
  const PoolRow& row = entry->row;
  return DriveInfo{.key = {id, row.uid},
                   .device = row.spec.device(),
                   .label = {.pool = row.uid,
                             .host = HostUid(),
                             .extent_bytes = row.spec.extent_bytes(),
                             .extents = row.extents,
                             .name = row.id},
                   .labelled = row.labelled};
}

std::unique_ptr<HostDrive> PoolWork::TakeOpened(const Key& key) {
  const StateLock lock(core_.mutex);
  if (Find(key) == nullptr) return nullptr;
  auto opened = signals_.opened.extract(key.id);
  return opened.empty() ? nullptr : std::move(opened.mapped());
}

Result<UniqueFd> PoolWork::FindDrive(const DriveInfo& info) const {
  return core_.paths->FindStoredDisk(info.device,
                                     fmt::format("{}: device '{}'", PoolName(info.key.id), info.device));
}

// ---- What has become of the drive

Status PoolWork::Labelled(const Key& key) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {PoolName(key.id)}};
  core_.writes.Await(names);
  PoolEntry* const entry = Find(key);
  if (entry == nullptr || entry->row.labelled) return Ok{};
  PoolRow row = entry->row;
  row.labelled = true;
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  return Ok{};
}

Result<PoolWork::Work> PoolWork::Opened(const Key& key, const Found& found) {
  const StateLock lock(core_.mutex);
  const std::optional<pool::Map>& map = found.map;
  const LostRevisions* const lost = FindLost(map);
  const WriteNames names{.changes = {PoolName(key.id)}, .needs = {}, .everything = lost != nullptr};
  core_.writes.Await(names);
  PoolEntry* const entry = Find(key);
  if (entry == nullptr) return Work{};
  entry->map_found = map ? map->generation : 0;
  const bool takes_over = lost == nullptr && IsAnotherHosts(found.host);
  Status is_ours;
  if (map) is_ours = CheckNotNewer(*entry, *map);
  if (is_ours.ok() && map && lost == nullptr) is_ours = CheckKnowsAll(*entry, *map);
  if (is_ours.ok() && takes_over) is_ours = CheckHasAll(*entry, map);
  entry->used_elsewhere = !is_ours.ok();
  CLEAT_TRY(is_ours);
  if (lost != nullptr) CLEAT_TRY(Reconcile(*entry, *map, lost->until, names));
  if (takes_over) CLEAT_TRY(TakeOver(*entry, names));
  entry->identity = found.identity;
  signals_.MapChanged(*entry);
  return Work{.map = MapOf(*entry), .changes = entry->map_changes, .to_erase = {}};
}

void PoolWork::Ready(const Key& key, uint64_t changes) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = Find(key);
  if (entry == nullptr) return;
  entry->free = FreeOf(*entry);
  entry->opened = true;
  entry->map_changes_written = changes;
  entry->state = v1::POOL_STATE_READY;
  entry->message.clear();
  core_.publisher.Publish(*entry);
  signals_.map_written.NotifyAll();
}

void PoolWork::Failed(const Key& key, const std::string& message) {
  const StateLock lock(core_.mutex);
  (void)SetState(Find(key), v1::POOL_STATE_FAILED, message);
  signals_.map_written.NotifyAll();  // nobody waits for it any longer
}

bool PoolWork::NotAnswering(const std::string& id, const std::string& message) {
  const StateLock lock(core_.mutex);
  return SetState(core_.tables.pools.Find(id), v1::POOL_STATE_NOT_ANSWERING, message);
}

void PoolWork::SetNote(const Key& key, const std::string& message) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = Find(key);
  if (entry != nullptr) (void)SetState(entry, entry->state, message);
}

// Whether it is another one than before.
bool PoolWork::SetState(PoolEntry* entry, v1::PoolState state, const std::string& message) {
  if (entry == nullptr || (entry->state == state && entry->message == message)) return false;
  entry->state = state;
  entry->message = message;
  core_.publisher.Publish(*entry);
  return true;
}

void PoolWork::SetHealth(const Key& key, v1::DriveHealth health) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = Find(key);
  if (entry == nullptr) return;
  const std::string warnings = fmt::format("{}", fmt::join(health.warnings(), "; "));
  const KnownHealth::News news = entry->health.Take(std::move(health));
  if (news.warnings_changed && !warnings.empty()) {
    spdlog::warn("{}: drive warns: {}; see cleatctl pool get", PoolName(key.id), warnings);
  } else if (news.warnings_changed) {
    spdlog::info("{}: drive warns no more", PoolName(key.id));
  }
  if (news.to_tell) core_.publisher.Publish(*entry);
}

void PoolWork::MapWritten(const Key& key, uint64_t changes) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = Find(key);
  if (entry == nullptr) return;
  entry->map_changes_written = changes;
  signals_.map_written.NotifyAll();
}

Status PoolWork::Erased(const Key& key, uint32_t extent) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {PoolName(key.id)}};
  core_.writes.Await(names);
  PoolEntry* const entry = Find(key);
  if (entry == nullptr) return Ok{};
  pool::ExtentSet to_erase;
  to_erase.Add(entry->row.to_erase);
  if (!to_erase.HasAll({extent, 1})) return Ok{};
  to_erase.Remove(pool::ExtentRun{extent, 1});
  PoolRow row = entry->row;
  row.to_erase = to_erase.Runs();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  entry->free.Add(pool::ExtentRun{extent, 1});
  if (entry->row.to_erase.empty()) spdlog::info("{}: erased: nothing is left to be erased", PoolName(key.id));
  core_.publisher.Publish(*entry);
  return Ok{};
}

// ---- A drive that was used with another store since

namespace {

Error OfAnotherStore(const PoolEntry& entry, const std::string& what) {
  const std::string& device = entry.row.spec.device();
  return {ErrorCode::kFailedPrecondition,
          fmt::format(
              "{}: {} {}: the drive was used with another store since. Where this store is older, restore "
              "a backup with cleatctl, which knows of that (docs/local-nvme.md, \"A drive that another "
              "store has used\")",
              PoolName(entry.row.id), device, what)};
}

}  // namespace

Status PoolWork::CheckNotNewer(const PoolEntry& entry, const pool::Map& map) const {
  if (map.generation <= core_.publisher.newest()) return Ok{};
  return OfAnotherStore(entry, "has a map that is newer than the store");
}

// What this store has purged is to be erased as long as the drive's map has it: the next map comes before the first erasure.
Status PoolWork::CheckKnowsAll(const PoolEntry& entry, const pool::Map& map) const {
  std::map<uint64_t, pool::ExtentRuns>
      known;  // by identity: what the store has of it; nothing: the disk is lost
  ForEachDisk(entry, [&](const DiskRow& row, bool /*deleted*/) CLEAT_REQUIRES(holds_state) {
    known[core_.view.IdentityOf(row).value()] = pool::Joined(ExtentsOf(row.spec));
  });
  for (const pool::MapDisk& disk : entry.row.unknown) known[disk.identity] = pool::Joined(disk.extents);
  pool::ExtentSet to_erase;
  to_erase.Add(entry.row.to_erase);
  const auto is_purged = [&](const pool::MapDisk& disk) {
    return std::all_of(disk.extents.begin(), disk.extents.end(),
                       [&](const pool::ExtentRun& run) { return to_erase.HasAll(run); });
  };
  for (const pool::MapDisk& disk : map.disks) {
    const auto found = known.find(disk.identity);
    if (found == known.end() && !is_purged(disk)) {
      return OfAnotherStore(
          entry,
          fmt::format("has a disk ({:016x}) that the store neither has nor has purged", disk.identity));
    }
    if (found == known.end() || found->second.empty()) continue;
    const pool::ExtentRuns on_drive = pool::Joined(disk.extents);
    if (!pool::BeginsWith(found->second, on_drive) && !pool::BeginsWith(on_drive, found->second)) {
      return OfAnotherStore(
          entry, fmt::format("has a disk ({:016x}) elsewhere than the store has it", disk.identity));
    }
  }
  return Ok{};
}

// A drive under another host's label is this store's where it has each disk as the store does.
Status PoolWork::CheckHasAll(const PoolEntry& entry, const std::optional<pool::Map>& map) const {
  bool has_all = true;
  ForEachDisk(entry, [&](const DiskRow& row, bool /*deleted*/) CLEAT_REQUIRES(holds_state) {
    if (WhyLost(row.spec)) return;
    const pool::MapDisk* const found = map ? FindIn(*map, row) : nullptr;
    has_all =
        has_all && found != nullptr && pool::Joined(found->extents) == pool::Joined(ExtentsOf(row.spec));
  });
  if (has_all) return Ok{};
  return OfAnotherStore(entry,
                        "has another host's label, and not all of the store's disks as the store has them");
}

// This host has another number than when the pool was made, as after it was installed anew, or the drive was in another one.
Status PoolWork::TakeOver(PoolEntry& entry, const WriteNames& names) {
  pool::ExtentSet rest;
  rest.Add(pool::ExtentRun{0, entry.row.extents});
  ForEachDisk(entry, [&](const DiskRow& row, bool /*deleted*/) { rest.Remove(ExtentsOf(row.spec)); });
  for (const pool::MapDisk& unknown : entry.row.unknown) rest.Remove(unknown.extents);
  PoolRow row = entry.row;
  row.to_erase = rest.Runs();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry.row = std::move(row);
  spdlog::warn("{}: label of another host on {}: what no disk has is erased again", PoolName(entry.row.id),
               entry.row.spec.device());
  return Ok{};
}

// ---- After the store was restored

// What a store hands out and loses when it is restored, it knows. A map's generation is a revision.
const LostRevisions* PoolWork::FindLost(const std::optional<pool::Map>& map) const {
  if (!map) return nullptr;
  const auto found =
      std::find_if(core_.tables.lost.begin(), core_.tables.lost.end(), [&](const LostRevisions& lost) {
        return map->generation >= lost.first && map->generation < lost.until;
      });
  return found == core_.tables.lost.end() ? nullptr : &*found;
}

// The drive is right about whose an extent is: the store has missed what happened since its backup. Only disks that were made since it was
// restored, from revision `known_from` on, it knows better: a crash may have come before the map.
DiskRow PoolWork::AsOnDrive(const PoolEntry& entry, const DiskRow& row, const pool::Map& map,
                            uint64_t known_from) const {
  DiskRow now = row;
  if (row.revision >= known_from) return now;
  const pool::ExtentRuns present = ExtentsOf(row.spec);
  const pool::MapDisk* const found = FindIn(map, row);
  const bool has_fewer = found != nullptr && pool::CountOf(found->extents) < pool::CountOf(present);
  const bool keeps = found != nullptr && !present.empty() &&
                     (!has_fewer || pool::BeginsWith(pool::Joined(present), pool::Joined(found->extents)));
  SetExtents(keeps ? found->extents : pool::ExtentRuns(), now.spec);
  // The disk grew, and the drive has no map with that: so no guest has seen the growth, unless the drive has lost its newer map. The disk keeps
  // its former extents, and all of their bytes; nobody knows what is in the others.
  if (keeps && has_fewer)
    now.spec.set_size_bytes(pool::CountOf(found->extents) * entry.row.spec.extent_bytes());
  return now;
}

Status PoolWork::Reconcile(PoolEntry& entry, const pool::Map& map, uint64_t known_from,
                           const WriteNames& names) {
  pool::ExtentSet rest;  // of which nobody knows what is in it
  rest.Add(pool::ExtentRun{0, entry.row.extents});
  std::set<uint64_t> known;
  StoreChange change;
  ForEachDisk(entry, [&](const DiskRow& row, bool deleted) CLEAT_REQUIRES(holds_state) {
    known.insert(core_.view.IdentityOf(row).value());
    DiskRow now = AsOnDrive(entry, row, map, known_from);
    const pool::ExtentRuns runs = ExtentsOf(now.spec);
    rest.Remove(runs);
    if (runs == ExtentsOf(row.spec)) return;
    if (deleted) {
      DeletedDiskRow changed = *core_.tables.deleted.Find(row.id, row.revision);
      changed.disk = std::move(now);
      change.emplace_back(std::move(changed));
    } else {
      change.emplace_back(std::move(now));
    }
  });
  PoolRow row = entry.row;
  row.unknown.clear();
  for (const pool::MapDisk& disk : map.disks) {
    if (known.contains(disk.identity)) continue;
    row.unknown.push_back(disk);
    rest.Remove(disk.extents);
  }
  row.to_erase = rest.Runs();
  spdlog::warn(
      "{}: map newer than the restored store: {} extents are erased again, {} disks that the store does not "
      "know keep theirs, {} disks have others or none",
      PoolName(row.id), rest.count(), row.unknown.size(), change.size());
  change.emplace_back(std::move(row));
  CLEAT_TRY(core_.writes.Write(names, change));
  Adopt(entry, change);
  return Ok{};
}

namespace {

void WarnOfShrinking(const DiskRow& before, const DiskRow& now) {
  if (now.spec.size_bytes() >= before.spec.size_bytes()) return;
  spdlog::warn("{}: growth undone: has {} bytes again, not {}: {} never had more of it on its drive",
               DiskName(now.id), now.spec.size_bytes(), before.spec.size_bytes(), PoolOf(now.spec));
}

}  // namespace

void PoolWork::Adopt(PoolEntry& entry, StoreChange& change) {
  for (RowChange& changed : change) {
    if (auto* const pool = std::get_if<PoolRow>(&changed)) {
      entry.row = std::move(*pool);
    } else if (auto* const deleted = std::get_if<DeletedDiskRow>(&changed)) {
      const DiskRow& now = deleted->disk;
      WarnOfShrinking(core_.tables.deleted.Find(now.id, now.revision)->disk, now);
      core_.tables.deleted.Put(std::move(*deleted));
    } else {
      auto& row = std::get<DiskRow>(changed);
      DiskEntry& disk = core_.tables.disks.At(row.id);
      WarnOfShrinking(disk.row, row);
      disk.row = std::move(row);
      SetLost(disk);
      core_.publisher.Publish(disk);
    }
  }
  entry.of_disks = entry.of_deleted = 0;
  ForEachDisk(entry, [&](const DiskRow& row, bool deleted) {
    (deleted ? entry.of_deleted : entry.of_disks) += pool::CountOf(ExtentsOf(row.spec));
  });
}

// ---- What it is to be given

pool::ExtentSet PoolWork::FreeOf(const PoolEntry& entry) const {
  pool::ExtentSet free;
  free.Add(pool::ExtentRun{0, entry.row.extents});
  free.Remove(entry.row.to_erase);
  ForEachDisk(entry, [&](const DiskRow& row, bool /*deleted*/) { free.Remove(ExtentsOf(row.spec)); });
  for (const pool::MapDisk& unknown : entry.row.unknown) free.Remove(unknown.extents);
  return free;
}

PoolWork::Work PoolWork::NextWork(const Key& key, uint32_t from) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = Find(key);
  Work work;
  if (entry == nullptr || !entry->opened) return work;
  if (entry->state == v1::POOL_STATE_NOT_ANSWERING)  // who asks has an answer from the drive
    (void)SetState(entry, v1::POOL_STATE_READY, {});
  if (entry->map_changes > entry->map_changes_written) {
    work.map = MapOf(*entry);
    work.changes = entry->map_changes;
    return work;
  }
  for (const pool::ExtentRun& run : entry->row.to_erase) {
    if (run.end() <= from) continue;
    work.to_erase = std::max(run.first, from);
    break;
  }
  return work;
}

pool::Map PoolWork::MapOf(const PoolEntry& entry) const {
  pool::Map map{.pool = entry.row.uid, .generation = core_.publisher.newest(), .disks = entry.row.unknown};
  ForEachDisk(entry, [&](const DiskRow& row, bool deleted) CLEAT_REQUIRES(holds_state) {
    if (WhyLost(row.spec)) return;
    map.disks.push_back({.identity = core_.view.IdentityOf(row).value(),
                         .deleted = deleted,
                         .extents = ExtentsOf(row.spec),
                         .description = DescriptionOf(row)});
  });
  return map;
}

}  // namespace cleat::control
