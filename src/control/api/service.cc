// SPDX-License-Identifier: Apache-2.0
#include "control/api/service.h"

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "control/api/apply_host.h"
#include "control/api/plain_keys.h"
#include "control/backup/store_restore.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/observe/stuck_list.h"

namespace cleat::control {
namespace {

// How often a watcher that hears nothing looks whether its caller is still there.
constexpr std::chrono::milliseconds kWatchTurn{500};
constexpr size_t kBackupPieceBytes = size_t{1024} * 1024;

// For calls that wait.
std::function<bool()> HasGone(const grpc::ServerContext& context) {
  return [&context] { return context.IsCancelled(); };
}

// What it will be called, as far as the request says.
std::string AttachmentNameOf(const v1::AttachDiskRequest& request) {
  std::string id = request.attachment_id();
  if (const auto disk = ParseDiskName(request.attachment().spec().disk()); id.empty() && disk.ok())
    id = *disk;
  return request.parent() + "/attachments/" + id;
}

// Ends early when the caller goes away.
grpc::Status Send(const StoreBackup& backup, grpc::ServerWriter<v1::BackupStoreResponse>& writer) {
  v1::BackupStoreResponse piece;
  *piece.mutable_info() = backup.info;
  off_t offset = 0;
  while (writer.Write(piece)) {
    std::string& data = *piece.mutable_data();
    data.resize(kBackupPieceBytes);
    const ssize_t bytes = pread(backup.file.get(), data.data(), data.size(), offset);
    if (bytes < 0) return ToGrpc(ErrnoError(errno, "the backup can't be read"));
    if (bytes == 0) return grpc::Status::OK;
    data.resize(static_cast<size_t>(bytes));
    offset += bytes;
  }
  return grpc::Status::CANCELLED;
}

Result<std::unique_ptr<StoreUpload>> Receive(grpc::ServerReader<v1::RestoreStoreRequest>& reader,
                                             const std::string& store_folder, uint64_t size_bytes) {
  auto upload = StoreUpload::Make(store_folder, size_bytes);
  CLEAT_TRY(upload);
  v1::RestoreStoreRequest piece;
  while (reader.Read(&piece)) {
    CLEAT_TRY((*upload)->Write(piece.data()));
  }
  return upload;
}

}  // namespace

grpc::Status Service::CreateDisk(grpc::ServerContext* context, const v1::CreateDiskRequest* request,
                                 v1::Disk* reply) {
  static constexpr Method kMethod{"CreateDisk", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::CreateDiskRequest*>(request)->mutable_disk());
  return guard_.Handle(*context, kMethod, DiskName(request->disk_id()), reply,
                       [&](const Caller& caller) -> Result<v1::Disk> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.disks().Create(*request);
                       });
}

grpc::Status Service::GetDisk(grpc::ServerContext* context, const v1::GetDiskRequest* request,
                              v1::Disk* reply) {
  static constexpr Method kMethod{"GetDisk", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply, [&]() -> Result<v1::Disk> {
    CLEAT_ASSIGN(auto disk, state_.disks().Get(*request));
    state_.disk_doubt().AddTo(disk);
    return disk;
  });
}

grpc::Status Service::ListDisks(grpc::ServerContext* context, const v1::ListDisksRequest* request,
                                v1::ListDisksResponse* reply) {
  static constexpr Method kMethod{"ListDisks", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "disks", reply, [&] { return state_.disks().List(*request); });
}

grpc::Status Service::UpdateDisk(grpc::ServerContext* context, const v1::UpdateDiskRequest* request,
                                 v1::Disk* reply) {
  static constexpr Method kMethod{"UpdateDisk", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->disk().name(), reply,
                       [&] { return state_.disks().Update(*request); });
}

grpc::Status Service::DeleteDisk(grpc::ServerContext* context, const v1::DeleteDiskRequest* request,
                                 v1::DeleteDiskResponse* reply) {
  static constexpr Method kKeep{"DeleteDisk", Role::kAttach, true};
  static constexpr Method kPurge{"DeleteDisk(purge)", Role::kAdmin, true};
  const Method& method = request->purge() ? kPurge : kKeep;
  return guard_.Handle(*context, method, request->name(), reply,
                       [&] { return state_.disks().Delete(*request); });
}

