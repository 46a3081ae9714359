// SPDX-License-Identifier: Apache-2.0
// Pools, as callers have them. Create opens the drive itself, on its caller's thread, and hands it over to the pool's own thread
// (pool_threads.h). Any thread; what needs the state's mutex says so.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/paths/storage_identity.h"
#include "control/pools/host_drive.h"
#include "control/state/pools/pool_signals.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

class Pools {
 public:
  // How long Create waits for the drive to have its label.
  static constexpr uint64_t kLabelWaitMs = 5000;

  // The disks, by id, whose files have any part of that drive.
  using DisksWith = std::function<std::vector<std::string>(const StorageIdentity& drive)>;

  // Both outlive it.
  Pools(StateCore& core, PoolSignals& signals, DisksWith disks_with)
      : core_(core), signals_(signals), disks_with_(std::move(disks_with)) {}

  void Fill(std::vector<PoolRow> rows) CLEAT_REQUIRES(holds_state);  // from the store, before the disks

  Result<v1::Pool> Create(const v1::CreatePoolRequest& request);
  Result<v1::Pool> Get(const v1::GetPoolRequest& request);
  Result<v1::ListPoolsResponse> List(const v1::ListPoolsRequest& request);
  Result<v1::DeletePoolResponse> Delete(const v1::DeletePoolRequest& request);
  std::vector<v1::Pool> All();

  // ---- For found/found_pools.h, which makes pools as their drives have them
  struct Asked {
    std::string id;
    v1::PoolSpec spec;
    Labels labels;
  };
  static Result<Asked> Complete(const v1::CreatePoolRequest& request);
  // The pool that is there already, as it is asked for; nullptr when there is none.
  Result<const PoolEntry*> CheckExisting(const Asked& asked) const CLEAT_REQUIRES(holds_state);
  Status CheckNew(const std::string& id, const v1::PoolSpec& spec) const CLEAT_REQUIRES(holds_state);
  // What a new pool's write changes beside what it makes.
  static WriteNames NamesOf(const Asked& asked);
  // No disk of this host is on it.
  Result<std::unique_ptr<HostDrive>> OpenUntaken(const std::string& name, const std::string& device) const
      CLEAT_EXCLUDES(holds_state);
  // DRIVE_TAKEN: it is a pool of this host, whose thread may have it closed for the moment.
  Status CheckNoPools(const std::string& name, const pool::Uid& uid, const std::string& device) const
      CLEAT_EXCLUDES(holds_state);
  // Locks all extents of the drive, or says that somebody has one of them open: nobody opens any until they are unlocked.
  static Status LockExtents(const std::string& name, HostDrive& drive, const std::string& device);
  static void UnlockExtents(HostDrive& drive);
  // The store has the row. The pool's thread is to be woken when all that belongs to it is there.
  PoolEntry& Insert(PoolRow row, std::unique_ptr<HostDrive> drive) CLEAT_REQUIRES(holds_state);
  void Wake(const std::string& id) CLEAT_REQUIRES(holds_state) { signals_.wake(id); }
  Result<v1::Pool> AwaitLabel(const std::string& id) CLEAT_REQUIRES(holds_state);

 private:
  // A drive that is open, and the pool that it is to be.
  struct Prepared {
    std::unique_ptr<HostDrive> drive;
    PoolRow row;
  };
  // Looks at the drive, and changes nothing on it.
  Result<Prepared> Prepare(const std::string& id, v1::PoolSpec spec, bool overwrite) const
      CLEAT_EXCLUDES(holds_state);
  Status CheckNotTaken(const std::string& name, const HostDrive& drive, const std::string& device) const
      CLEAT_EXCLUDES(holds_state);
  Status CheckLabel(const std::string& name, HostDrive& drive, const std::string& device,
                    bool overwrite) const CLEAT_EXCLUDES(holds_state);
  Status Commit(Prepared& prepared, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  Status CheckNotInUse(const PoolEntry& entry, bool discard_unknown) const CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  PoolSignals& signals_;
  const DisksWith disks_with_;
};

}  // namespace cleat::control
