// SPDX-License-Identifier: Apache-2.0
// The host as cleatd knows it: all resources, what should be and what is, in memory behind one mutex. It has
// three sides:
//
//   the API side         validates a request, writes the intent to the store, then changes the model and
//                        answers. An answer without an error is durable.
//                        (host_state_{disks,deleted,clusters,groups,controllers,attachments,updates,upgrades}.cc)
//   the waiting side     Watch and Wait. (host_state_wait.cc)
//   the reconciler's side asks what should be, and reports what is. (host_state_reports.cc)
//
// Deleting: where an engine may still have the thing, its row stays as a tombstone (`deleting`) until that
// engine has confirmed that it is gone; then the reconciler forgets it. Until then the name is taken
// (kAborted).
//
// Keys of disks and clusters: kept, and sent to engines, only wrapped. A plain one lives for the length of a call, in
// keys::Secret. (host_state_keys.cc)
//
// Every change gets the next revision and goes to the watchers. Any thread; the store is written under the
// mutex, files are looked at outside of it. New attachments are written outside of it too, so that many at once share
// a commit (GroupCommit); whose answer depends on one that is being written waits for it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"
#include "control/deleted_disks.h"
#include "control/engine_paths.h"
#include "control/group_commit.h"
#include "control/intent.h"
#include "control/known_storages.h"
#include "control/memory_keeper.h"
#include "control/model.h"
#include "control/names.h"
#include "control/path_policy.h"
#include "control/storage_identity.h"
#include "control/store.h"
#include "control/store_backup.h"
#include "control/watch_hub.h"
#include "keys/keyring.h"

namespace cleat::control {

class StoreUpload;

// How long a request may wait: 30 s when it does not say, an hour at most.
Result<std::chrono::nanoseconds> CheckTimeout(const google::protobuf::Duration& timeout);

class HostState {
 public:
  // All outlive it. Reads everything from the store. Without a keyring it takes no encrypted disks; deleted disks are kept as
  // `keep` says.
  static Result<std::unique_ptr<HostState>> Load(Store& store, MemoryKeeper& memory,
                                                 size_t watch_queue_max = WatchHub::kQueueMax,
                                                 keys::Keyring* keyring = nullptr, KeepDeleted keep = {});

  // ---- The API. Meanings and errors as proto/cleat/v1/cleat.proto says.
  Result<v1::Disk> CreateDisk(const v1::CreateDiskRequest& request);
  Result<v1::Disk> GetDisk(const v1::GetDiskRequest& request);
  Result<v1::ListDisksResponse> ListDisks(const v1::ListDisksRequest& request);
  Result<v1::Disk> UpdateDisk(const v1::UpdateDiskRequest& request);
  Result<v1::DeleteDiskResponse> DeleteDisk(const v1::DeleteDiskRequest& request);
  Result<v1::Disk> UndeleteDisk(const v1::UndeleteDiskRequest& request);
  Result<v1::PurgeDiskResponse> PurgeDisk(const v1::PurgeDiskRequest& request);
  // Whether disks that are deleted now are kept; how many are.
  bool KeepsDeleted() const { return keep_.time_s != 0; }
  size_t DeletedDisksKept();
  // Purges the kept disks whose purge_time has come. PurgeTimer calls it.
  Status PurgeExpired();
  // For ApplyHost: OK when the spec has no key, or the disk's own.
  Status CheckSameKey(const std::string& disk_id, const v1::DiskSpec& spec);
  // The same, for a cluster: whether the spec has no key, or the cluster's own.
  Result<bool> IsSameKey(const std::string& cluster_id, const v1::ClusterSpec& spec);
  // Wraps all keys that are under another key-encryption key under the current one. What can't be unwrapped is
  // logged and left as it is. No engine hears of disks' keys: what it has of attached disks stays good. Of clusters' they do:
  // the next disk is opened with them.
  Status RewrapKeys();

  Result<v1::Cluster> CreateCluster(const v1::CreateClusterRequest& request);
  Result<v1::Cluster> GetCluster(const v1::GetClusterRequest& request);
  Result<v1::ListClustersResponse> ListClusters(const v1::ListClustersRequest& request);
  Result<v1::Cluster> UpdateCluster(const v1::UpdateClusterRequest& request);
  Result<v1::DeleteClusterResponse> DeleteCluster(const v1::DeleteClusterRequest& request);