grpc::Status Service::UndeleteDisk(grpc::ServerContext* context, const v1::UndeleteDiskRequest* request,
                                   v1::Disk* reply) {
  static constexpr Method kMethod{"UndeleteDisk", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.kept_disks().Undelete(*request); });
}

grpc::Status Service::PurgeDisk(grpc::ServerContext* context, const v1::PurgeDiskRequest* request,
                                v1::PurgeDiskResponse* reply) {
  static constexpr Method kMethod{"PurgeDisk", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.kept_disks().Purge(*request); });
}

grpc::Status Service::ConfirmDead(grpc::ServerContext* context, const v1::ConfirmDeadRequest* request,
                                  v1::Disk* reply) {
  static constexpr Method kMethod{"ConfirmDead", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.disk_doubt().ConfirmDead(*request); });
}

grpc::Status Service::CreateCluster(grpc::ServerContext* context, const v1::CreateClusterRequest* request,
                                    v1::Cluster* reply) {
  static constexpr Method kMethod{"CreateCluster", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::CreateClusterRequest*>(request)->mutable_cluster());
  return guard_.Handle(*context, kMethod, ClusterName(request->cluster_id()), reply,
                       [&](const Caller& caller) -> Result<v1::Cluster> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.clusters().Create(*request);
                       });
}

grpc::Status Service::GetCluster(grpc::ServerContext* context, const v1::GetClusterRequest* request,
                                 v1::Cluster* reply) {
  static constexpr Method kMethod{"GetCluster", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.clusters().Get(*request); });
}

grpc::Status Service::ListClusters(grpc::ServerContext* context, const v1::ListClustersRequest* request,
                                   v1::ListClustersResponse* reply) {
  static constexpr Method kMethod{"ListClusters", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "clusters", reply,
                       [&] { return state_.clusters().List(*request); });
}

grpc::Status Service::UpdateCluster(grpc::ServerContext* context, const v1::UpdateClusterRequest* request,
                                    v1::Cluster* reply) {
  static constexpr Method kMethod{"UpdateCluster", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::UpdateClusterRequest*>(request)->mutable_cluster());
  return guard_.Handle(*context, kMethod, request->cluster().name(), reply,
                       [&](const Caller& caller) -> Result<v1::Cluster> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.clusters().Update(*request);
                       });
}

grpc::Status Service::DeleteCluster(grpc::ServerContext* context, const v1::DeleteClusterRequest* request,
                                    v1::DeleteClusterResponse* reply) {
  static constexpr Method kMethod{"DeleteCluster", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.clusters().Delete(*request); });
}

grpc::Status Service::CreateSubsystem(grpc::ServerContext* context, const v1::CreateSubsystemRequest* request,
                                      v1::Subsystem* reply) {
  static constexpr Method kMethod{"CreateSubsystem", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::CreateSubsystemRequest*>(request)->mutable_subsystem());
  return guard_.Handle(*context, kMethod, SubsystemName(request->subsystem_id()), reply,
                       [&](const Caller& caller) -> Result<v1::Subsystem> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.subsystems().Create(*request);
                       });
}

grpc::Status Service::GetSubsystem(grpc::ServerContext* context, const v1::GetSubsystemRequest* request,
                                   v1::Subsystem* reply) {
  static constexpr Method kMethod{"GetSubsystem", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.subsystems().Get(*request); });
}

grpc::Status Service::ListSubsystems(grpc::ServerContext* context, const v1::ListSubsystemsRequest* request,
                                     v1::ListSubsystemsResponse* reply) {
  static constexpr Method kMethod{"ListSubsystems", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "subsystems", reply,
                       [&] { return state_.subsystems().List(*request); });
}

