// SPDX-License-Identifier: Apache-2.0
// Deleted disks that are kept: how they come back or go for good. Any thread; what needs the state's mutex says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/state/disks/disks.h"

namespace cleat::control {

// The disk's key would be destroyed, and the caller said that it must not be.
Error KeyNotKept(const std::string& name, std::string_view why);

class KeptDisks {
 public:
  // All outlive it.
  KeptDisks(StateCore& core, RemoteStorage& remote, PoolExtents& pools, DiskStorages& storages, Disks& disks,
            const KeepDeleted& keep)
      : core_(core), remote_(remote), pools_(pools), storages_(storages), disks_(disks), keep_(keep) {}

  Result<v1::Disk> Undelete(const v1::UndeleteDiskRequest& request);
  Result<v1::PurgeDiskResponse> Purge(const v1::PurgeDiskRequest& request);
  // Purges those whose purge_time has come. PurgeTimer calls it.
  Status PurgeExpired();
  size_t Count();

 private:
  // By uid, or (empty) the one that was deleted last; null when it is not kept.
  Result<const DeletedDiskRow*> Find(const std::string& id, const std::string& uid) const
      CLEAT_REQUIRES(holds_state);
  Status CheckUndelete(const DeletedDiskRow& row) CLEAT_REQUIRES(holds_state);
  // The disk is busy.
  Result<v1::Disk> UndeleteBusy(const DeletedDiskRow& kept) CLEAT_REQUIRES(holds_state);
  Result<v1::Disk> CommitUndelete(const std::string& id, uint64_t kept_revision) CLEAT_REQUIRES(holds_state);
  Status Erase(const WriteNames& names, const std::vector<DeletedDiskRow>& rows) CLEAT_REQUIRES(holds_state);
  Result<DiskStorages::Identity> RestoreUnlocked(const DiskRow& row) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  RemoteStorage& remote_;
  PoolExtents& pools_;
  DiskStorages& storages_;
  Disks& disks_;
  const KeepDeleted& keep_;
};

}  // namespace cleat::control
