// SPDX-License-Identifier: Apache-2.0
// Whose the extents of pools are. A disk's stand in its spec, so that they come and go with its row, in one transaction; what is to be erased
// before it is given again stands in the pool's row. The rest is free.
//
//   free -> a disk's        when its row is made. The drive's copy of the map follows; engines attach a disk that it has
//   a disk's -> to erase    when its row goes for good, in the same transaction
//   to erase -> free        when they are erased, and samples were read back as zeroes (pool_work.h)
//
// A disk of another kind has no pool: nothing is done then. Any thread; what needs the state's mutex says so.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/state/pools/pool_signals.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class PoolExtents {
 public:
  // How long AwaitMap waits: a drive writes the map in milliseconds, and one that hangs holds up no caller.
  static constexpr uint64_t kMapWaitMs = 2000;

  // Both outlive it.
  PoolExtents(StateCore& core, PoolSignals& signals) : core_(core), signals_(signals) {}

  // Whether the pool is there, and none has the disk's file as its drive.
  Status CheckPoolOf(const std::string& disk_id, const v1::DiskSpec& spec) const CLEAT_REQUIRES(holds_state);

  // Takes free extents and puts them into the spec: as many as its size wants beyond those that it has. They are nobody's until Join, so that
  // the pool must be among the names of the write that makes them a disk's. POOL_FULL, or POOL_NOT_READY when there will be enough.
  Status Place(const std::string& disk_id, v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  // The disk was not made, or has not grown, after all: `before` has those that it had.
  void GiveBack(const v1::DiskSpec& placed, const v1::DiskSpec& before) CLEAT_REQUIRES(holds_state);

  // A disk that the store has, or has no more: one that is there, or a deleted one that is kept.
  enum class As : uint8_t { kDisk, kDeleted };
  void Join(const DiskRow& row, As as) CLEAT_REQUIRES(holds_state);
  void Leave(const DiskRow& row, As as) CLEAT_REQUIRES(holds_state);

  // The rows of the pools once these disks have gone for good: to be written in one change with what erases theirs, with the pools among
  // the changed names. When that is durable, Purged; the disks leave besides.
  std::vector<PoolRow> RowsWithout(const std::vector<DiskRow>& disks) const CLEAT_REQUIRES(holds_state);
  void Purged(std::vector<PoolRow> rows) CLEAT_REQUIRES(holds_state);

  // Waits while the pool's drive is being looked at for the first time, kMapWaitMs at most: a pool is not refused because cleatd has just begun.
  void AwaitOpen(const v1::DiskSpec& spec) CLEAT_EXCLUDES(holds_state);
  // Waits until the drive's copy of the map is as new as the present one, kMapWaitMs at most: who attaches the disk then finds it there.
  void AwaitMap(const v1::DiskSpec& spec) CLEAT_EXCLUDES(holds_state);

 private:
  PoolEntry* EntryOf(const v1::DiskSpec& spec) const CLEAT_REQUIRES(holds_state);
  Error NoRoom(const std::string& disk_id, const PoolEntry& entry, uint64_t wanted) const
      CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  PoolSignals& signals_;
};

// Among the names of writes: a path that becomes a disk's or a pool's.
std::string StorageName(const std::string& path);
// Sets the state of a disk that has no extents any more (WhyLost); of any other one nothing.
void SetLost(DiskEntry& entry);

}  // namespace cleat::control