grpc::Status Service::UpdateSubsystem(grpc::ServerContext* context, const v1::UpdateSubsystemRequest* request,
                                      v1::Subsystem* reply) {
  static constexpr Method kMethod{"UpdateSubsystem", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::UpdateSubsystemRequest*>(request)->mutable_subsystem());
  return guard_.Handle(*context, kMethod, request->subsystem().name(), reply,
                       [&](const Caller& caller) -> Result<v1::Subsystem> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.subsystems().Update(*request);
                       });
}

grpc::Status Service::DeleteSubsystem(grpc::ServerContext* context, const v1::DeleteSubsystemRequest* request,
                                      v1::DeleteSubsystemResponse* reply) {
  static constexpr Method kMethod{"DeleteSubsystem", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.subsystems().Delete(*request); });
}

// Has this host connect to an address of the caller's choice, as an attached disk does: the role is that of who may attach.
grpc::Status Service::DiscoverSubsystems(grpc::ServerContext* context,
                                         const v1::DiscoverSubsystemsRequest* request,
                                         v1::DiscoverSubsystemsResponse* reply) {
  static constexpr Method kMethod{"DiscoverSubsystems", Role::kAttach, false};
  auto* const asked = const_cast<v1::DiscoverSubsystemsRequest*>(request);
  const PlainKeys keys(asked);
  return guard_.Handle(*context, kMethod, "subsystems", reply,
                       [&](const Caller& caller) -> Result<v1::DiscoverSubsystemsResponse> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.discoveries().Discover(asked, HasGone(*context));
                       });
}

grpc::Status Service::WatchDiscovery(grpc::ServerContext* context,
                                     const v1::DiscoverSubsystemsRequest* request,
                                     grpc::ServerWriter<v1::DiscoverSubsystemsResponse>* writer) {
  static constexpr Method kMethod{"WatchDiscovery", Role::kAttach, false};
  auto* const asked = const_cast<v1::DiscoverSubsystemsRequest*>(request);
  const PlainKeys keys(asked);
  const auto admission = guard_.Admit(*context, kMethod);
  if (!admission.status.ok()) return ToGrpc(admission.status.error());
  if (const auto status = keys.Check(admission.caller); !status.ok()) return ToGrpc(status.error());
  const log::RequestScope scope(log::AsRequestId(admission.request_id));
  const auto write = [&](const v1::DiscoverSubsystemsResponse& log) { return writer->Write(log); };
  return ToGrpc(state_.discoveries().Watch(asked, write, HasGone(*context)).error());
}

// A pool's drive is erased as a whole, which nothing takes back: making one takes the role that purging does.
grpc::Status Service::CreatePool(grpc::ServerContext* context, const v1::CreatePoolRequest* request,
                                 v1::Pool* reply) {
  static constexpr Method kMethod{"CreatePool", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, PoolName(request->pool_id()), reply, [&] {
    return request->from_drive() ? state_.found_pools().Create(*request) : state_.pools().Create(*request);
  });
}

// A look at a device by somebody who may make a pool of it.
grpc::Status Service::ScanDrive(grpc::ServerContext* context, const v1::ScanDriveRequest* request,
                                v1::ScanDriveResponse* reply) {
  static constexpr Method kMethod{"ScanDrive", Role::kAdmin, false};
  return guard_.Handle(*context, kMethod, request->device(), reply,
                       [&] { return state_.found_pools().Scan(*request); });
}

grpc::Status Service::GetPool(grpc::ServerContext* context, const v1::GetPoolRequest* request,
                              v1::Pool* reply) {
  static constexpr Method kMethod{"GetPool", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.pools().Get(*request); });
}

grpc::Status Service::ListPools(grpc::ServerContext* context, const v1::ListPoolsRequest* request,
                                v1::ListPoolsResponse* reply) {
  static constexpr Method kMethod{"ListPools", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "pools", reply, [&] { return state_.pools().List(*request); });
}

grpc::Status Service::DeletePool(grpc::ServerContext* context, const v1::DeletePoolRequest* request,
                                 v1::DeletePoolResponse* reply) {
  static constexpr Method kMethod{"DeletePool", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.pools().Delete(*request); });
}

grpc::Status Service::CreateGroup(grpc::ServerContext* context, const v1::CreateGroupRequest* request,
                                  v1::Group* reply) {
  static constexpr Method kMethod{"CreateGroup", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, GroupName(request->group_id()), reply,
                       [&] { return state_.groups().Create(*request); });
}

