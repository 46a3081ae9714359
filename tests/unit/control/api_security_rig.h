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
#include "daemon_options.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
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
    options_ = OptionsIn(dir_);
    options_.audit_log = dir_ / "audit.json";
  }
  void Start() {
    auto daemon = Daemon::Start(options_);
    ASSERT_TRUE(daemon.ok()) << daemon.error().message;
    daemon_ = std::move(*daemon);
  }

  // A cleatd that does not answer fails the test.
  static void Limit(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }
  template <typename Request, typename Response>
  static grpc::Status Call(v1::Cleat::Stub& stub,
                           grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                   Response*),
                           const Request& request) {
    grpc::ClientContext context;
    Limit(context);
    Response response;
    return (stub.*method)(&context, request, &response);
  }
  static grpc::Status Create(v1::Cleat::Stub& stub, const std::string& id) {
    return Call(stub, &v1::Cleat::Stub::CreateDisk, NullDisk(id));
  }
  static grpc::Status List(v1::Cleat::Stub& stub) {
    return Call(stub, &v1::Cleat::Stub::ListDisks, v1::ListDisksRequest());
  }
  static grpc::Status Delete(v1::Cleat::Stub& stub, const std::string& id, bool purge) {
    v1::DeleteDiskRequest request;
    request.set_name("disks/" + id);
    request.set_purge(purge);
    return Call(stub, &v1::Cleat::Stub::DeleteDisk, request);
  }
  static grpc::Status Undelete(v1::Cleat::Stub& stub, const std::string& id) {
    v1::UndeleteDiskRequest request;
    request.set_name("disks/" + id);
    return Call(stub, &v1::Cleat::Stub::UndeleteDisk, request);
  }
  static grpc::Status Purge(v1::Cleat::Stub& stub, const std::string& id) {
    v1::PurgeDiskRequest request;
    request.set_name("disks/" + id);
    return Call(stub, &v1::Cleat::Stub::PurgeDisk, request);
  }
  static grpc::Status Discover(v1::Cleat::Stub& stub) {
    v1::DiscoverSubsystemsRequest request;
    request.set_address("127.0.0.1");
    return Call(stub, &v1::Cleat::Stub::DiscoverSubsystems, request);
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
    Limit(context);
    const auto reader = stub.BackupStore(&context, {});
    v1::BackupStoreResponse piece;
    while (reader->Read(&piece)) {
    }
    return reader->Finish();
  }
  // Uploads bytes that are no store.
  static grpc::Status Restore(v1::Cleat::Stub& stub) {
    grpc::ClientContext context;
    Limit(context);
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
    Limit(context);
    v1::RestoreStoreResponse response;
    return stub.RestoreStore(&context, &response)->Finish();
  }
  static grpc::Status ApplyExact(v1::Cleat::Stub& stub) {
    v1::ApplyHostRequest request;
    request.set_mode(v1::APPLY_MODE_EXACT);
    request.set_allow_empty(true);
    request.set_max_removals(100);
    return Call(stub, &v1::Cleat::Stub::ApplyHost, request);
  }

  test::TempDir dir_;
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
};

}  // namespace cleat::control::api_security_rig
