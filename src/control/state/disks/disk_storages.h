// SPDX-License-Identifier: Apache-2.0
// What is behind disks: no two of them may have the same file, image or world wide name, unless both only read it; files and memory are
// made, looked at and made larger. A disk whose storage is being looked at, without the mutex, is busy.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/paths/known_storages.h"
#include "control/paths/storage_identity.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/publish/state_core.h"

namespace cleat::control {

// A disk whose file or memory is being looked at or made larger, without the mutex.
struct BusyDisk {
  std::string storage;  // ClaimOfStorage
  std::string wwn;
  const char* doing;
};

class DiskStorages {
 public:
  // Both outlive it.
  DiskStorages(StateCore& core, MemfdKeeper& memory) : core_(core), memory_(memory) {}

  // ---- Who has what
  void Claim(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  // The disk is gone, its memory too.
  void Release(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  // Why the disk can't have that storage or that name; OK when it can.
  Status CheckUnique(const std::string& id, const v1::DiskSpec& spec) const CLEAT_REQUIRES(holds_state);
  // Each disk has its claims, and nobody else has any. An error names the first disk of which that is not so.
  Status CheckClaims() const CLEAT_REQUIRES(holds_state);

  // ---- Busy disks
  // RESOURCE_BUSY when it is.
  Status CheckNotBusy(const std::string& id) const CLEAT_REQUIRES(holds_state);
  void SetBusy(const std::string& id, BusyDisk busy) CLEAT_REQUIRES(holds_state) {
    busy_.emplace(id, std::move(busy));
  }
  void EndBusy(const std::string& id) CLEAT_REQUIRES(holds_state) { busy_.erase(id); }
  size_t busy() const CLEAT_REQUIRES(holds_state) { return busy_.size(); }
  void AddBusy(std::set<std::string>& ids) const CLEAT_REQUIRES(holds_state) {
    for (const auto& [id, busy] : busy_) ids.insert(id);
  }

  // ---- Files and memory. These may take long.
  // What the disk's file is, if it has one.
  using Identity = std::optional<StorageIdentity>;
  // Makes the file or the memory of a new disk.
  Result<Identity> Prepare(const std::string& id, const v1::DiskSpec& spec) CLEAT_EXCLUDES(holds_state);
  // Of a disk that comes back: makes no file, since that one has content. `log_lost`: IsLogLost.
  Result<Identity> Restore(const std::string& id, const v1::DiskSpec& spec, bool log_lost)
      CLEAT_EXCLUDES(holds_state);
  // Makes it as large as `spec` says.
  Status Grow(const std::string& id, const v1::DiskSpec& spec) CLEAT_EXCLUDES(holds_state);

  // Disks whose files have any part of that storage: ids.
  std::vector<std::string> DisksWith(const StorageIdentity& identity) const {
    return known_.OthersWith({}, identity);
  }
  // FILE_TAKEN when a pool or another disk has that file, by whatever name; otherwise the disk has it from now on.
  Status CheckSameStorage(const std::string& id, const v1::DiskSpec& spec, const Identity& identity)
      CLEAT_REQUIRES(holds_state);
  // The disk was not made after all.
  void Drop(const std::string& id) CLEAT_REQUIRES(holds_state);
  void DropMemory(const std::string& id) { memory_.Drop(id); }
  // Of a stored disk whose memory nobody holds and nobody has to be asked for.
  Status MakeMemory(const DiskRow& row) CLEAT_REQUIRES(holds_state);
  // Whether an engine may have left writes in doubt that a log which is made now does not have.
  bool IsLogLost(const DiskRow& row) const CLEAT_REQUIRES(holds_state);
  // Its file, if it has one, is looked at again by and by: the path may lead elsewhere since.
  void LookAgain(const DiskRow& row);
  void LookAtAll() CLEAT_REQUIRES(holds_state);

 private:
  static std::vector<std::string> ClaimsOf(const v1::DiskSpec& spec);
  // Waits a while for other disks' files to be looked at.
  void AwaitLooks(const std::string& id, const StorageIdentity& identity) CLEAT_EXCLUDES(holds_state);
  Status CheckAgainst(const std::string& id, const v1::DiskSpec& spec, const std::string& other_id) const
      CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  MemfdKeeper& memory_;
  KnownStorages known_;
  std::map<std::string, BusyDisk> busy_ CLEAT_GUARDED_BY(holds_state);  // by id
  // Of storage and world wide names: disks' ids by ClaimsOf.
  std::multimap<std::string, std::string> claims_ CLEAT_GUARDED_BY(holds_state);
};

}  // namespace cleat::control