grpc::Status Service::GetGroup(grpc::ServerContext* context, const v1::GetGroupRequest* request,
                               v1::Group* reply) {
  static constexpr Method kMethod{"GetGroup", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.groups().Get(*request); });
}

grpc::Status Service::ListGroups(grpc::ServerContext* context, const v1::ListGroupsRequest* request,
                                 v1::ListGroupsResponse* reply) {
  static constexpr Method kMethod{"ListGroups", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "groups", reply, [&] { return state_.groups().List(*request); });
}

grpc::Status Service::UpdateGroup(grpc::ServerContext* context, const v1::UpdateGroupRequest* request,
                                  v1::Group* reply) {
  static constexpr Method kMethod{"UpdateGroup", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->group().name(), reply,
                       [&] { return state_.groups().Update(*request); });
}

grpc::Status Service::DeleteGroup(grpc::ServerContext* context, const v1::DeleteGroupRequest* request,
                                  v1::DeleteGroupResponse* reply) {
  static constexpr Method kMethod{"DeleteGroup", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.groups().Delete(*request); });
}

grpc::Status Service::CreateController(grpc::ServerContext* context,
                                       const v1::CreateControllerRequest* request, v1::Controller* reply) {
  static constexpr Method kMethod{"CreateController", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::CreateControllerRequest*>(request)->mutable_controller());
  return guard_.Handle(*context, kMethod, ControllerName(request->controller_id()), reply,
                       [&](const Caller& caller) -> Result<v1::Controller> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.controllers().Create(*request);
                       });
}

grpc::Status Service::GetController(grpc::ServerContext* context, const v1::GetControllerRequest* request,
                                    v1::Controller* reply) {
  static constexpr Method kMethod{"GetController", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.controllers().Get(*request); });
}

grpc::Status Service::ListControllers(grpc::ServerContext* context, const v1::ListControllersRequest* request,
                                      v1::ListControllersResponse* reply) {
  static constexpr Method kMethod{"ListControllers", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "controllers", reply,
                       [&] { return state_.controllers().List(*request); });
}

grpc::Status Service::UpdateController(grpc::ServerContext* context,
                                       const v1::UpdateControllerRequest* request, v1::Controller* reply) {
  static constexpr Method kMethod{"UpdateController", Role::kAttach, true};
  const PlainKeys keys(const_cast<v1::UpdateControllerRequest*>(request)->mutable_controller());
  return guard_.Handle(*context, kMethod, request->controller().name(), reply,
                       [&](const Caller& caller) -> Result<v1::Controller> {
                         CLEAT_TRY(keys.Check(caller));
                         return state_.controllers().Update(*request);
                       });
}

grpc::Status Service::DeleteController(grpc::ServerContext* context,
                                       const v1::DeleteControllerRequest* request,
                                       v1::DeleteControllerResponse* reply) {
  static constexpr Method kMethod{"DeleteController", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.controllers().Delete(*request); });
}

grpc::Status Service::AttachDisk(grpc::ServerContext* context, const v1::AttachDiskRequest* request,
                                 v1::Attachment* reply) {
  static constexpr Method kMethod{"AttachDisk", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, AttachmentNameOf(*request), reply,
                       [&] { return state_.attachments().Attach(*request); });
}

grpc::Status Service::DetachDisk(grpc::ServerContext* context, const v1::DetachDiskRequest* request,
                                 v1::DetachDiskResponse* reply) {
  static constexpr Method kMethod{"DetachDisk", Role::kAttach, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.attachments().Detach(*request); });
}

grpc::Status Service::GetAttachment(grpc::ServerContext* context, const v1::GetAttachmentRequest* request,
                                    v1::Attachment* reply) {
  static constexpr Method kMethod{"GetAttachment", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.attachments().Get(*request); });
}

grpc::Status Service::ListAttachments(grpc::ServerContext* context, const v1::ListAttachmentsRequest* request,
                                      v1::ListAttachmentsResponse* reply) {
  static constexpr Method kMethod{"ListAttachments", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->parent(), reply,
                       [&] { return state_.attachments().List(*request); });
}

