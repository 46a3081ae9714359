// SPDX-License-Identifier: Apache-2.0
// A cleatd that answers as a test likes: for each call a function, which the test sets before the call comes. gRPC's threads call them, and the
// service outlives its server.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>

#include "cleat/v1/cleat.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace cleat::ctl::fake_cleatd {

// The error that cleatd answers with: `reason` as a name of v1::Reason without its prefix.
inline grpc::Status Refusal(grpc::StatusCode code, const std::string& reason, const std::string& message) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("cleat");
  google::rpc::Status details;
  details.add_details()->PackFrom(info);
  return {code, message, details.SerializeAsString()};
}

class FakeCleatd : public v1::Cleat::Service {
 public:
  template <typename Request, typename Response>
  using Answer = std::function<grpc::Status(const Request&, Response&)>;

  Answer<v1::ListDisksRequest, v1::ListDisksResponse> list_disks;
  Answer<v1::GetDiskRequest, v1::Disk> get_disk;
  Answer<v1::CreateDiskRequest, v1::Disk> create_disk;
  Answer<v1::UpdateDiskRequest, v1::Disk> update_disk;
  Answer<v1::ConfirmDeadRequest, v1::Disk> confirm_dead;
  Answer<v1::AttachDiskRequest, v1::Attachment> attach_disk;
  Answer<v1::CreateControllerRequest, v1::Controller> create_controller;
  Answer<v1::GetControllerRequest, v1::Controller> get_controller;
  Answer<v1::ListControllersRequest, v1::ListControllersResponse> list_controllers;
  Answer<v1::UpdateControllerRequest, v1::Controller> update_controller;
  Answer<v1::DeleteControllerRequest, v1::DeleteControllerResponse> delete_controller;
  Answer<v1::CreatePoolRequest, v1::Pool> create_pool;
  Answer<v1::ScanDriveRequest, v1::ScanDriveResponse> scan_drive;
  Answer<v1::GetPoolRequest, v1::Pool> get_pool;
  Answer<v1::ListPoolsRequest, v1::ListPoolsResponse> list_pools;
  Answer<v1::DeletePoolRequest, v1::DeletePoolResponse> delete_pool;
  Answer<v1::CreateSubsystemRequest, v1::Subsystem> create_subsystem;
  Answer<v1::GetSubsystemRequest, v1::Subsystem> get_subsystem;
  Answer<v1::UpdateSubsystemRequest, v1::Subsystem> update_subsystem;
  Answer<v1::DeleteSubsystemRequest, v1::DeleteSubsystemResponse> delete_subsystem;
  Answer<v1::DiscoverSubsystemsRequest, v1::DiscoverSubsystemsResponse> discover_subsystems;
  // Gives the next log; false: it has ended.
  std::function<bool(const v1::DiscoverSubsystemsRequest&, v1::DiscoverSubsystemsResponse&)> watch_discovery;
  Answer<v1::WaitRequest, v1::WaitResponse> wait;
  Answer<v1::ApplyHostRequest, v1::ApplyHostResponse> apply_host;
  Answer<v1::ListSlowRequestsRequest, v1::ListSlowRequestsResponse> list_slow_requests;

  std::function<grpc::Status(grpc::ServerWriter<v1::BackupStoreResponse>&)> backup_store;

