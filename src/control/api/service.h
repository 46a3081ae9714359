// SPDX-License-Identifier: Apache-2.0
// The gRPC service: each method passes the call guard and hands the request to HostState, or to the counters. gRPC's threads.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <semaphore>
#include <utility>

#include "base/mutex.h"
#include "cleat/v1/cleat.grpc.pb.h"
#include "control/callers/call_guard.h"
#include "control/observe/counters.h"
#include "control/observe/slow_watch.h"
#include "control/state/host_state.h"

namespace cleat::control {

class Service final : public v1::Cleat::Service {
 public:
  // All outlive it. `on_restored` is called, on gRPC's thread, when the store was restored: everything is to be loaded anew, and the call is
  // answered when this has returned.
  Service(HostState& state, const Counters& counters, const SlowWatch& slow, CallGuard& guard,
          std::function<void()> on_restored)
      : state_(state),
        counters_(counters),
        slow_(slow),
        guard_(guard),
        on_restored_(std::move(on_restored)) {}

  grpc::Status CreateDisk(grpc::ServerContext* context, const v1::CreateDiskRequest* request,
                          v1::Disk* reply) override;
  grpc::Status GetDisk(grpc::ServerContext* context, const v1::GetDiskRequest* request,
                       v1::Disk* reply) override;
  grpc::Status ListDisks(grpc::ServerContext* context, const v1::ListDisksRequest* request,
                         v1::ListDisksResponse* reply) override;
  grpc::Status UpdateDisk(grpc::ServerContext* context, const v1::UpdateDiskRequest* request,
                          v1::Disk* reply) override;
  grpc::Status DeleteDisk(grpc::ServerContext* context, const v1::DeleteDiskRequest* request,
                          v1::DeleteDiskResponse* reply) override;
  grpc::Status UndeleteDisk(grpc::ServerContext* context, const v1::UndeleteDiskRequest* request,
                            v1::Disk* reply) override;
  grpc::Status PurgeDisk(grpc::ServerContext* context, const v1::PurgeDiskRequest* request,
                         v1::PurgeDiskResponse* reply) override;
  grpc::Status ConfirmDead(grpc::ServerContext* context, const v1::ConfirmDeadRequest* request,
                           v1::Disk* reply) override;
  grpc::Status CreateCluster(grpc::ServerContext* context, const v1::CreateClusterRequest* request,
                             v1::Cluster* reply) override;
  grpc::Status GetCluster(grpc::ServerContext* context, const v1::GetClusterRequest* request,
                          v1::Cluster* reply) override;
  grpc::Status ListClusters(grpc::ServerContext* context, const v1::ListClustersRequest* request,
                            v1::ListClustersResponse* reply) override;
  grpc::Status UpdateCluster(grpc::ServerContext* context, const v1::UpdateClusterRequest* request,
                             v1::Cluster* reply) override;
  grpc::Status DeleteCluster(grpc::ServerContext* context, const v1::DeleteClusterRequest* request,
                             v1::DeleteClusterResponse* reply) override;
  grpc::Status CreateSubsystem(grpc::ServerContext* context, const v1::CreateSubsystemRequest* request,
                               v1::Subsystem* reply) override;
  grpc::Status GetSubsystem(grpc::ServerContext* context, const v1::GetSubsystemRequest* request,
                            v1::Subsystem* reply) override;
  grpc::Status ListSubsystems(grpc::ServerContext* context, const v1::ListSubsystemsRequest* request,
                              v1::ListSubsystemsResponse* reply) override;
  grpc::Status UpdateSubsystem(grpc::ServerContext* context, const v1::UpdateSubsystemRequest* request,
                               v1::Subsystem* reply) override;
  grpc::Status DeleteSubsystem(grpc::ServerContext* context, const v1::DeleteSubsystemRequest* request,
                               v1::DeleteSubsystemResponse* reply) override;
  grpc::Status DiscoverSubsystems(grpc::ServerContext* context, const v1::DiscoverSubsystemsRequest* request,
                                  v1::DiscoverSubsystemsResponse* reply) override;
  grpc::Status WatchDiscovery(grpc::ServerContext* context, const v1::DiscoverSubsystemsRequest* request,
                              grpc::ServerWriter<v1::DiscoverSubsystemsResponse>* writer) override;
  grpc::Status CreatePool(grpc::ServerContext* context, const v1::CreatePoolRequest* request,
                          v1::Pool* reply) override;
  grpc::Status ScanDrive(grpc::ServerContext* context, const v1::ScanDriveRequest* request,
                         v1::ScanDriveResponse* reply) override;
  grpc::Status GetPool(grpc::ServerContext* context, const v1::GetPoolRequest* request,
                       v1::Pool* reply) override;
  grpc::Status ListPools(grpc::ServerContext* context, const v1::ListPoolsRequest* request,
                         v1::ListPoolsResponse* reply) override;
  grpc::Status DeletePool(grpc::ServerContext* context, const v1::DeletePoolRequest* request,
                          v1::DeletePoolResponse* reply) override;
  grpc::Status CreateGroup(grpc::ServerContext* context, const v1::CreateGroupRequest* request,
                           v1::Group* reply) override;
  grpc::Status GetGroup(grpc::ServerContext* context, const v1::GetGroupRequest* request,
                        v1::Group* reply) override;
  grpc::Status ListGroups(grpc::ServerContext* context, const v1::ListGroupsRequest* request,
                          v1::ListGroupsResponse* reply) override;
  grpc::Status UpdateGroup(grpc::ServerContext* context, const v1::UpdateGroupRequest* request,
                           v1::Group* reply) override;
  grpc::Status DeleteGroup(grpc::ServerContext* context, const v1::DeleteGroupRequest* request,
                           v1::DeleteGroupResponse* reply) override;
  grpc::Status CreateController(grpc::ServerContext* context, const v1::CreateControllerRequest* request,
                                v1::Controller* reply) override;
  grpc::Status GetController(grpc::ServerContext* context, const v1::GetControllerRequest* request,
                             v1::Controller* reply) override;
  grpc::Status ListControllers(grpc::ServerContext* context, const v1::ListControllersRequest* request,
                               v1::ListControllersResponse* reply) override;
  grpc::Status UpdateController(grpc::ServerContext* context, const v1::UpdateControllerRequest* request,
                                v1::Controller* reply) override;
  grpc::Status DeleteController(grpc::ServerContext* context, const v1::DeleteControllerRequest* request,
                                v1::DeleteControllerResponse* reply) override;
  grpc::Status AttachDisk(grpc::ServerContext* context, const v1::AttachDiskRequest* request,
                          v1::Attachment* reply) override;
  grpc::Status DetachDisk(grpc::ServerContext* context, const v1::DetachDiskRequest* request,
                          v1::DetachDiskResponse* reply) override;
  grpc::Status GetAttachment(grpc::ServerContext* context, const v1::GetAttachmentRequest* request,
                             v1::Attachment* reply) override;
  grpc::Status ListAttachments(grpc::ServerContext* context, const v1::ListAttachmentsRequest* request,
                               v1::ListAttachmentsResponse* reply) override;
  grpc::Status GetEngine(grpc::ServerContext* context, const v1::GetEngineRequest* request,
                         v1::Engine* reply) override;
  grpc::Status ListEngines(grpc::ServerContext* context, const v1::ListEnginesRequest* request,
                           v1::ListEnginesResponse* reply) override;
  grpc::Status UpgradeEngine(grpc::ServerContext* context, const v1::UpgradeEngineRequest* request,
                             v1::UpgradeEngineResponse* reply) override;
  grpc::Status ForgetEngine(grpc::ServerContext* context, const v1::ForgetEngineRequest* request,
                            v1::ForgetEngineResponse* reply) override;
  grpc::Status CancelUpgrade(grpc::ServerContext* context, const v1::CancelUpgradeRequest* request,
                             v1::Engine* reply) override;
  grpc::Status ApplyHost(grpc::ServerContext* context, const v1::ApplyHostRequest* request,
                         v1::ApplyHostResponse* reply) override;
  grpc::Status BackupStore(grpc::ServerContext* context, const v1::BackupStoreRequest* request,
                           grpc::ServerWriter<v1::BackupStoreResponse>* writer) override;
  grpc::Status RestoreStore(grpc::ServerContext* context, grpc::ServerReader<v1::RestoreStoreRequest>* reader,
                            v1::RestoreStoreResponse* reply) override;
  grpc::Status Wait(grpc::ServerContext* context, const v1::WaitRequest* request,
                    v1::WaitResponse* reply) override;
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override;
  grpc::Status GetStats(grpc::ServerContext* context, const v1::GetStatsRequest* request,
                        v1::GetStatsResponse* reply) override;
  grpc::Status ListSlowRequests(grpc::ServerContext* context, const v1::ListSlowRequestsRequest* request,
                                v1::ListSlowRequestsResponse* reply) override;

 private:
  Status CheckExists(const std::string& name);

  HostState& state_;
  const Counters& counters_;
  const SlowWatch& slow_;
  CallGuard& guard_;
  const std::function<void()> on_restored_;
  std::counting_semaphore<> backups_{2};  // each takes the room of the store until its caller has read it
  Mutex restore_mutex_;                   // one RestoreStore at a time
  Mutex apply_mutex_;                     // one ApplyHost at a time: two would undo each other's work
};

}  // namespace cleat::control