grpc::Status Service::GetEngine(grpc::ServerContext* context, const v1::GetEngineRequest* request,
                                v1::Engine* reply) {
  static constexpr Method kMethod{"GetEngine", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.engines().Get(*request); });
}

grpc::Status Service::ListEngines(grpc::ServerContext* context, const v1::ListEnginesRequest* request,
                                  v1::ListEnginesResponse* reply) {
  static constexpr Method kMethod{"ListEngines", Role::kRead, false};
  return guard_.Handle(*context, kMethod, "engines", reply, [&] { return state_.engines().List(*request); });
}

grpc::Status Service::UpgradeEngine(grpc::ServerContext* context, const v1::UpgradeEngineRequest* request,
                                    v1::UpgradeEngineResponse* reply) {
  static constexpr Method kMethod{"UpgradeEngine", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.upgrades().Begin(*request); });
}

grpc::Status Service::CancelUpgrade(grpc::ServerContext* context, const v1::CancelUpgradeRequest* request,
                                    v1::Engine* reply) {
  static constexpr Method kMethod{"CancelUpgrade", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.upgrades().Cancel(*request); });
}

grpc::Status Service::ForgetEngine(grpc::ServerContext* context, const v1::ForgetEngineRequest* request,
                                   v1::ForgetEngineResponse* reply) {
  static constexpr Method kMethod{"ForgetEngine", Role::kAdmin, true};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&] { return state_.engine_removal().Forget(*request); });
}

grpc::Status Service::ApplyHost(grpc::ServerContext* context, const v1::ApplyHostRequest* request,
                                v1::ApplyHostResponse* reply) {
  static constexpr Method kAdd{"ApplyHost", Role::kAttach, true};
  static constexpr Method kExact{"ApplyHost(EXACT)", Role::kAdmin, true};
  const Method& method = request->mode() == v1::APPLY_MODE_EXACT ? kExact : kAdd;
  PlainKeys keys;
  auto& given = *const_cast<v1::ApplyHostRequest*>(request);
  keys.AddAll(given.mutable_disks());
  keys.AddAll(given.mutable_clusters());
  keys.AddAll(given.mutable_subsystems());
  keys.AddAll(given.mutable_controllers());
  return guard_.Handle(
      *context, method, request->dry_run() ? "dry run" : "host", reply,
      [&](const Caller& caller) -> Result<v1::ApplyHostResponse> {
        CLEAT_TRY(keys.Check(caller));
        if (!apply_mutex_.TryLock()) {
          return Refuse(v1::REASON_RESOURCE_BUSY, "another ApplyHost is under way: retry in a moment");
        }
        const MutexLock lock(apply_mutex_, std::adopt_lock);
        return ApplyHostCall(state_, [context] { return context->IsCancelled(); }).Apply(*request);
      });
}

grpc::Status Service::BackupStore(grpc::ServerContext* context, const v1::BackupStoreRequest*,
                                  grpc::ServerWriter<v1::BackupStoreResponse>* writer) {
  static constexpr Method kMethod{"BackupStore", Role::kAdmin, true};
  StoreBackup backup;
  bool admitted = false;
  grpc::Status status = guard_.Handle(*context, kMethod, "store", &backup, [&]() -> Result<StoreBackup> {
    admitted = backups_.try_acquire();
    if (!admitted)
      return Refuse(v1::REASON_RESOURCE_BUSY, "two backups are under way: repeat when one has ended");
    return state_.BackUpStore();
  });
  if (status.ok()) status = Send(backup, *writer);
  if (admitted) backups_.release();
  return status;
}

