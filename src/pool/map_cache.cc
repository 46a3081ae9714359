// SPDX-License-Identifier: Apache-2.0
#include "pool/map_cache.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "pool/pool_drive.h"

namespace cleat::pool {
namespace {

using Block = std::array<uint8_t, kBlockBytes>;

// The first block of the slot that claims the highest generation. nullopt: it takes the whole slots to say which map counts, or there is none.
std::optional<Block> HighestHead(Drive& drive) {
  std::optional<Block> highest;
  uint64_t highest_generation = 0;
  for (const uint64_t offset : kMapOffsets) {
    if (drive.size_bytes() < offset + kMapBytesMax) continue;
    Block head;
    if (!drive.Read(offset, head)) return std::nullopt;
    const auto generation = ClaimedGeneration(head);
    if (!generation) return std::nullopt;
    if (!*generation) continue;
    if (highest && **generation == highest_generation) return std::nullopt;
    if (highest && **generation < highest_generation) continue;
    highest = head;
    highest_generation = **generation;
  }
  return highest;
}

}  // namespace

MapIndex::MapIndex(const Map& map) : generation_(map.generation) {
  for (const MapDisk& disk : map.disks) {
    if (!disk.deleted) disks_.push_back({disk.identity, Joined(disk.extents)});
  }
  std::sort(disks_.begin(), disks_.end(),
            [](const Disk& a, const Disk& b) { return a.identity < b.identity; });
}

bool MapIndex::Has(DiskIdentity identity, const ExtentRuns& extents) const {
  const ExtentRuns wanted = Joined(extents);
  if (!identity.known()) {
    return std::any_of(disks_.begin(), disks_.end(),
                       [&wanted](const Disk& disk) { return BeginsWith(disk.extents, wanted); });
  }
  const auto found = std::lower_bound(disks_.begin(), disks_.end(), identity.value(),
                                      [](const Disk& disk, uint64_t value) { return disk.identity < value; });
  return found != disks_.end() && found->identity == identity.value() && BeginsWith(found->extents, wanted);
}

// A drive, and its map as it was last read whole.
class MapCache::Entry {
 public:
  Entry(const DriveId& id, const Uid& pool) : id_(id), pool_(pool) {}

  bool Is(const DriveId& id, const Uid& pool) const { return id_ == id && pool_ == pool; }

  // The mutex is held while slots are read whole, so that of several who need them one reads. The others' heads were read before they got
  // it: where these are the heads of what has been read meanwhile, that is what they have asked for.
  Result<std::shared_ptr<const MapIndex>> Read(Drive& drive, const Label& label) {
    const std::optional<Block> head = HighestHead(drive);
    const MutexLock lock(mutex_);
    if (head && map_ != nullptr && *head == head_ && label == label_) return map_;
    map_.reset();
    CLEAT_ASSIGN(const std::optional<FoundMap> found, FindMap(drive, label));
    if (!found) return map_;
    map_ = std::make_shared<const MapIndex>(found->map);
    head_ = found->head;
    label_ = label;
    return map_;
  }

 private:
  const DriveId id_;
  const Uid pool_;
  Mutex mutex_;
  std::shared_ptr<const MapIndex> map_ CLEAT_GUARDED_BY(mutex_);  // nullptr: not known
  Block head_ CLEAT_GUARDED_BY(mutex_){};                         // the map's first block
  Label label_ CLEAT_GUARDED_BY(mutex_);                          // that the map agreed with
};

MapCache::MapCache() = default;
MapCache::~MapCache() = default;

std::shared_ptr<MapCache::Entry> MapCache::EntryOf(const DriveId& id, const Uid& pool) {
  const MutexLock lock(mutex_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry->Is(id, pool); });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  if (entries_.size() == kDrivesMax) entries_.pop_back();
  entries_.push_front(std::make_shared<Entry>(id, pool));
  return entries_.front();
}

Result<std::shared_ptr<const MapIndex>> MapCache::Read(const DriveId& id, Drive& drive, const Label& label) {
  return EntryOf(id, label.pool)->Read(drive, label);
}

}  // namespace cleat::pool
