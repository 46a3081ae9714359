// SPDX-License-Identifier: Apache-2.0
#include "control/state/pools/pool_extents.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <utility>

#include "control/model/errors.h"
#include "control/model/names.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

uint64_t& CountAs(PoolEntry& entry, PoolExtents::As as) {
  return as == PoolExtents::As::kDisk ? entry.of_disks : entry.of_deleted;
}

}  // namespace

std::string StorageName(const std::string& path) {
  return "storage " + path;
}

void SetLost(DiskEntry& entry) {
  const auto why = WhyLost(entry.row.spec);
  if (!why) return;
  entry.status.set_state(v1::DISK_STATE_LOST);
  entry.status.set_message(*why);
}

PoolEntry* PoolExtents::EntryOf(const v1::DiskSpec& spec) const {
  const std::string& name = PoolOf(spec);
  return name.empty() ? nullptr : core_.tables.pools.Find(*ParsePoolName(name));
}

Status PoolExtents::CheckPoolOf(const std::string& disk_id, const v1::DiskSpec& spec) const {
  const std::string disk = DiskName(disk_id);
  if (const std::string& file = FileOf(spec); !file.empty()) {
    for (const auto& [id, entry] : core_.tables.pools) {
      if (entry.row.spec.device() != file) continue;
      return RefuseFor(disk, v1::REASON_FILE_TAKEN,
                       fmt::format("{}: '{}' is the drive of {}: make the disk in that pool (--pool {})",
                                   disk, file, PoolName(id), id),
                       {{"conflict", PoolName(id)}});
    }
  }
  const std::string& pool = PoolOf(spec);
  if (pool.empty() || EntryOf(spec) != nullptr) return Ok{};
  return RefuseFor(pool, v1::REASON_RESOURCE_NOT_FOUND,
                   fmt::format("{}: {} does not exist: create it first (cleatctl pool create)", disk, pool));
}

// ---- Before a disk's row

Status PoolExtents::Place(const std::string& disk_id, v1::DiskSpec& spec) {
  PoolEntry* const entry = EntryOf(spec);
  if (entry == nullptr) return Ok{};
  const uint64_t extent_bytes = entry->row.spec.extent_bytes();
  const uint64_t all = (spec.size_bytes() + extent_bytes - 1) / extent_bytes;
  const uint64_t present = pool::CountOf(ExtentsOf(spec));
  if (all <= present) return Ok{};
  const uint64_t wanted = all - present;
  if (entry->state != v1::POOL_STATE_READY || wanted > entry->free.count()) {
    // A drive that had failed is tried now.
    if (entry->state != v1::POOL_STATE_READY) signals_.wake(entry->row.id);
    return NoRoom(disk_id, *entry, wanted);
  }
  pool::ExtentRuns runs = ExtentsOf(spec);
  const pool::ExtentRuns taken = *entry->free.Take(static_cast<uint32_t>(wanted));
  runs.insert(runs.end(), taken.begin(), taken.end());
  SetExtents(runs, spec);
  return Ok{};
}

Error PoolExtents::NoRoom(const std::string& disk_id, const PoolEntry& entry, uint64_t wanted) const {
  const std::string disk = DiskName(disk_id);
  const std::string pool = PoolName(entry.row.id);
  const uint64_t extent_bytes = entry.row.spec.extent_bytes();
  const uint64_t to_erase = pool::CountOf(entry.row.to_erase);
  const Metadata metadata{{"pool", pool}};
  if (entry.state != v1::POOL_STATE_READY) {
    return RefuseFor(disk, v1::REASON_POOL_NOT_READY,
                     fmt::format("{}: the drive of {} can't be reached now{}{}: try again later", disk, pool,
                                 entry.message.empty() ? "" : ": ", entry.message),
                     metadata);
  }
  const std::string needs =
      fmt::format("{}: {} bytes more are needed in {}, in extents of {}: {} are free", disk,
                  wanted * extent_bytes, pool, extent_bytes, entry.free.count() * extent_bytes);
  if (entry.free.count() + to_erase >= wanted) {
    return RefuseFor(disk, v1::REASON_POOL_NOT_READY,
                     fmt::format("{}, {} are being erased: try again later (cleatctl pool get {})", needs,
                                 to_erase * extent_bytes, entry.row.id),
                     metadata);
  }
  return RefuseFor(disk, v1::REASON_POOL_FULL,
                   fmt::format("{}, {} are deleted disks' (cleatctl disk list --deleted, disk purge)", needs,
                               entry.of_deleted * extent_bytes),
                   metadata);
}

