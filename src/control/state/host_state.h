// SPDX-License-Identifier: Apache-2.0
// The host as cleatd knows it: all resources, what should be and what is, in memory behind one mutex. Each kind is a class of its own, with
// three sides:
//
//   the API         checks a request, has the change stored, then changes the tables, publishes and answers. An answer without an error
//                   is durable, and what Get shows is durable (writes/store_writes.h).
//   questions       of the reconciler: what should be.
//   reports         of the reconciler: what is. Those about things that are gone meanwhile are ignored.
//
// Every change gets the next revision and goes to the watchers (publish/publisher.h). Where an engine may still have something that was
// deleted, its row stays as a tombstone (`deleting`) until the engine has confirmed that it is gone; until then the name is taken.
//
// Any thread. Files are looked at and the store is written without the mutex; but for a restored store, which takes the place of the present
// one under it, and for revisions, of which a million are reserved at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/backup/store_backup.h"
#include "control/model/intent.h"
#include "control/paths/path_policy.h"
#include "control/state/controllers/attachments.h"
#include "control/state/controllers/controllers.h"
#include "control/state/controllers/unclaimed.h"
#include "control/state/discovery/discoveries.h"
#include "control/state/disks/disk_keys.h"
#include "control/state/disks/disks.h"
#include "control/state/disks/kept_disks.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/doubt/disk_doubt.h"
#include "control/state/engines/engines.h"
#include "control/state/found/found_pools.h"
#include "control/state/keys/spec_keys.h"
#include "control/state/moves/engine_removal.h"
#include "control/state/moves/upgrades.h"
#include "control/state/pools/host_uid.h"
#include "control/state/pools/pool_extents.h"
#include "control/state/pools/pool_threads.h"
#include "control/state/pools/pool_work.h"
#include "control/state/pools/pools.h"
#include "control/state/publish/state_core.h"
#include "control/state/restorer.h"
#include "control/state/settings/cluster_faults.h"
#include "control/state/settings/clusters.h"
#include "control/state/settings/groups.h"
#include "control/state/settings/remote_storage.h"
#include "control/state/settings/subsystems.h"
#include "control/state/waits.h"
#include "control/store/store.h"
#include "keys/keyring.h"

namespace cleat::control {

class HostState {
 public:
  // All outlive it. Reads everything from the store. Without a keyring it takes no encrypted disks; deleted disks are kept as
  // `keep` says.
  static Result<std::unique_ptr<HostState>> Load(Store& store, MemfdKeeper& memory,
                                                 size_t watch_queue_max = WatchHub::kQueueMax,
                                                 keys::Keyring* keyring = nullptr, KeepDeleted keep = {});
  // Whether cleatd would load that store.
  static Status CheckLoads(Store& store);

  // ---- The kinds. Meanings and errors of what is the API's as proto/cleat/v1/cleat.proto says.
  Disks& disks() { return disks_; }
  DiskKeys& disk_keys() { return disk_keys_; }
  KeptDisks& kept_disks() { return kept_disks_; }
  DiskDoubt& disk_doubt() { return disk_doubt_; }
  Clusters& clusters() { return clusters_; }
  Subsystems& subsystems() { return subsystems_; }
  Discoveries& discoveries() { return discoveries_; }
  Pools& pools() { return pools_; }
  FoundPools& found_pools() { return found_pools_; }
  Groups& groups() { return groups_; }
  Controllers& controllers() { return controllers_; }
  Attachments& attachments() { return attachments_; }
  Engines& engines() { return engines_; }
  Upgrades& upgrades() { return upgrades_; }
  EngineRemoval& engine_removal() { return engine_removal_; }
  Unclaimed& unclaimed() { return unclaimed_; }
  Waits& waits() { return waits_; }
  Restorer& restorer() { return restorer_; }

  // ---- Changes
  Result<std::shared_ptr<Watcher>> Watch(uint64_t start_revision = 0);
  // All resources as they are when nothing is being written: whatever is changed later has a newer revision than all of them.
  Result<std::shared_ptr<Watcher>> WatchSettled();
  // Ends every Watch, Wait, DiscoverSubsystems and WatchDiscovery, those to come too.
  void StopWatchers();
  // `wake` is called, under the mutex, when there is something in TakeChanged(). Set once, before the first request.
  void SetWake(std::function<void()> wake);
  ChangedIntent TakeChanged();
  uint64_t NewestRevision();
  uint64_t store_number() const { return core_.store.number(); }