  grpc::Status BackupStore(grpc::ServerContext*, const v1::BackupStoreRequest*,
                           grpc::ServerWriter<v1::BackupStoreResponse>* writer) override {
    return backup_store(*writer);
  }
  grpc::Status ListDisks(grpc::ServerContext*, const v1::ListDisksRequest* request,
                         v1::ListDisksResponse* response) override {
    return list_disks(*request, *response);
  }
  grpc::Status GetDisk(grpc::ServerContext*, const v1::GetDiskRequest* request, v1::Disk* disk) override {
    return get_disk(*request, *disk);
  }
  grpc::Status CreateDisk(grpc::ServerContext*, const v1::CreateDiskRequest* request,
                          v1::Disk* disk) override {
    return create_disk(*request, *disk);
  }
  grpc::Status UpdateDisk(grpc::ServerContext*, const v1::UpdateDiskRequest* request,
                          v1::Disk* disk) override {
    return update_disk(*request, *disk);
  }
  grpc::Status ConfirmDead(grpc::ServerContext*, const v1::ConfirmDeadRequest* request,
                           v1::Disk* disk) override {
    return confirm_dead(*request, *disk);
  }
  grpc::Status AttachDisk(grpc::ServerContext*, const v1::AttachDiskRequest* request,
                          v1::Attachment* attachment) override {
    return attach_disk(*request, *attachment);
  }
  grpc::Status CreateController(grpc::ServerContext*, const v1::CreateControllerRequest* request,
                                v1::Controller* controller) override {
    return create_controller(*request, *controller);
  }
  grpc::Status GetController(grpc::ServerContext*, const v1::GetControllerRequest* request,
                             v1::Controller* controller) override {
    return get_controller(*request, *controller);
  }
  grpc::Status ListControllers(grpc::ServerContext*, const v1::ListControllersRequest* request,
                               v1::ListControllersResponse* response) override {
    return list_controllers(*request, *response);
  }
  grpc::Status UpdateController(grpc::ServerContext*, const v1::UpdateControllerRequest* request,
                                v1::Controller* controller) override {
    return update_controller(*request, *controller);
  }
  grpc::Status DeleteController(grpc::ServerContext*, const v1::DeleteControllerRequest* request,
                                v1::DeleteControllerResponse* response) override {
    return delete_controller(*request, *response);
  }
  grpc::Status CreatePool(grpc::ServerContext*, const v1::CreatePoolRequest* request,
                          v1::Pool* pool) override {
    return create_pool(*request, *pool);
  }
  grpc::Status ScanDrive(grpc::ServerContext*, const v1::ScanDriveRequest* request,
                         v1::ScanDriveResponse* response) override {
    return scan_drive(*request, *response);
  }
  grpc::Status GetPool(grpc::ServerContext*, const v1::GetPoolRequest* request, v1::Pool* pool) override {
    return get_pool(*request, *pool);
  }
  grpc::Status ListPools(grpc::ServerContext*, const v1::ListPoolsRequest* request,
                         v1::ListPoolsResponse* response) override {
    return list_pools(*request, *response);
  }
  grpc::Status DeletePool(grpc::ServerContext*, const v1::DeletePoolRequest* request,
                          v1::DeletePoolResponse* response) override {
    return delete_pool(*request, *response);
  }
  grpc::Status CreateSubsystem(grpc::ServerContext*, const v1::CreateSubsystemRequest* request,
                               v1::Subsystem* subsystem) override {
    return create_subsystem(*request, *subsystem);
  }
  grpc::Status GetSubsystem(grpc::ServerContext*, const v1::GetSubsystemRequest* request,
                            v1::Subsystem* subsystem) override {
    return get_subsystem(*request, *subsystem);
  }
  grpc::Status UpdateSubsystem(grpc::ServerContext*, const v1::UpdateSubsystemRequest* request,
                               v1::Subsystem* subsystem) override {
    return update_subsystem(*request, *subsystem);
  }
  grpc::Status DeleteSubsystem(grpc::ServerContext*, const v1::DeleteSubsystemRequest* request,
                               v1::DeleteSubsystemResponse* response) override {
    return delete_subsystem(*request, *response);
  }
  grpc::Status WatchDiscovery(grpc::ServerContext*, const v1::DiscoverSubsystemsRequest* request,
                              grpc::ServerWriter<v1::DiscoverSubsystemsResponse>* writer) override {
    v1::DiscoverSubsystemsResponse log;
    while (watch_discovery(*request, log)) writer->Write(log);
    return {grpc::StatusCode::FAILED_PRECONDITION, "it has ended"};
  }
  grpc::Status DiscoverSubsystems(grpc::ServerContext*, const v1::DiscoverSubsystemsRequest* request,
                                  v1::DiscoverSubsystemsResponse* response) override {
    return discover_subsystems(*request, *response);
  }
  grpc::Status Wait(grpc::ServerContext*, const v1::WaitRequest* request,
                    v1::WaitResponse* response) override {
    return wait(*request, *response);
  }
  grpc::Status ApplyHost(grpc::ServerContext*, const v1::ApplyHostRequest* request,
                         v1::ApplyHostResponse* response) override {
    return apply_host(*request, *response);
  }
  grpc::Status ListSlowRequests(grpc::ServerContext*, const v1::ListSlowRequestsRequest* request,
                                v1::ListSlowRequestsResponse* response) override {
    return list_slow_requests(*request, *response);
  }
};

}  // namespace cleat::ctl::fake_cleatd