void PoolExtents::GiveBack(const v1::DiskSpec& placed, const v1::DiskSpec& before) {
  PoolEntry* const entry = EntryOf(placed);
  if (entry == nullptr) return;
  for (int i = before.pool().extents_size(); i < placed.pool().extents_size(); ++i)
    entry->free.Add({placed.pool().extents(i).first(), placed.pool().extents(i).count()});
}

// ---- With it

void PoolExtents::Join(const DiskRow& row, As as) {
  PoolEntry* const entry = EntryOf(row.spec);
  if (entry == nullptr) return;
  CountAs(*entry, as) += pool::CountOf(ExtentsOf(row.spec));
  if (as == As::kDisk) entry->disks.insert(row.id);
  signals_.MapChanged(*entry);
  core_.publisher.Publish(*entry);
}

void PoolExtents::Leave(const DiskRow& row, As as) {
  PoolEntry* const entry = EntryOf(row.spec);
  if (entry == nullptr) return;
  CountAs(*entry, as) -= pool::CountOf(ExtentsOf(row.spec));
  if (as == As::kDisk) entry->disks.erase(row.id);
  signals_.MapChanged(*entry);
  core_.publisher.Publish(*entry);
}

// ---- After it

std::vector<PoolRow> PoolExtents::RowsWithout(const std::vector<DiskRow>& disks) const {
  std::map<std::string, pool::ExtentSet> to_erase;  // by pool
  for (const DiskRow& disk : disks) {
    const PoolEntry* const entry = EntryOf(disk.spec);
    if (entry == nullptr) continue;
    const auto [place, first] = to_erase.try_emplace(entry->row.id);
    if (first) place->second.Add(entry->row.to_erase);
    place->second.Add(ExtentsOf(disk.spec));
  }
  std::vector<PoolRow> rows;
  for (const auto& [id, extents] : to_erase) {
    PoolRow& row = rows.emplace_back(core_.tables.pools.At(id).row);
    row.to_erase = extents.Runs();
  }
  return rows;
}

void PoolExtents::Purged(std::vector<PoolRow> rows) {
  for (PoolRow& row : rows) {
    PoolEntry& entry = core_.tables.pools.At(row.id);
    entry.row = std::move(row);
    signals_.MapChanged(entry);
    core_.publisher.Publish(entry);
  }
}

void PoolExtents::AwaitOpen(const v1::DiskSpec& spec) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kMapWaitMs);
  const StateLock lock(core_.mutex);
  const PoolEntry* entry = EntryOf(spec);
  while (entry != nullptr && entry->state == v1::POOL_STATE_OPENING &&
         core_.publisher.AwaitPublished(core_.mutex, until)) {
    entry = EntryOf(spec);
  }
}

void PoolExtents::AwaitMap(const v1::DiskSpec& spec) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kMapWaitMs);
  const StateLock lock(core_.mutex);
  const PoolEntry* entry = EntryOf(spec);
  if (entry == nullptr) return;
  const uint64_t wanted = entry->map_changes;
  // A drive that has failed is opened again before it has the map.
  while (entry != nullptr && entry->state != v1::POOL_STATE_FAILED && entry->map_changes_written < wanted &&
         core_.mutex.WaitUntil(signals_.map_written, until)) {
    entry = EntryOf(spec);
  }
}

}  // namespace cleat::control