  Result<v1::Group> CreateGroup(const v1::CreateGroupRequest& request);
  Result<v1::Group> GetGroup(const v1::GetGroupRequest& request);
  Result<v1::ListGroupsResponse> ListGroups(const v1::ListGroupsRequest& request);
  Result<v1::Group> UpdateGroup(const v1::UpdateGroupRequest& request);
  Result<v1::DeleteGroupResponse> DeleteGroup(const v1::DeleteGroupRequest& request);

  Result<v1::Controller> CreateController(const v1::CreateControllerRequest& request);
  Result<v1::Controller> GetController(const v1::GetControllerRequest& request);
  Result<v1::ListControllersResponse> ListControllers(const v1::ListControllersRequest& request);
  Result<v1::Controller> UpdateController(const v1::UpdateControllerRequest& request);
  Result<v1::DeleteControllerResponse> DeleteController(const v1::DeleteControllerRequest& request);

  Result<v1::Attachment> AttachDisk(const v1::AttachDiskRequest& request);
  Result<v1::DetachDiskResponse> DetachDisk(const v1::DetachDiskRequest& request);
  Result<v1::Attachment> GetAttachment(const v1::GetAttachmentRequest& request);
  Result<v1::ListAttachmentsResponse> ListAttachments(const v1::ListAttachmentsRequest& request);

  Result<v1::Engine> GetEngine(const v1::GetEngineRequest& request);
  Result<v1::ListEnginesResponse> ListEngines(const v1::ListEnginesRequest& request);
  Result<v1::UpgradeEngineResponse> UpgradeEngine(const v1::UpgradeEngineRequest& request);
  Result<v1::Engine> CancelUpgrade(const v1::CancelUpgradeRequest& request);

  Result<std::shared_ptr<Watcher>> Watch(uint64_t start_revision = 0);
  // Blocks until the condition is true, the time has passed, or `cancelled` (asked now and then) says so.
  Result<v1::WaitResponse> Wait(const v1::WaitRequest& request, const std::function<bool()>& cancelled);
  // Blocks until something is published after `revision`, or the deadline; returns the newest revision.
  uint64_t AwaitChange(uint64_t revision, std::chrono::steady_clock::time_point deadline);
  // Ends every Watch and Wait, those to come too.
  void StopWatchers();

  // Which paths callers may name; all, until it is set. Set once, before the first request.
  void SetPaths(const PathPolicy* paths) { paths_ = paths; }
  // The lists of paths were read again: engines are to do the same.
  void PathsChanged();
  // An engine's own, as it said. Kept when it can't be read.
  void ReportEnginePaths(const std::string& engine, const std::string& text);
  // The paths of a controller and its disks that the engine's lists exclude, for people; empty when there are none.
  std::string ExcludedFrom(const std::string& engine, const std::string& controller);
  // How the engine's lists differ from ours; empty when they don't, or it did not say.
  std::string PathDifferenceOf(const std::string& engine);
  // Stored disks, controllers and clusters whose paths callers may not name any more, though they are served: what is wrong, by the
  // resource's name.
  std::map<std::string, std::string> Unlisted();

  Result<StoreBackup> BackUpStore() { return BackUp(store_, NewestRevision()); }

  // Whether cleatd would load that store. (host_state_restore.cc)
  static Status CheckLoads(Store& store);
  // As the API says. Unless it is a dry run, the store takes no more writes after it: everything is to be loaded anew.
  Result<v1::RestoreStoreResponse> RestoreStore(StoreUpload& upload, const v1::RestoreStoreOptions& options);
  const keys::Keyring* keyring() const { return keyring_; }
  std::string store_folder() const { return store_.folder(); }

  // Whether the store takes writes; tries, when the last one failed.
  bool CheckStore();

