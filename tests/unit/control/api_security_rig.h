// SPDX-License-Identifier: Apache-2.0
// For tests of who may call what: a cleatd with its unix socket and its audit log, and calls of each kind.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "control/daemon.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "open_paths.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::api_security_rig {

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline std::string ReasonIn(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::ErrorInfo info;
  if (!details.ParseFromString(status.error_details()) || details.details_size() != 1) return "no details";
  if (!details.details(0).UnpackTo(&info) || info.domain() != "cleat") return "no ErrorInfo";
  return info.reason();
}

class SecurityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.state_dir = dir_.path();
    options_.paths_file = OpenPaths(dir_ / "paths.conf");
    options_.api_socket = dir_ / "api.sock";
    options_.engine_socket = dir_ / "engine.sock";
    options_.audit_log = dir_ / "audit.json";
  }
  void Start() {
    auto daemon = Daemon::Start(options_);
    ASSERT_TRUE(daemon.ok()) << daemon.error().message;
    daemon_ = std::move(*daemon);
  }

  static grpc::Status Create(v1::Cleat::Stub& stub, const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::Disk disk;
    return stub.CreateDisk(&context, NullDisk(id), &disk);
  }
  static grpc::Status List(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ListDisksResponse response;
    return stub.ListDisks(&context, {}, &response);
  }
  static grpc::Status Delete(v1::Cleat::Stub& stub, const std::string& id, bool purge) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::DeleteDiskRequest request;
    request.set_name("disks/" + id);
    request.set_purge(purge);
    v1::DeleteDiskResponse response;
    return stub.DeleteDisk(&context, request, &response);
  }
  static grpc::Status Undelete(v1::Cleat::Stub& stub, const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::UndeleteDiskRequest request;
    request.set_name("disks/" + id);
    v1::Disk disk;
    return stub.UndeleteDisk(&context, request, &disk);
  }
  static grpc::Status Purge(v1::Cleat::Stub& stub, const std::string& id) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::PurgeDiskRequest request;
    request.set_name("disks/" + id);
    v1::PurgeDiskResponse response;
    return stub.PurgeDisk(&context, request, &response);
  }
  template <typename Request, typename Response>
  static grpc::Status Call(v1::Cleat::Stub& stub,
                           grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                   Response*),
                           const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    Response response;
    return (stub.*method)(&context, request, &response);
  }
  static grpc::Status ScanDrive(v1::Cleat::Stub& stub) {
    v1::ScanDriveRequest request;
    request.set_device("/dev/null");
    return Call(stub, &v1::Cleat::Stub::ScanDrive, request);
  }
  static grpc::Status CreatePool(v1::Cleat::Stub& stub, const std::string& id) {
    v1::CreatePoolRequest request;
    request.set_pool_id(id);
    request.mutable_pool()->mutable_spec()->set_device("/nowhere");
    return Call(stub, &v1::Cleat::Stub::CreatePool, request);
  }
  static grpc::Status DeletePool(v1::Cleat::Stub& stub, const std::string& id) {
    v1::DeletePoolRequest request;
    request.set_name("pools/" + id);
    return Call(stub, &v1::Cleat::Stub::DeletePool, request);
  }
  static grpc::Status GetPool(v1::Cleat::Stub& stub, const std::string& id) {
    v1::GetPoolRequest request;
    request.set_name("pools/" + id);
    return Call(stub, &v1::Cleat::Stub::GetPool, request);
  }
  static grpc::Status ListPools(v1::Cleat::Stub& stub) {
    return Call(stub, &v1::Cleat::Stub::ListPools, v1::ListPoolsRequest());
  }
  static grpc::Status Backup(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto reader = stub.BackupStore(&context, {});
    v1::BackupStoreResponse piece;
    while (reader->Read(&piece)) {
    }
    return reader->Finish();
  }
  // Of nothing that is a store.
  static grpc::Status Restore(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::RestoreStoreResponse response;
    const auto writer = stub.RestoreStore(&context, &response);
    v1::RestoreStoreRequest request;
    request.mutable_options()->set_size_bytes(4);
    writer->Write(request);
    request.set_data("none");
    writer->Write(request);
    writer->WritesDone();
    return writer->Finish();
  }
  // Opens the upload, and never sends anything.
  static grpc::Status RestoreNothing(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::RestoreStoreResponse response;
    return stub.RestoreStore(&context, &response)->Finish();
  }
  static grpc::Status ApplyExact(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::ApplyHostRequest request;
    request.set_mode(v1::APPLY_MODE_EXACT);
    request.set_allow_empty(true);
    request.set_max_removals(100);
    v1::ApplyHostResponse response;
    return stub.ApplyHost(&context, request, &response);
  }

  test::TempDir dir_;
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace cleat::control::api_security_rig
