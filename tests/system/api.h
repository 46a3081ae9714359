// SPDX-License-Identifier: Apache-2.0
// The public API as a control plane uses it: every call has a deadline; waiting is done by Watch. Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cleat/v1/cleat.grpc.pb.h"

namespace cleat::system_test {

// For what can only hang: far above what anything takes on the busiest machine.
inline constexpr uint64_t kCallTimeoutNs = 60 * kNsPerSecond;
inline constexpr uint64_t kWaitTimeoutNs = 120 * kNsPerSecond;

template <typename T>
struct Reply {
  grpc::Status status;
  T value;
  bool ok() const { return status.ok(); }
  grpc::StatusCode code() const { return status.error_code(); }
  std::string message() const { return status.error_message(); }
};

// Everything that is, by name.
struct Model {
  std::map<std::string, v1::Disk> disks;
  std::map<std::string, v1::Cluster> clusters;  // List leaves them out
  std::map<std::string, v1::Group> groups;
  std::map<std::string, v1::Pool> pools;  // as clusters
  std::map<std::string, v1::Controller> controllers;
  std::map<std::string, v1::Attachment> attachments;
  std::map<std::string, v1::Engine> engines;

  bool empty() const { return disks.empty() && controllers.empty() && attachments.empty(); }
  void Apply(const v1::WatchResponse& event);
  // "" when there is none.
  std::string ControllerMessage(const std::string& id) const;
  v1::ControllerState ControllerStateOf(const std::string& id) const;
  v1::AttachmentState AttachmentStateOf(const std::string& controller, const std::string& id) const;
  std::string ToString() const;  // for failures
};

class Api {
 public:
  // While nobody listens there, calls wait (until their deadline) if `patient`, and fail with UNAVAILABLE
  // otherwise.
  explicit Api(const std::string& address, bool patient = true);

  Reply<v1::Disk> CreateDisk(const std::string& id, const v1::DiskSpec& spec);
  Reply<v1::Disk> GetDisk(const std::string& id);
  grpc::Status DeleteDisk(const std::string& id, bool purge = false);
  // For deleted disks that are kept.
  grpc::Status UndeleteDisk(const std::string& id);
  grpc::Status PurgeDisk(const std::string& id);
  Reply<v1::Disk> ResizeDisk(const std::string& id, uint64_t size_bytes);
  Reply<v1::Disk> LimitDisk(const std::string& id, const v1::Limits& limits);
  Reply<v1::Group> CreateGroup(const std::string& id, const v1::Limits& limits);
  Reply<v1::Group> LimitGroup(const std::string& id, const v1::Limits& limits);
  grpc::Status DeleteGroup(const std::string& id);
  Reply<v1::Pool> CreatePool(const std::string& id, const std::string& device, uint64_t extent_bytes);
  Reply<v1::Subsystem> CreateSubsystem(const std::string& id, const v1::SubsystemSpec& spec);
  // `field`: the one that changes.
  Reply<v1::Controller> UpdateController(const v1::Controller& controller, const std::string& field);
  // READY, within kWaitTimeoutNs.
  grpc::Status WaitReady(const std::string& name);
  Reply<v1::Controller> CreateController(const std::string& id, const v1::ControllerSpec& spec);
  Reply<v1::Controller> GetController(const std::string& id);
  grpc::Status DeleteController(const std::string& id);
  // The attachment's id is the disk's. Without a target: the lowest that is free.
  Reply<v1::Attachment> Attach(const std::string& controller, const std::string& disk, bool read_only = false,
                               std::optional<uint32_t> target = std::nullopt);
  Reply<v1::Attachment> GetAttachment(const std::string& controller, const std::string& disk);
  grpc::Status Detach(const std::string& controller, const std::string& disk);
  Reply<Model> List();  // page by page; not one moment, if others change things meanwhile

  // Watches until `done` says so of what there is; false when `timeout_ns` has passed. Goes on over a restart
  // of cleatd. `last` is what it saw last.
  using Condition = std::function<bool(const Model&)>;
  bool WaitUntil(const Condition& done, Model* last = nullptr, uint64_t timeout_ns = kWaitTimeoutNs);

  v1::Cleat::Stub& stub() { return *stub_; }

 private:
  void Prepare(grpc::ClientContext* context, uint64_t timeout_ns) const;
  // A call that cleatd answers at once, within kCallTimeoutNs.
  template <typename Request, typename Response>
  Reply<Response> Call(grpc::Status (v1::Cleat::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                       const Request& request);

  const bool patient_;
  std::unique_ptr<v1::Cleat::Stub> stub_;
};

// ---- Specs.
v1::Limits Iops(uint64_t per_second, uint64_t burst_per_second = 0, int64_t burst_s = 0);
v1::DiskSpec NullDisk(uint64_t size_bytes);
v1::DiskSpec MemoryDisk(uint64_t size_bytes);
v1::DiskSpec FileDisk(uint64_t size_bytes, const std::string& path, bool create = true);
v1::DiskSpec PoolDisk(uint64_t size_bytes, const std::string& pool);
v1::ControllerSpec BlkController(const std::string& socket_path, uint32_t queues = 1,
                                 v1::SocketMode mode = v1::SOCKET_MODE_CLIENT);
v1::ControllerSpec ScsiController(const std::string& socket_path, uint32_t queues = 1);

}  // namespace cleat::system_test