  // ---- The reconciler's questions.
  // `wake` is called, under the mutex, when there is something in TakeChanged(). Set once, before the first
  // request.
  void SetWake(std::function<void()> wake);
  ChangedIntent TakeChanged();
  ControllerIntent IntentOf(const std::string& controller_id);
  std::vector<std::string> ControllersOn(const std::string& engine);
  // Those too that are to stand by there.
  std::vector<std::string> ControllersFor(const std::string& engine);
  // The engine that has that one's controllers standing by; empty when there is none.
  std::string StandbyFor(const std::string& engine);
  std::optional<UpgradeIntent> RunningUpgrade();
  std::vector<std::string> ControllersWith(const std::string& disk_id);
  std::optional<DiskRow> Disk(const std::string& id);
  std::optional<ClusterRow> ClusterById(const std::string& id);
  // Whether a disk of the cluster is attached on that engine, or is to be.
  bool UsesCluster(const std::string& engine, const std::string& cluster_id);
  std::vector<std::string> ClustersOn(const std::string& engine);
  std::vector<std::string> ControllersOfCluster(const std::string& cluster_id);
  // A group that has controllers on that engine, or standing by there; tombstones apart.
  std::optional<GroupRow> GroupOn(const std::string& engine, const std::string& group_id);
  std::vector<std::string> GroupsOn(const std::string& engine);
  std::vector<std::string> ControllersIn(const std::string& group_id);
  // Memory disks, tombstones too.
  std::vector<std::string> MemoryDisks();
  std::optional<DiskRow> MemoryDisk(const std::string& id);
  uint64_t NewestRevision();
  // In order. They stay as they are.
  const std::vector<LostRevisions>& lost() const { return lost_; }
  DiskIdentity IdentityOf(const DiskRow& row) const {
    return DiskIdentity::Of(store_.number(), row.revision);
  }

  // ---- The reconciler's reports. Those about things that are gone meanwhile, or aren't that engine's, are
  // ignored.
  void ReportEngine(const std::string& id,
                    const v1::EngineStatus& status);  // `controllers` is filled in here
  // Chooses an engine for each controller that has none, as far as there are any. After the end of an upgrade and of a
  // controller, which make room, it happens by itself.
  void PlaceControllers();
  // That the controller is to stand by on that engine, for as long as a move takes; empty: no more. Not durable.
  void PrepareMove(const std::string& controller, const std::string& engine);
  // All of them in one transaction, durable when it returns OK. Those that are gone meanwhile are left out.
  Status MoveControllers(const std::vector<Placement>& moves);
  // Of the upgrade away from that engine, or of what is taken from it since it died. kStored: durable, as far as the store
  // can be written.
  enum class Keep { kShown, kStored };
  void ReportUpgrade(const std::string& engine, const v1::UpgradeStatus& status, Keep keep);
  // The engine to which controllers of that one were being moved when cleatd ended; empty when none were.
  std::string InterruptedTo(const std::string& engine);
  // The controllers of engines of which that is so.
  std::vector<std::string> InterruptedFor(const std::string& to);
  // That engine has come back and said what it has, or (empty) all have had their time: it is awaited no more, also not after
  // the next restart.
  void EndReunion(const std::string& engine);
  // Whether the disk is attached on that engine, or to be, or is to stand by there.
  bool IsDiskFor(const std::string& disk_id, const std::string& engine);
  void ReportController(const std::string& engine, const std::string& id, const v1::ControllerStatus& status);
  void ReportHeld(const std::string& engine, HeldByEngine held);
  // Controllers that the engine has, that the restored store does not know, and that are left alone: all of them, by id.
  void ReportLeftAlone(const std::string& engine, std::map<std::string, v1::ControllerSpec> unknown);
  // After a restore: the engine says which disk the blk controller's guest had last, if the store can't know.
  Status LearnLastDisk(const std::string& controller, DiskIdentity disk, const std::string& name);
  // A blk controller's guest has forgotten its last disk: the one that is attached now becomes that, durably, before it is served.
  Status ReportNextDisk(const std::string& engine, const std::string& controller, DiskIdentity disk);
  void ReportAttachment(const std::string& engine, const AttachmentKey& key, const AttachmentReport& report);
  void ReportDisk(const std::string& id, v1::DiskState state, const std::string& message);
  // No report: that engine does not have it.
  void ReportGroup(const std::string& engine, const std::string& id,
                   const std::optional<GroupReport>& report);
  void ReportCluster(const std::string& engine, const std::string& id,
                     const std::optional<ClusterReport>& report);
  // That an engine holds, or does not hold, a memory disk's memory. Durable when it returns OK.
  Status RecordKept(const std::string& disk_id, const std::string& engine, bool kept);
  // Removes a tombstone. kUnavailable when the store can't be written: try again.
  Status ForgetAttachment(const std::string& controller_id, const std::string& id);
  Status ForgetController(const std::string& id);
  Status ForgetDisk(const std::string& id);

