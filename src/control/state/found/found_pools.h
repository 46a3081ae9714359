// SPDX-License-Identifier: Apache-2.0
// Pools that drives have and the store does not, since it was lost: what a drive says, and the pool made as the drive has it. Any thread; what
// needs the state's mutex says so.
//
// The drive is rewritten before the store's rows are: its map then has the identities that the new rows will have, under a generation that this
// store has handed out. A crash between the two leaves a drive that says as much as before, and that a pool can be made from as before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/pools/host_drive.h"
#include "control/state/disks/disk_storages.h"
#include "control/state/disks/disks.h"
#include "control/state/found/found_disk.h"
#include "control/state/pools/pool_extents.h"
#include "control/state/pools/pools.h"
#include "control/state/publish/state_core.h"
#include "pool/layout.h"
#include "pool/pool_drive.h"

namespace cleat::control {

// What is on a drive.
struct FoundPool {
  pool::Label label;
  pool::MapSlots slots;
};

// What the store is to have of it, and the drive's map with that.
struct FoundRows {
  PoolRow pool;  // but for id, spec.device and labels
  std::vector<DiskRow> disks;
  std::vector<DeletedDiskRow> deleted;
  std::optional<pool::Map> map;  // nullopt: the drive has none, and no disks
  uint64_t newest_before = 0;    // the store's newest revision, before these rows had theirs
};

class FoundPools {
 public:
  // All outlive it. Deleted disks are kept as `keep` says.
  FoundPools(StateCore& core, Pools& pools, Disks& disks, PoolExtents& extents, const DiskStorages& storages,
             const KeepDeleted& keep)
      : core_(core), pools_(pools), disks_(disks), extents_(extents), storages_(storages), keep_(keep) {}

  // ---- The API
  // Changes nothing, whoever uses the drive.
  Result<v1::ScanDriveResponse> Scan(const v1::ScanDriveRequest& request) CLEAT_EXCLUDES(holds_state);

  // Carries out a request with `from_drive`.
  Result<v1::Pool> Create(const v1::CreatePoolRequest& request) CLEAT_EXCLUDES(holds_state);

 private:
  class Room;
  // A drive that is open and as the rows, which the store is to get, have it.
  struct Prepared {
    std::unique_ptr<HostDrive> drive;
    FoundRows rows;
  };
  Result<Prepared> Prepare(const Pools::Asked& asked) CLEAT_EXCLUDES(holds_state);
  Status Commit(Prepared prepared, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  // `name`: the resource that errors are about. DRIVE_UNUSABLE: no pool's drive, or one whose disks can't be told any more.
  static Result<FoundPool> Read(const std::string& name, HostDrive& drive, const std::string& device);
  // Takes revisions for all that can be made. What can't stays on the drive, as unknown.
  Result<FoundRows> Plan(const std::string& name, const FoundPool& found) CLEAT_REQUIRES(holds_state);
  // The drive gets this host's label, and the map of `rows`.
  static Status WriteTo(HostDrive& drive, const std::string& name, const FoundPool& found,
                        const FoundRows& rows) CLEAT_EXCLUDES(holds_state);
  // Whether all of it can still be made, after the mutex was let go. RESOURCE_BUSY.
  Status CheckStill(const std::string& name, const FoundRows& rows) const CLEAT_REQUIRES(holds_state);
  // The store has them, and the table its pool.
  void Add(FoundRows rows) CLEAT_REQUIRES(holds_state);
  // What the state of this host has against a disk that could be made elsewhere; empty: nothing.
  std::string WhyNotHere(const std::string& id, const v1::DiskSpec& spec, uint64_t identity) const
      CLEAT_REQUIRES(holds_state);
  std::string WhyNot(const pool::MapDisk& disk, const FoundDisk& found, Room& room) const
      CLEAT_REQUIRES(holds_state);
  Status PlanDisk(const std::string& name, const pool::Label& label, Room& room, pool::MapDisk& disk,
                  FoundRows& rows) CLEAT_REQUIRES(holds_state);
  void AddRow(const pool::MapDisk& disk, v1::DiskSpec spec, const std::string& id, FoundRows& rows)
      CLEAT_REQUIRES(holds_state);
  v1::ScanDriveResponse Show(const FoundPool& found, const std::string& device) CLEAT_REQUIRES(holds_state);
  const PoolEntry* FindPool(const pool::Uid& uid) const CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  Pools& pools_;
  Disks& disks_;
  PoolExtents& extents_;
  const DiskStorages& storages_;
  const KeepDeleted& keep_;
};

}  // namespace cleat::control