grpc::Status Service::RestoreStore(grpc::ServerContext* context,
                                   grpc::ServerReader<v1::RestoreStoreRequest>* reader,
                                   v1::RestoreStoreResponse* reply) {
  static constexpr Method kMethod{"RestoreStore", Role::kAdmin, true};
  bool restored = false;
  // Nothing is read of a caller before it is admitted: one that sends nothing would hold a thread.
  grpc::Status status =
      guard_.Handle(*context, kMethod, "store", reply, [&]() -> Result<v1::RestoreStoreResponse> {
        if (!restore_mutex_.TryLock())
          return Refuse(v1::REASON_RESOURCE_BUSY,
                        "another RestoreStore is under way: repeat when it has ended");
        const MutexLock lock(restore_mutex_, std::adopt_lock);
        v1::RestoreStoreRequest first;
        if (!reader->Read(&first) || !first.has_options())
          return Refuse(v1::REASON_INVALID_FIELD, "options: they come first", {{"field", "options"}});
        CLEAT_ASSIGN(auto upload, Receive(*reader, state_.store_folder(), first.options().size_bytes()));
        // The stream's end looks like its caller's.
        if (context->IsCancelled())
          return Error(ErrorCode::kCancelled, "the caller has gone: nothing was changed");
        CLEAT_TRY(upload->Finish(state_.keyring(), HostState::CheckLoads));
        auto answer = state_.restorer().Restore(*upload, first.options());
        restored = answer.ok() && !first.options().dry_run();
        return answer;
      });
  if (restored && on_restored_) on_restored_();
  return status;
}

grpc::Status Service::Wait(grpc::ServerContext* context, const v1::WaitRequest* request,
                           v1::WaitResponse* reply) {
  static constexpr Method kMethod{"Wait", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply, [&] {
    return state_.waits().Wait(*request, [context] { return context->IsCancelled(); });
  });
}

grpc::Status Service::Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                            grpc::ServerWriter<v1::WatchResponse>* writer) {
  static constexpr Method kMethod{"Watch", Role::kRead, false};
  if (const auto admission = guard_.Admit(*context, kMethod); !admission.status.ok()) {
    return ToGrpc(admission.status.error());
  }
  const auto watcher = state_.Watch(request->start_revision());
  if (!watcher.ok()) return ToGrpc(watcher.error());
  while (!context->IsCancelled()) {
    auto event = (*watcher)->Next(kWatchTurn);
    if (!event.ok()) return ToGrpc(event.error());
    if (*event != nullptr && !writer->Write(**event)) break;
  }
  return grpc::Status::CANCELLED;
}

grpc::Status Service::GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                               v1::GetStatsResponse* reply) {
  static constexpr Method kMethod{"GetStats", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply, [&]() -> Result<v1::GetStatsResponse> {
    auto stats = counters_.Stats(*request);
    if (!stats.ok() || stats->disks_size() > 0) return stats;
    CLEAT_TRY(CheckExists(request->name()));
    return stats;
  });
}

grpc::Status Service::ListSlowRequests(grpc::ServerContext* context,
                                       const v1::ListSlowRequestsRequest* request,
                                       v1::ListSlowRequestsResponse* reply) {
  static constexpr Method kMethod{"ListSlowRequests", Role::kRead, false};
  return guard_.Handle(*context, kMethod, request->name(), reply,
                       [&]() -> Result<v1::ListSlowRequestsResponse> {
                         auto slow = slow_.List(*request);
                         if (!slow.ok()) return slow;
                         AddStuck(state_.attachments().Stuck(), request->name(), counters_, *slow);
                         if (slow->requests_size() > 0 || slow->stuck_size() > 0) return slow;
                         CLEAT_TRY(CheckExists(request->name()));
                         return slow;
                       });
}

// Of the name of a disk, controller or engine, or none.
Status Service::CheckExists(const std::string& name) {
  const auto status_of = [](const auto& result) { return result.ok() ? Status() : Status(result.error()); };
  if (ParseDiskName(name).ok()) {
    v1::GetDiskRequest request;
    request.set_name(name);
    return status_of(state_.disks().Get(request));
  }
  if (ParseControllerName(name).ok()) {
    v1::GetControllerRequest request;
    request.set_name(name);
    return status_of(state_.controllers().Get(request));
  }
  if (name.empty()) return Ok{};
  v1::GetEngineRequest request;
  request.set_name(name);
  return status_of(state_.engines().Get(request));
}

}  // namespace cleat::control