 private:
  // `status` is what was reported last; a tombstone shows as DELETING or DETACHING whatever it says.
  // `revision` is the one that the API shows.
  struct Use {
    bool detaching = false;
    uint64_t size_bytes = 0;  // as AttachmentStatus.size_bytes
    uint64_t limits_revision = 0;
  };
  struct DiskEntry {
    DiskRow row;
    v1::DiskStatus status;
    std::map<std::string, Use> attachments;  // by name
    uint64_t revision = 0;
  };
  struct AttachmentEntry {
    AttachmentRow row;
    v1::AttachmentStatus status;
    uint64_t revision = 0;
    bool fenced = false;
  };
  struct ControllerEntry {
    ControllerRow row;
    v1::ControllerStatus status;
    std::map<std::string, AttachmentEntry> attachments;
    uint64_t revision = 0;
    std::string moving_to = {};  // as PrepareMove says
  };
  struct GroupEntry {
    GroupRow row;
    std::set<std::string> controllers;           // ids, tombstones too
    std::map<std::string, GroupReport> engines;  // that have it, or should and can't
    uint64_t revision = 0;
  };
  struct ClusterEntry {
    ClusterRow row;
    std::set<std::string> disks;                   // ids
    std::map<std::string, ClusterReport> engines;  // that have it, or should and can't
    uint64_t revision = 0;
  };
  struct EngineEntry {
    v1::EngineStatus status;
    uint64_t revision = 0;
    std::optional<v1::UpgradeStatus> upgrade = std::nullopt;
    bool interrupted = false;  // by the end of the cleatd before this one; until EndReunion
    std::optional<PathLists> paths = std::nullopt;  // that it takes for listed; nothing: it is of before
  };

  // A disk whose file or memory is being looked at or made larger, without the mutex.
  struct BusyDisk {
    std::string storage;  // ClaimOfStorage
    std::string wwn;
    const char* doing;
  };
  // An attachment that is being written to the store, without the mutex.
  struct Attaching {
    const AttachmentRow* row;
    std::string disk;  // id
  };
  // What a Wait finds: what it waited for, why that won't come, or (neither) what is instead.
  struct Finding {
    std::optional<v1::WaitResponse> done = std::nullopt;
    std::optional<Error> failed = std::nullopt;
    std::string state = {};
  };

  HostState(Store& store, MemoryKeeper& memory, size_t watch_queue_max, keys::Keyring* keyring,
            KeepDeleted keep)
      : store_(store),
        memory_(memory),
        keyring_(keyring),
        keep_(std::move(keep)),
        hub_(watch_queue_max),
        commits_([this](std::span<const AttachmentRow* const> rows) { return store_.Put(rows); }) {}

  // From the store, at the start: kinds that others name come first. An error when one is named that is not there.
  Status Fill(Rows rows) CLEAT_REQUIRES(mutex_);
  void FillClusters(std::vector<ClusterRow> rows) CLEAT_REQUIRES(mutex_);
  Status FillDisks(std::vector<DiskRow> rows) CLEAT_REQUIRES(mutex_);
  Status FillGroups(std::vector<GroupRow> rows) CLEAT_REQUIRES(mutex_);
  Status FillControllers(std::vector<ControllerRow> rows) CLEAT_REQUIRES(mutex_);
  Status FillAttachments(std::vector<AttachmentRow> rows) CLEAT_REQUIRES(mutex_);
  void FillUpgrades(std::vector<UpgradeRow> rows) CLEAT_REQUIRES(mutex_);
  void LookAtFiles() CLEAT_REQUIRES(mutex_);
  uint64_t NextRevision() CLEAT_REQUIRES(mutex_);

  // Gives the entry a new revision and tells the watchers.
  void Publish(DiskEntry& entry) CLEAT_REQUIRES(mutex_);
  void Publish(ClusterEntry& entry) CLEAT_REQUIRES(mutex_);
  void Publish(GroupEntry& entry) CLEAT_REQUIRES(mutex_);
  void Publish(ControllerEntry& entry) CLEAT_REQUIRES(mutex_);
  void Publish(AttachmentEntry& entry) CLEAT_REQUIRES(mutex_);
  void Publish(const std::string& id, EngineEntry& entry) CLEAT_REQUIRES(mutex_);
  void PublishGone(const std::string& name) CLEAT_REQUIRES(mutex_);
  void Tell(const WatchEvent& event) CLEAT_REQUIRES(mutex_);
  std::vector<WatchEvent> Snapshot() const CLEAT_REQUIRES(mutex_);