  // ---- The store
  Result<StoreBackup> BackUpStore() { return BackUp(core_.store, NewestRevision()); }
  size_t waiting_changes();                                                    // for what others write
  size_t waiting_writes() const { return core_.writes.waiting_for_commit(); }  // for the next commit
  // Whether that thread waits for a change to become durable, its own or another's, which takes as long as the store's disk does.
  bool WaitsForStore(std::thread::id thread);
  // Whether the store takes writes; tries, when the last one failed. Called again and again it has cleatd take changes again.
  bool CheckStore();
  bool store_writable() const { return core_.store.writable(); }
  // Which request changed an object last.
  const LastRequests& last_requests() const { return core_.writes.last_requests(); }
  std::string store_folder() const { return core_.store.folder(); }
  // What restoring backups has lost, in order. It stays as it is.
  const std::vector<LostRevisions>& lost() const CLEAT_NO_THREAD_SAFETY_ANALYSIS { return core_.tables.lost; }

  // ---- Pools' drives
  // Begins to look after them, once it is known which paths may be opened; without, they are left alone. Stop ends that.
  void StartPoolThreads();
  void StopPoolThreads() { pool_threads_.Stop(); }
  PoolWork& pool_work() { return pool_work_; }  // for tests: the threads' side of the state
  // For tests, before the first request: what drives are, and how long their threads wait.
  void SetDrives(OpenHostDrive open, const PoolThreads::Pace& pace);

  // ---- Keys and paths
  const keys::Keyring* keyring() const { return keys_.keyring(); }
  // Wraps all keys that are under another key-encryption key under the current one.
  Status RewrapKeys();
  // Which paths callers may name; all, until it is set. Set once, before the first request.
  void SetPaths(const PathPolicy* paths) { core_.paths = paths; }
  // Stored disks, controllers and clusters whose paths callers may not name any more, though they are served: what is wrong, by the
  // resource's name.
  std::map<std::string, std::string> Unlisted();

  // For tests: in all states that are loaded from now on, what invariants.h says is checked each time that the mutex is given back.
  static void CheckAlways();

 private:
  HostState(Store& store, MemfdKeeper& memory, size_t watch_queue_max, keys::Keyring* keyring,
            KeepDeleted keep);
  // From the store, at the start: kinds that others name come first. An error when one is named that is not there.
  Status Fill(Rows rows) CLEAT_REQUIRES(holds_state);
  // Revisions rise again, and watchers see all that there is with new ones.
  Status GoOn();
  Status CheckInvariants() CLEAT_REQUIRES(holds_state);
  void StopIfBroken() CLEAT_NO_THREAD_SAFETY_ANALYSIS;  // called with the mutex held

  StateCore core_;
  const KeepDeleted keep_;
  SpecKeys keys_;
  Clusters clusters_{core_, keys_};
  Subsystems subsystems_{core_, keys_, HostUid()};
  Discoveries discoveries_{core_, subsystems_, keys_};
  RemoteStorage remote_storage_{clusters_, subsystems_};
  PoolSignals pool_signals_;
  Pools pools_{core_, pool_signals_, [this](const auto& drive) { return storages_.DisksWith(drive); }};
  PoolExtents pool_extents_{core_, pool_signals_};
  PoolWork pool_work_{core_, pool_signals_};
  Groups groups_{core_};
  ClusterFaults cluster_faults_{core_};
  Engines engines_{core_, cluster_faults_};
  Unclaimed unclaimed_{core_};
  DiskStorages storages_;
  Disks disks_{core_, keys_, remote_storage_, pool_extents_, storages_, keep_};
  DiskKeys disk_keys_{core_, keys_, storages_};
  KeptDisks kept_disks_{core_, remote_storage_, pool_extents_, storages_, disks_, keep_};
  DiskDoubt disk_doubt_;
  FoundPools found_pools_{core_, pools_, disks_, pool_extents_, storages_, keep_};
  Controllers controllers_{core_, keys_, groups_, engines_, unclaimed_};
  Attachments attachments_{core_, storages_, disks_, cluster_faults_};
  Upgrades upgrades_{core_, controllers_};
  EngineRemoval engine_removal_{core_, disks_, controllers_, attachments_};
  Waits waits_{core_};
  Restorer restorer_{core_, unclaimed_};
  PoolThreads pool_threads_{pool_work_};  // ends first
};

}  // namespace cleat::control
