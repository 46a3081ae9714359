// SPDX-License-Identifier: Apache-2.0
// What a pool's drive is to be given - a label, the map, zeroes - and what has become of it: the side of the state that the pools' threads talk to
// (pool_threads.h). Any thread.
//
// Order: the map goes first, so that a purged disk is not in the drive's map any more when its extents are erased; an extent is free when
// the store says so, after it was erased, and the drive was flushed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/pools/block_drive.h"
#include "control/state/pools/pool_signals.h"
#include "control/state/publish/state_core.h"
#include "pool/layout.h"

namespace cleat::control {

class PoolWork {
 public:
  // Both outlive it.
  PoolWork(StateCore& core, PoolSignals& signals) : core_(core), signals_(signals) {}

  std::vector<std::string> Ids();
  struct DriveInfo {
    std::string device;
    pool::Label label;      // that the drive is to have
    bool labelled = false;  // it has had that
  };
  // nullopt: the pool is gone.
  std::optional<DriveInfo> DriveOf(const std::string& id);

  struct OpenedDrive {
    std::unique_ptr<BlockDrive> drive;
    bool to_be_labelled = false;  // Create has looked at it: whatever is on it may go
  };
  // The drive as Create has opened it, or opened now, which may take as long as the drive does.
  Result<OpenedDrive> OpenDrive(const std::string& id, const std::string& device) CLEAT_EXCLUDES(holds_state);

  // ---- What has become of the drive
  // Durable when it returns OK.
  Status Labelled(const std::string& id);
  // The drive is open, and has that map, or none. kFailedPrecondition: the map is newer than all that this store has been told of.
  Status Opened(const std::string& id, const std::optional<pool::Map>& map);
  void Failed(const std::string& id, const std::string& message);
  // Whether that was not known yet.
  bool NotAnswering(const std::string& id, const std::string& message);
  void MapWritten(const std::string& id, uint64_t generation);
  // Durable when it returns OK: the extent may be given to a disk at once.
  Status Erased(const std::string& id, uint32_t extent);

  // ---- What it is to be given
  // What a drive that was opened needs; neither: nothing. Extents in `not_now` are left for later.
  struct Work {
    std::optional<pool::Map> map;
    std::optional<uint32_t> to_erase;  // an extent
  };
  Work NextWork(const std::string& id, const std::set<uint32_t>& not_now);

 private:
  pool::Map MapOf(const PoolEntry& entry) const CLEAT_REQUIRES(holds_state);
  // Calls visit(row, deleted) for each disk of the pool.
  template <typename Visit>
  void ForEachDisk(const PoolEntry& entry, Visit visit) const CLEAT_REQUIRES(holds_state);
  bool SetState(const std::string& id, v1::PoolState state, const std::string& message);
  struct Compared {
    std::vector<UnknownPoolDisk> unknown;
    bool older = false;  // the store is, than the map
  };
  Compared Compare(const PoolEntry& entry, const pool::Map& map) const CLEAT_REQUIRES(holds_state);
  // All that is neither a disk's nor an unknown one's is to be erased.
  Status EraseTheRest(PoolEntry& entry, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  // What is nobody's: neither a disk's, nor an unknown one's, nor to be erased.
  pool::ExtentSet FreeOf(const PoolEntry& entry) const CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  PoolSignals& signals_;
};

}  // namespace cleat::control