  // Paths of a controller and of its disks that we list and the engine does not, for people: "file '/srv/a' of disks/a".
  std::vector<std::string> ExcludedOn(const std::string& engine, const ControllerEntry& entry) const
      CLEAT_REQUIRES(mutex_);
  Status CheckPathsOf(const std::string& from, const std::string& to) const CLEAT_REQUIRES(mutex_);
  // For people: how an engine's lists differ from ours, and what it does not stand by for because of that. Empty when they are the same.
  std::string PathNote(const std::string& id, const EngineEntry& entry) const CLEAT_REQUIRES(mutex_);
  // Why callers may not name the path in that row; nothing when they may.
  std::optional<std::string> WhyUnlisted(const DiskRow& row) const;
  std::optional<std::string> WhyUnlisted(const ControllerRow& row) const;
  std::optional<std::string> WhyUnlisted(const ClusterRow& row) const;
  v1::Disk Show(const DiskEntry& entry) const CLEAT_REQUIRES(mutex_);
  v1::Disk Show(const DeletedDiskRow& row) const CLEAT_REQUIRES(mutex_);
  v1::Cluster Show(const ClusterEntry& entry) const CLEAT_REQUIRES(mutex_);
  v1::Group Show(const GroupEntry& entry) const CLEAT_REQUIRES(mutex_);
  v1::Controller Show(const ControllerEntry& entry) const CLEAT_REQUIRES(mutex_);
  v1::Attachment Show(const AttachmentEntry& entry) const CLEAT_REQUIRES(mutex_);
  v1::Engine Show(const std::string& id, const EngineEntry& entry) const CLEAT_REQUIRES(mutex_);

  DiskEntry* FindDisk(const std::string& id) CLEAT_REQUIRES(mutex_);
  ClusterEntry* FindCluster(const std::string& id) CLEAT_REQUIRES(mutex_);
  GroupEntry* FindGroup(const std::string& id) CLEAT_REQUIRES(mutex_);
  ControllerEntry* FindController(const std::string& id) CLEAT_REQUIRES(mutex_);
  AttachmentEntry* FindAttachment(const std::string& controller_id, const std::string& id)
      CLEAT_REQUIRES(mutex_);

  // Takes the key out of what was asked for; nothing when there is none.
  Result<std::optional<keys::Secret>> TakeKey(const std::string& id, v1::DiskSpec* asked) const
      CLEAT_EXCLUDES(mutex_);
  // Puts it there, wrapped; the spec is complete. Checks it.
  Status PutKey(const std::string& id, const std::optional<keys::Secret>& key, v1::DiskSpec* spec) const
      CLEAT_EXCLUDES(mutex_);
  // kAlreadyExists when the disk has another one.
  Status CompareKey(const DiskRow& row, const std::optional<keys::Secret>& key) const CLEAT_REQUIRES(mutex_);

