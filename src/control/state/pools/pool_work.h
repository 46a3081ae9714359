// SPDX-License-Identifier: Apache-2.0
// What a pool's drive is to be given - a label, the map, zeroes - and what has become of it: the side of the state that the pools' threads talk to
// (pool_threads.h). Any thread. Of a pool that is gone, or was made anew with the same id, nothing is changed.
//
// Order: the map goes first, so that a purged disk is not in the drive's map any more when its extents are erased; an extent is free when
// the store says so, after it was erased, and the drive was flushed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/paths/storage_identity.h"
#include "control/pools/host_drive.h"
#include "control/state/pools/pool_signals.h"
#include "control/state/publish/state_core.h"
#include "pool/layout.h"

namespace cleat::control {

class PoolWork {
 public:
  // Both outlive it.
  PoolWork(StateCore& core, PoolSignals& signals) : core_(core), signals_(signals) {}

  // ---- Which pools there are
  std::vector<std::string> Ids();
  // Which one is meant: its id may be another pool's later.
  struct Key {
    std::string id;
    pool::Uid uid{};
  };
  struct DriveInfo {
    Key key;
    std::string device;
    pool::Label label;      // that the drive is to have
    bool labelled = false;  // it has had that
  };
  // nullopt: no pool has that id.
  std::optional<DriveInfo> DriveOf(const std::string& id);
  // The drive as Pools::Create has opened it, which has looked at it, so that whatever is on it may go; null: it is to be opened.
  std::unique_ptr<HostDrive> TakeOpened(const Key& key);
  // How drives are opened.
  const OpenHostDrive& opener() const { return signals_.open; }
  // The pool's device, O_PATH.
  Result<UniqueFd> FindDrive(const DriveInfo& info) const;

  // What a drive is to be given; neither: nothing.
  struct Work {
    std::optional<pool::Map> map;
    uint64_t changes = 0;  // with the map: for MapWritten and Ready
    std::optional<uint32_t> to_erase;
  };

  // ---- What has become of the drive
  // Durable when it returns OK.
  Status Labelled(const Key& key);
  // What was found on a drive that was opened.
  struct Found {
    pool::Uid host{};              // whose the label is
    std::optional<pool::Map> map;  // nullopt: it has none
    std::optional<StorageIdentity> identity;
  };
  // Where the store was restored from a backup and the map is newer, the store is made to say what the drive does: that is durable then. Where
  // the label is another host's, and the map agrees with the store, all that no disk has is to be erased again: that host may have had it.
  // What the drive is to be given first: label and map, before Ready.
  // kFailedPrecondition: the drive was used with another store since, so that neither can be trusted to say whose an extent is.
  Result<Work> Opened(const Key& key, const Found& found);
  // The drive has that label and map. Before this no disk is made or grows here, so that a crash in between leaves nothing that neither the
  // former map nor the former label knows of.
  void Ready(const Key& key, uint64_t changes);
  void Failed(const Key& key, const std::string& message);
  // Whether that was not known yet.
  bool NotAnswering(const std::string& id, const std::string& message);
  // The drive can be used, but for that.
  void SetNote(const Key& key, const std::string& message);
  // What the drive says of its condition. Watchers hear of it where KnownHealth says so, the log of its warnings.
  void SetHealth(const Key& key, v1::DriveHealth health);
  void MapWritten(const Key& key, uint64_t changes);
  // Durable when it returns OK: the extent may be given to a disk at once.
  Status Erased(const Key& key, uint32_t extent);

  // What a drive that is ready is to be given next. `to_erase` is the first extent from `from` on.
  Work NextWork(const Key& key, uint32_t from);

 private:
  struct Reconciled;
  PoolEntry* Find(const Key& key) const CLEAT_REQUIRES(holds_state);
  bool SetState(PoolEntry* entry, v1::PoolState state, const std::string& message)
      CLEAT_REQUIRES(holds_state);
  // The revisions that were lost when the store was restored, if the map was written then; null: the store is as new.
  const LostRevisions* FindLost(const std::optional<pool::Map>& map) const CLEAT_REQUIRES(holds_state);
  Status Reconcile(PoolEntry& entry, const pool::Map& map, uint64_t known_from, const WriteNames& names)
      CLEAT_REQUIRES(holds_state);
  Status CheckNotNewer(const PoolEntry& entry, const pool::Map& map) const CLEAT_REQUIRES(holds_state);
  Status CheckKnowsAll(const PoolEntry& entry, const pool::Map& map) const CLEAT_REQUIRES(holds_state);
  Status CheckHasAll(const PoolEntry& entry, const std::optional<pool::Map>& map) const
      CLEAT_REQUIRES(holds_state);
  Status TakeOver(PoolEntry& entry, const WriteNames& names) CLEAT_REQUIRES(holds_state);
  // What becomes of one disk: it has the extents that the drive has as its, or none.
  DiskRow AsOnDrive(const PoolEntry& entry, const DiskRow& row, const pool::Map& map,
                    uint64_t known_from) const CLEAT_REQUIRES(holds_state);
  // The disk in the map; null: the map does not have it.
  const pool::MapDisk* FindIn(const pool::Map& map, const DiskRow& row) const CLEAT_REQUIRES(holds_state);
  void Adopt(PoolEntry& entry, StoreChange& change) CLEAT_REQUIRES(holds_state);
  pool::Map MapOf(const PoolEntry& entry) const CLEAT_REQUIRES(holds_state);
  // Calls visit(row, deleted) for each disk of the pool, deleted ones that are kept included.
  template <typename Visit>
  void ForEachDisk(const PoolEntry& entry, Visit visit) const CLEAT_REQUIRES(holds_state);
  // What is nobody's: neither a disk's, nor an unknown one's, nor to be erased.
  pool::ExtentSet FreeOf(const PoolEntry& entry) const CLEAT_REQUIRES(holds_state);

  StateCore& core_;
  PoolSignals& signals_;
};

}  // namespace cleat::control
