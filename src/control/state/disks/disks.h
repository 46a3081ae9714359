// SPDX-License-Identifier: Apache-2.0
// Disks. Deleting one whose memory an engine may still hold leaves a tombstone until the engine has let it go; what is kept of deleted ones
// is kept_disks.h's. Any thread; what needs the state's mutex says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/model/model.h"
#include "control/state/disks/disk_storages.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/pools/pool_extents.h"
#include "control/state/publish/state_core.h"
#include "control/state/settings/remote_storage.h"
#include "control/state/tables/deleted_disks.h"
#include "control/state/writes/row_under_way.h"

namespace cleat::control {

// The kept deleted disks of that id, among the names of a write.
std::string KeptName(const std::string& id);
// What purging the disk changes besides its row, its pool, among the names of a write; whether that is there.
void AddPurge(const DiskRow& row, WriteNames& names);
bool NamesPurge(const DiskRow& row, const WriteNames& names);

class Disks {
 public:
  // All outlive it. Deleted disks are kept as `keep` says.
  Disks(StateCore& core, const SpecKeys& keys, RemoteStorage& remote, PoolExtents& pools,
        DiskStorages& storages, const KeepDeleted& keep)
      : core_(core), keys_(keys), remote_(remote), pools_(pools), storages_(storages), keep_(keep) {}

  // Takes the disks from the store, after the clusters and pools.
  Status Fill(std::vector<DiskRow> rows) CLEAT_REQUIRES(holds_state);

  // ---- The API
  Result<v1::Disk> Create(const v1::CreateDiskRequest& request);
  Result<v1::Disk> Get(const v1::GetDiskRequest& request);
  Result<v1::ListDisksResponse> List(const v1::ListDisksRequest& request);
  Result<v1::Disk> Update(const v1::UpdateDiskRequest& request);
  Result<v1::DeleteDiskResponse> Delete(const v1::DeleteDiskRequest& request);
  bool keeps_deleted() const { return keep_.time_s != 0; }

  // ---- The reconciler's questions
  std::optional<DiskRow> Row(const std::string& id);
  // Memory disks, tombstones too.
  std::vector<std::string> InMemory();
  std::optional<DiskRow> MemoryRow(const std::string& id);
  // Whether the disk is attached on that engine, or to be, or is to stand by there.
  bool IsFor(const std::string& id, const std::string& engine);
  DiskIdentity IdentityOf(const DiskRow& row) const { return core_.view.IdentityOf(row); }
  std::vector<std::string> ControllersWith(const std::string& id);

  // ---- The reconciler's reports
  void Report(const std::string& id, v1::DiskState state, const std::string& message);
  // That an engine holds, or does not hold, a memory disk's memory. Durable when it returns OK.
  Status RecordKept(const std::string& id, const std::string& engine, bool kept);
  // Removes a tombstone. kUnavailable when the store can't be written: try again.
  Status Forget(const std::string& id);
  // Both let go of the mutex when there is something to store.
  // An RBD disk whose image was made larger by somebody else has that size from now on. `size_bytes` is what a guest was told.
  void AdoptGrownSize(const std::string& id, uint64_t size_bytes) CLEAT_REQUIRES(holds_state);
  // An RBD disk whose image has that many bytes: the engine that has it READY saw that, or made it so.
  void AdoptImageSize(const std::string& id, uint64_t size_bytes) CLEAT_REQUIRES(holds_state);

  // ---- For kept_disks.h
  // Whether one more disk may be there, and may have that storage.
  Status CheckRoom(const std::string& id, const v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  // A disk that the store has; shows it to everybody.
  DiskEntry& Add(DiskEntry entry) CLEAT_REQUIRES(holds_state);

 private:
  // The disk that is there already, or why it can't be made; nullptr when it can.
  Result<DiskEntry*> CheckNew(const std::string& id, const v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  // Lets go of the mutex meanwhile; so do CommitUpdate and WriteDeletion.
  Result<v1::Disk> Commit(DiskEntry entry, const std::optional<keys::Secret>& key,
                          const Result<DiskStorages::Identity>& prepared) CLEAT_REQUIRES(holds_state);
  DiskEntry& Insert(DiskEntry entry) CLEAT_REQUIRES(holds_state);
  Result<v1::Disk> UpdateLocked(const std::string& id, const v1::UpdateDiskRequest& request, Labels labels)
      CLEAT_REQUIRES(holds_state);
  // Tells engines of a larger disk of a pool once the drive has the map, without which no engine takes the new size, or after some time.
  void TellWhenMapped(const v1::Disk& disk, const std::string& id) CLEAT_EXCLUDES(holds_state);
  // The disk that an update is for, or why it can't have one now.
  Result<DiskEntry*> FindForUpdate(const std::string& id, const std::string& etag)
      CLEAT_REQUIRES(holds_state);
  Status CheckGrows(const DiskEntry& entry, const v1::DiskSpec& spec) const CLEAT_REQUIRES(holds_state);
  // Makes what is behind the disk as large as `spec` says. Without the mutex meanwhile; the disk is busy, so it stays.
  Status GrowUnlocked(const std::string& id, const v1::DiskSpec& spec) CLEAT_REQUIRES(holds_state);
  Status CommitUpdate(DiskEntry& entry, const WriteNames& names, const v1::DiskSpec& spec, Labels labels)
      CLEAT_REQUIRES(holds_state);
  Status WriteGrown(const DiskRow& before, const WriteNames& names, DiskRow& row) CLEAT_REQUIRES(holds_state);
  Status CheckNotAttached(const std::string& name, const DiskEntry& entry) const CLEAT_REQUIRES(holds_state);
  Status CheckKeepDeleted(const DiskRow& row, const v1::DeleteDiskRequest& request) const
      CLEAT_REQUIRES(holds_state);
  std::optional<DeletedDiskRow> WhatIsKept(const DiskRow& row, const v1::DeleteDiskRequest& request)
      CLEAT_REQUIRES(holds_state);
  std::optional<DiskRow> TombstoneOf(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  Status WriteDeletion(const WriteNames& names, const DiskRow& row, const std::optional<DiskRow>& tombstone,
                       const std::optional<DeletedDiskRow>& kept, const std::vector<PoolRow>& pools)
      CLEAT_REQUIRES(holds_state);
  // Removes a disk whose row the store has no more.
  void Drop(const std::string& id) CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  const SpecKeys& keys_;
  RemoteStorage& remote_;
  PoolExtents& pools_;
  DiskStorages& storages_;
  const KeepDeleted& keep_;
  size_t keeping_ CLEAT_GUARDED_BY(holds_state) = 0;  // rows under way, of deleted disks
};

}  // namespace cleat::control