  // The disk that is there already, or why it can't be made; nullptr when it can.
  Result<DiskEntry*> CheckNewDisk(const std::string& id, const v1::DiskSpec& spec) CLEAT_REQUIRES(mutex_);
  // Whether one more disk may be there, and may have that storage.
  Status CheckRoomForDisk(const std::string& id, const v1::DiskSpec& spec) CLEAT_REQUIRES(mutex_);
  // What the disk's file is, if it has one. PrepareBackend makes the file or the memory of a new disk; RestoreBackend makes no file, since
  // that of an undeleted disk has content.
  using BackendIdentity = std::optional<StorageIdentity>;
  Result<BackendIdentity> PrepareBackend(const std::string& id, const v1::DiskSpec& spec)
      CLEAT_EXCLUDES(mutex_);
  Result<BackendIdentity> RestoreBackend(const std::string& id, const v1::DiskSpec& spec)
      CLEAT_EXCLUDES(mutex_);
  // As RestoreBackend, from under the mutex, which is let go meanwhile.
  Result<BackendIdentity> RestoreBackendUnlocked(const std::string& id, const v1::DiskSpec& spec)
      CLEAT_REQUIRES(mutex_);
  // Waits a while for other disks' files to be looked at.
  void AwaitLooks(const std::string& id, const StorageIdentity& identity) CLEAT_EXCLUDES(mutex_);
  // FILE_TAKEN when another disk has that file, by whatever name; otherwise the disk has it from now on.
  Status CheckSameStorage(const std::string& id, const v1::DiskSpec& spec, const BackendIdentity& identity)
      CLEAT_REQUIRES(mutex_);
  Status GrowBackend(const std::string& id, const v1::DiskSpec& spec) CLEAT_EXCLUDES(mutex_);
  // The disk that an update is for, or why it can't have one now. (host_state_updates.cc)
  Result<DiskEntry*> FindForUpdate(const std::string& id, const std::string& etag) CLEAT_REQUIRES(mutex_);
  // Makes what is behind the disk as large as `spec` says. Without the mutex meanwhile; the disk is busy, so it stays.
  Status Grow(const DiskEntry& entry, const v1::DiskSpec& spec) CLEAT_REQUIRES(mutex_);
  Status GrowBackendUnlocked(const std::string& id, const v1::DiskSpec& spec) CLEAT_REQUIRES(mutex_);
  Status CommitUpdate(DiskEntry& entry, const v1::DiskSpec& spec, Labels labels) CLEAT_REQUIRES(mutex_);
  Result<v1::Disk> CommitDisk(DiskEntry entry) CLEAT_REQUIRES(mutex_);
  Status CheckUnique(const std::string& id, const v1::DiskSpec& spec) const CLEAT_REQUIRES(mutex_);
  DiskEntry& AddDisk(DiskEntry entry) CLEAT_REQUIRES(mutex_);
  template <typename Entry, typename Report>
  void TakeReport(Entry* entry, const std::string& engine, const std::optional<Report>& report)
      CLEAT_REQUIRES(mutex_);
  // An RBD disk whose image was made larger by somebody else: that is its size from now on.
  void TakeGrownSize(DiskEntry& entry, uint64_t size_bytes) CLEAT_REQUIRES(mutex_);
  // An RBD disk whose image has that many bytes: the engine that has it READY saw that, or made it so.
  void TakeImageSize(DiskEntry& entry, uint64_t size_bytes) CLEAT_REQUIRES(mutex_);
  void TakeMode(DiskEntry& disk, AttachmentEntry& entry, v1::AttachmentState state) CLEAT_REQUIRES(mutex_);
  void SetMode(AttachmentEntry& entry, v1::AttachmentMode mode) CLEAT_REQUIRES(mutex_);
  uint64_t KnownSize(const DiskEntry& entry) const CLEAT_REQUIRES(mutex_);
  // The attachment whose engine does not know the present limits; empty when there is none.
  std::string BehindLimits(const DiskEntry& entry) const CLEAT_REQUIRES(mutex_);
  Status CheckNotAttached(const std::string& name, const DiskEntry& entry) const CLEAT_REQUIRES(mutex_);
  Status EraseDisk(DiskEntry& entry) CLEAT_REQUIRES(mutex_);
  // Removes a disk whose row the store has no more.
  void DropDisk(DiskEntry& entry) CLEAT_REQUIRES(mutex_);

  // Deleted disks. (host_state_deleted.cc)
  std::string UidOf(const DiskRow& row) const CLEAT_REQUIRES(mutex_);
  Status CheckKeepDeleted(const DiskRow& row, const v1::DeleteDiskRequest& request) const
      CLEAT_REQUIRES(mutex_);
  std::optional<DeletedDiskRow> WhatIsKept(const DiskRow& row, const v1::DeleteDiskRequest& request)
      CLEAT_REQUIRES(mutex_);
  // By uid, or (empty) the one that was deleted last; null when it is not kept.
  Result<const DeletedDiskRow*> FindDeleted(const std::string& id, const std::string& uid) const
      CLEAT_REQUIRES(mutex_);
  Status CheckUndelete(const DeletedDiskRow& row) CLEAT_REQUIRES(mutex_);
  Result<v1::Disk> CommitUndelete(const std::string& id, uint64_t kept_revision) CLEAT_REQUIRES(mutex_);

