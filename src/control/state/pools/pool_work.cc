// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/pool_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

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
  *disk.mutable_spec() = WithoutKey(row.spec);
  disk.mutable_spec()->mutable_pool()->clear_extents();
  std::string description = disk.SerializeAsString();
  if (description.size() <= pool::kDescriptionBytesMax) return description;
  disk.clear_spec();
  return disk.SerializeAsString();
}

std::string NameIn(const pool::MapDisk& disk) {
  v1::Disk described;
  const bool parsed = described.ParseFromString(disk.description) && ParseDiskName(described.name()).ok();
  return parsed ? described.name() : fmt::format("uid {:016x}", disk.identity);
}

bool Overlap(const pool::ExtentRuns& a, const pool::ExtentRuns& b) {
  pool::ExtentSet set;
  set.Add(a);
  return !std::all_of(b.begin(), b.end(), [&](const pool::ExtentRun& run) { return set.IsFree(run); });
}

// Removes those of `runs` that are in the set.
void RemoveAny(const pool::ExtentRuns& runs, pool::ExtentSet& set) {
  for (const pool::ExtentRun& run : runs) {
    for (uint32_t extent = run.first; extent < run.end(); ++extent) {
      if (set.HasAll({extent, 1})) set.Remove({extent, 1});
    }
  }
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
  return DriveInfo{.device = row.spec.device(),
                   .label = {.pool = row.uid,
                             .host = HostUid(),
                             .extent_bytes = row.spec.extent_bytes(),
                             .extents = row.extents,
                             .name = row.id},
                   .labelled = row.labelled};
}

Result<PoolWork::OpenedDrive> PoolWork::OpenDrive(const std::string& id, const std::string& device) {
  {
    const StateLock lock(core_.mutex);
    if (auto opened = signals_.opened.extract(id); !opened.empty())
      return OpenedDrive{.drive = std::move(opened.mapped()), .to_be_labelled = true};
  }
  CLEAT_ASSIGN(const auto found,
               core_.paths->FindStoredDisk(device, fmt::format("{}: device '{}'", PoolName(id), device)));
  CLEAT_ASSIGN(auto drive, BlockDrive::Open(found, device));
  return OpenedDrive{.drive = std::move(drive)};
}

// ---- What has become of the drive

Status PoolWork::Labelled(const std::string& id) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {PoolName(id)}};
  core_.writes.Await(names);
  PoolEntry* const entry = core_.tables.pools.Find(id);
  if (entry == nullptr || entry->row.labelled) return Ok{};
  PoolRow row = entry->row;
  row.labelled = true;
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  return Ok{};
}

Status PoolWork::Opened(const std::string& id, const std::optional<pool::Map>& map) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {PoolName(id)}};
  core_.writes.Await(names);
  PoolEntry* const entry = core_.tables.pools.Find(id);
  if (entry == nullptr) return Ok{};
  const std::string name = PoolName(id);
  if (map && map->generation > core_.publisher.newest()) {
    return Error(
        ErrorCode::kFailedPrecondition,
        fmt::format("{}: the map on {} is newer than the store: an older store was put in its place. "
                    "Restore a backup with cleatctl (docs/operations.md), which knows of that",
                    name, entry->row.spec.device()));
  }
  const Compared compared = map ? Compare(*entry, *map) : Compared();
  entry->unknown = compared.unknown;
  if (compared.older) {
    CLEAT_TRY(EraseTheRest(*entry, names));
  }
  entry->free = FreeOf(*entry);
  entry->map_written = map ? map->generation : 0;
  entry->opened = true;
  entry->state = v1::POOL_STATE_READY;
  entry->message.clear();
  signals_.MapChanged(core_, *entry);
  core_.publisher.Publish(*entry);
  return Ok{};
}

PoolWork::Compared PoolWork::Compare(const PoolEntry& entry, const pool::Map& map) const {
  std::map<uint64_t, pool::ExtentRuns> known;  // by identity
  ForEachDisk(entry, [&](const DiskRow& row, bool /*deleted*/) {
    known.emplace(core_.view.IdentityOf(row).value(), ExtentsOf(row.spec));
  });
  Compared compared;
  // What a store hands out and loses when it is restored, it knows (LostRevisions).
  compared.older = std::any_of(core_.tables.lost.begin(), core_.tables.lost.end(), [&](const auto& lost) {
    return map.generation >= lost.first && map.generation < lost.until;
  });
  pool::ExtentSet to_erase;
  to_erase.Add(entry.row.to_erase);
  for (const pool::MapDisk& disk : map.disks) {
    if (known.contains(disk.identity)) continue;
    const bool purged = std::all_of(disk.extents.begin(), disk.extents.end(),
                                    [&](const pool::ExtentRun& run) { return to_erase.HasAll(run); });
    if (!purged) compared.unknown.push_back({disk, NameIn(disk)});
  }
  compared.older = compared.older || !compared.unknown.empty();
  return compared;
}