  // The cluster's key, taken out of what was asked for, as TakeKey and PutKey do for disks.
  Result<std::optional<keys::Secret>> TakeKey(const std::string& id, v1::ClusterSpec* asked) const;
  Status PutKey(const std::string& id, const keys::Secret& key, v1::ClusterSpec* spec) const;
  // Whether the row's key is that one; true when there is none to compare.
  Result<bool> HasKey(const ClusterRow& row, const std::optional<keys::Secret>& key) const
      CLEAT_REQUIRES(mutex_);
  // Whether callers may name its conf file.
  Status CheckConfFile(const std::string& name, const v1::ClusterSpec& spec) const CLEAT_EXCLUDES(mutex_);
  Status CheckClusterOf(const std::string& disk_id, const v1::DiskSpec& spec) CLEAT_REQUIRES(mutex_);
  // Puts a disk into the cluster that its spec names, or takes it out.
  void JoinCluster(const DiskRow& row) CLEAT_REQUIRES(mutex_);
  void LeaveCluster(const DiskRow& row) CLEAT_REQUIRES(mutex_);
  // The engines on which the cluster's disks are attached, or are to be; or are to stand by as well.
  enum class Which { kServing, kStandingByToo };
  std::set<std::string> EnginesOf(const ClusterEntry& entry, Which which) const CLEAT_REQUIRES(mutex_);
  std::string BehindSpec(const ClusterEntry& entry) const CLEAT_REQUIRES(mutex_);
  Status RewrapClusterKeys(const std::string& current) CLEAT_REQUIRES(mutex_);
  // Wraps the row's key under that key-encryption key. False when that was so already, when there is no key, and when it can't be
  // unwrapped, which is counted in `failed`.
  bool Rewrap(const std::string& current, DiskRow& row, size_t& failed) const CLEAT_REQUIRES(mutex_);

  Result<uint32_t> FreeSlot(const std::string& name) CLEAT_REQUIRES(mutex_);
  // Puts a controller in the group that its spec names, or takes it out.
  void JoinGroup(const ControllerRow& row) CLEAT_REQUIRES(mutex_);
  void LeaveGroup(const ControllerRow& row) CLEAT_REQUIRES(mutex_);
  // Which engines don't know the present limits, for people; empty when all do.
  std::string BehindLimits(const GroupEntry& entry) const CLEAT_REQUIRES(mutex_);

  // Restoring, and what is left alone since. (host_state_restore.cc)
  // Whether callers might name what the backup names, or it is stored already.
  Status CheckRestoredPaths(const Rows& restored) const CLEAT_EXCLUDES(mutex_);
  Result<LostRevisions> PrepareRestored(StoreUpload& upload, const Rows& present) CLEAT_REQUIRES(mutex_);
  // An engine that is left alone; empty: none.
  std::string EngineThatServes(const std::string& controller) const CLEAT_REQUIRES(mutex_);
  Status DeleteLeftAlone(const std::string& id) CLEAT_REQUIRES(mutex_);
  Status NoteTouched(ControllerEntry& controller) CLEAT_REQUIRES(mutex_);

  Result<ControllerEntry*> CheckNewController(const std::string& id, const v1::ControllerSpec& spec)
      CLEAT_REQUIRES(mutex_);
  std::string ChooseEngine() const CLEAT_REQUIRES(mutex_);  // empty when there is none
  void PlaceWaiting() CLEAT_REQUIRES(mutex_);
  Status CheckChosenEngine(const std::string& controller, const v1::ControllerSpec& spec) const
      CLEAT_REQUIRES(mutex_);
  // Standing by. (host_state_upgrades.cc)
  bool StandsBy(const std::string& engine) const CLEAT_REQUIRES(mutex_);
  std::string StandbyOf(const std::string& principal) const CLEAT_REQUIRES(mutex_);
  std::set<std::string> PreparedOn(const ControllerEntry& entry) const CLEAT_REQUIRES(mutex_);
  bool IsFor(const ControllerEntry& entry, const std::string& engine) const CLEAT_REQUIRES(mutex_);
  Status CheckUpgrade(const std::string& from, const std::string& to) const CLEAT_REQUIRES(mutex_);
  Result<const EngineEntry*> FindForUpgrade(const std::string& id) const CLEAT_REQUIRES(mutex_);
  std::string ObstacleOf(const ControllerEntry& entry) const CLEAT_REQUIRES(mutex_);
  void SetEngineStatus(const std::string& id, const v1::EngineStatus& status) CLEAT_REQUIRES(mutex_);
  void CountController(const std::string& engine, int difference) CLEAT_REQUIRES(mutex_);
  Status EraseController(ControllerEntry& entry) CLEAT_REQUIRES(mutex_);

  // Waits until none is being written that decides what the caller finds.
  template <typename Decides>
  void AwaitAttaching(Decides decides) CLEAT_REQUIRES(mutex_) {
    while (std::any_of(attaching_.begin(), attaching_.end(), decides)) attached_.Wait(mutex_);
  }
  bool IsForManyReaders(const std::string& disk_id) CLEAT_REQUIRES(mutex_);
  // Writes the row, without the mutex meanwhile; neither its controller nor its disk goes.
  Status CommitAttachment(const AttachmentRow& row, const std::string& disk_id) CLEAT_REQUIRES(mutex_);
  Status WriteUnlocked(const AttachmentRow& row) CLEAT_REQUIRES(mutex_);
  Result<uint32_t> FreeTarget(const ControllerEntry& controller, const std::string& name) const
      CLEAT_REQUIRES(mutex_);
  Status CheckNewAttachment(const ControllerEntry& controller, const AttachmentRow& row)
      CLEAT_REQUIRES(mutex_);
  Status CheckDiskForAttachment(const std::string& name, const v1::AttachmentSpec& spec)
      CLEAT_REQUIRES(mutex_);
  Status EraseAttachment(ControllerEntry& controller, const std::string& id) CLEAT_REQUIRES(mutex_);
  // Before the blk controller lets go of the disk: its guest has that one under way.
  Status KeepLastDisk(ControllerEntry& controller, const DiskEntry& disk) CLEAT_REQUIRES(mutex_);

  Finding Find(const v1::WaitRequest& request) CLEAT_REQUIRES(mutex_);
  Finding FindDiskState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(mutex_);
  Finding FindClusterState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(mutex_);
  Finding FindGroupState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(mutex_);
  Finding FindControllerState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(mutex_);
  Finding FindAttachmentState(const v1::WaitRequest& request, const AttachmentIds& ids)
      CLEAT_REQUIRES(mutex_);
  Finding FindEngineState(const v1::WaitRequest& request, const std::string& id) CLEAT_REQUIRES(mutex_);

  void ControllerChanged(const std::string& id) CLEAT_REQUIRES(mutex_);
  void DiskChanged(const std::string& id) CLEAT_REQUIRES(mutex_);
  void ClusterChanged(const std::string& id) CLEAT_REQUIRES(mutex_);
  void GroupChanged(const std::string& id) CLEAT_REQUIRES(mutex_);

  Store& store_;
  MemoryKeeper& memory_;
  keys::Keyring* const keyring_;
  const KeepDeleted keep_;
  const PathPolicy all_paths_;
  const PathPolicy* paths_ = &all_paths_;
  uint64_t paths_checked_from_ = 0;  // Rows'
  KnownStorages storages_;
  WatchHub hub_;
  GroupCommit<AttachmentRow> commits_;
  Mutex mutex_;
  std::function<void()> wake_ CLEAT_GUARDED_BY(mutex_) = [] {};
  uint64_t revision_ CLEAT_GUARDED_BY(mutex_) = 0;         // the last one handed out
  uint64_t revisions_until_ CLEAT_GUARDED_BY(mutex_) = 0;  // reserved in the store up to here, exclusive
  std::map<std::string, DiskEntry> disks_ CLEAT_GUARDED_BY(mutex_);
  DeletedDisks deleted_ CLEAT_GUARDED_BY(mutex_);
  std::map<std::string, ClusterEntry> clusters_ CLEAT_GUARDED_BY(mutex_);
  std::map<std::string, GroupEntry> groups_ CLEAT_GUARDED_BY(mutex_);
  std::map<std::string, ControllerEntry> controllers_ CLEAT_GUARDED_BY(mutex_);
  std::map<std::string, EngineEntry> engines_ CLEAT_GUARDED_BY(mutex_);
  std::vector<LostRevisions> lost_;                                    // as Load() found them
  std::map<std::string, HeldByEngine> held_ CLEAT_GUARDED_BY(mutex_);  // by engine
  // By engine: ReportLeftAlone.
  std::map<std::string, std::map<std::string, v1::ControllerSpec>> left_alone_ CLEAT_GUARDED_BY(mutex_);
  std::map<std::string, BusyDisk> busy_ CLEAT_GUARDED_BY(mutex_);  // by id
  // Of storage and world wide names: disks' ids by ClaimsOf.
  std::multimap<std::string, std::string> claims_ CLEAT_GUARDED_BY(mutex_);
  uint32_t last_slot_ CLEAT_GUARDED_BY(mutex_) = 0;  // given to a group
  std::list<Attaching> attaching_ CLEAT_GUARDED_BY(mutex_);
  CondVar attached_;
  CondVar published_;
  size_t waiters_ CLEAT_GUARDED_BY(mutex_) = 0;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  ChangedIntent changed_ CLEAT_GUARDED_BY(mutex_);
  std::optional<UpgradeIntent> upgrade_ CLEAT_GUARDED_BY(mutex_);  // one at a time
};

}  // namespace cleat::control