pool::ExtentSet PoolWork::FreeOf(const PoolEntry& entry) const {
  pool::ExtentSet free;
  free.Add({0, entry.row.extents});
  free.Remove(entry.row.to_erase);
  ForEachDisk(entry, [&](const DiskRow& row, bool /*deleted*/) { free.Remove(ExtentsOf(row.spec)); });
  for (const UnknownPoolDisk& unknown : entry.unknown) RemoveAny(unknown.disk.extents, free);
  return free;
}

Status PoolWork::EraseTheRest(PoolEntry& entry, const WriteNames& names) {
  PoolRow row = entry.row;
  pool::ExtentSet rest = FreeOf(entry);
  rest.Add(row.to_erase);
  for (const UnknownPoolDisk& unknown : entry.unknown) RemoveAny(unknown.disk.extents, rest);
  row.to_erase = rest.Runs();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  spdlog::warn(
      "{}: map newer than the restored store: {} extents are erased again, {} disks that the store does not "
      "know keep "
      "theirs",
      PoolName(row.id), rest.count(), entry.unknown.size());
  entry.row = std::move(row);
  return Ok{};
}

void PoolWork::Failed(const std::string& id, const std::string& message) {
  (void)SetState(id, v1::POOL_STATE_FAILED, message);
}

bool PoolWork::NotAnswering(const std::string& id, const std::string& message) {
  return SetState(id, v1::POOL_STATE_NOT_ANSWERING, message);
}

// Whether it is another one than before.
bool PoolWork::SetState(const std::string& id, v1::PoolState state, const std::string& message) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = core_.tables.pools.Find(id);
  if (entry == nullptr || (entry->state == state && entry->message == message)) return false;
  entry->state = state;
  entry->message = message;
  core_.publisher.Publish(*entry);
  return true;
}

void PoolWork::MapWritten(const std::string& id, uint64_t generation) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = core_.tables.pools.Find(id);
  if (entry == nullptr) return;
  entry->map_written = generation;
  signals_.map_written.NotifyAll();
}

Status PoolWork::Erased(const std::string& id, uint32_t extent) {
  const StateLock lock(core_.mutex);
  const WriteNames names{.changes = {PoolName(id)}};
  core_.writes.Await(names);
  PoolEntry* const entry = core_.tables.pools.Find(id);
  if (entry == nullptr) return Ok{};
  pool::ExtentSet to_erase;
  to_erase.Add(entry->row.to_erase);
  if (!to_erase.HasAll({extent, 1})) return Ok{};
  to_erase.Remove({extent, 1});
  PoolRow row = entry->row;
  row.to_erase = to_erase.Runs();
  CLEAT_TRY(core_.writes.Write(names, {row}));
  entry->row = std::move(row);
  entry->free.Add({extent, 1});
  if (entry->row.to_erase.empty()) spdlog::info("{}: erased: nothing is left to be erased", PoolName(id));
  core_.publisher.Publish(*entry);
  return Ok{};
}

// ---- What it is to be given

PoolWork::Work PoolWork::NextWork(const std::string& id, const std::set<uint32_t>& not_now) {
  const StateLock lock(core_.mutex);
  PoolEntry* const entry = core_.tables.pools.Find(id);
  Work work;
  if (entry == nullptr || !entry->opened) return work;
  if (entry->state == v1::POOL_STATE_NOT_ANSWERING) {  // who asks has an answer from the drive
    entry->state = v1::POOL_STATE_READY;
    entry->message.clear();
    core_.publisher.Publish(*entry);
  }
  if (entry->map_wanted > entry->map_written) {
    work.map = MapOf(*entry);
    return work;
  }
  for (const pool::ExtentRun& run : entry->row.to_erase) {
    for (uint32_t extent = run.first; extent < run.end() && !work.to_erase; ++extent) {
      if (!not_now.contains(extent)) work.to_erase = extent;
    }
  }
  return work;
}

// An unknown disk keeps its extents, so that a disk of the restored store that had them before has them in vain: no engine attaches it.
pool::Map PoolWork::MapOf(const PoolEntry& entry) const {
  pool::Map map{.pool = entry.row.uid, .generation = entry.map_wanted, .disks = {}};
  for (const UnknownPoolDisk& unknown : entry.unknown) map.disks.push_back(unknown.disk);
  const size_t unknown = map.disks.size();
  ForEachDisk(entry, [&](const DiskRow& row, bool deleted) {
    pool::MapDisk disk{.identity = core_.view.IdentityOf(row).value(),
                       .deleted = deleted,
                       .extents = ExtentsOf(row.spec),
                       .description = DescriptionOf(row)};
    const auto taken = [&](const pool::MapDisk& other) { return Overlap(other.extents, disk.extents); };
    if (std::none_of(map.disks.begin(), map.disks.begin() + static_cast<ptrdiff_t>(unknown), taken))
      map.disks.push_back(std::move(disk));
  });
  return map;
}

}  // namespace cleat::control
