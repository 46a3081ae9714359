// SPDX-License-Identifier: Apache-2.0
// A control plane with one connection to cleatd: makes controllers and disks, attaches them, and sees by Watch when they
// are there. Controller number c is "cC", its disk at target t is "cCtT". One thread, but each call of those that are in
// flight together has its own.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cleat/v1/cleat.grpc.pb.h"

namespace cleat::bench {

struct HostShape {
  uint32_t controllers = 0;
  uint32_t targets = 0;  // disks a controller
  v1::ControllerType type = v1::CONTROLLER_TYPE_SCSI;
  uint32_t with_memory =
      0;  // so many of the first controllers have disks with content; the others have null disks
  bool in_pool = false;     // all disks are of the pool that was made, an extent each; no memory, no image
  std::string image = {};   // of the cluster that was made known: the only disk is that, of 64 MiB
  std::string device = {};  // a block device: the only disk is its first 64 MiB
  // The controllers are exports (of type NVMF) at this address, for the host kExportHost; ExportNqn says which.
  std::string export_address = {};
  uint32_t disks() const { return controllers * targets; }
};

std::string ControllerId(uint32_t controller);
std::string ExportNqn(uint32_t controller);
inline constexpr char kExportHost[] = "nqn.2024-01.com.example:bench-host";

struct AttachTimes {
  double all_ready_s = 0;         // from the first call until all are READY
  double all_acknowledged_s = 0;  // until the last call's answer
  std::vector<double> calls_us;   // from call to answer, by disk
};

class ControlPlane {
 public:
  ControlPlane(const std::string& address, const std::atomic<bool>& stop);

  // Until cleatd answers and that engine is connected.
  Status WaitForEngine(size_t engine = 0);
  // A cluster of Ceph's, by the name that shapes with an image take theirs from.
  Status CreateCluster(const std::string& monitors, const std::string& user, const std::string& key);
  // A pool on a file, which is made, sparse; waits until all of its extents are erased.
  Status CreatePool(const std::string& file, uint32_t extents);
  static constexpr uint64_t kExtentBytes = uint64_t{64} << 20;
  // A disk of one extent of that pool, or in the file, which is made. How long the call took, in milliseconds.
  Result<double> CreateInPool(const std::string& id);
  Result<double> CreateInFile(const std::string& id, const std::string& file);
  Status CreateControllers(const HostShape& shape,
                           const std::function<std::string(const std::string&)>& socket_of);
  Status CreateDisks(const HostShape& shape);
  // All disks of the shape, controller by controller, `in_flight` calls at a time.
  Result<AttachTimes> Attach(const HostShape& shape, uint32_t in_flight);
  // Moves all controllers; an error when one stays. How long it took by the clock, in seconds.
  Result<double> Upgrade(size_t from, size_t to);
  // Until the engine has so many controllers standing by.
  Status WaitStandingBy(size_t engine, uint32_t controllers);
  // Until cleatd knows that the engine does not go on.
  Status WaitNotAnswering(size_t engine);
  // Until the engine has so many controllers.
  Status WaitHas(size_t engine, uint32_t controllers);

 private:
  // Makes call `index`, on any thread; an error names the object.
  using Call = std::function<Status(uint32_t index, grpc::ClientContext& context)>;
  // In the order of their indices, `in_flight` at a time, up to the first that fails.
  Status MakeCalls(uint32_t count, uint32_t in_flight, const Call& call);
  Result<double> CreateTimed(const v1::CreateDiskRequest& request);
  Result<v1::EngineStatus> StatusOf(size_t engine);
  Status WaitStatus(size_t engine, const std::string& what,
                    const std::function<bool(const v1::EngineStatus&)>& there);

  std::unique_ptr<v1::Cleat::Stub> stub_;
  const std::atomic<bool>& stop_;
};

}  // namespace cleat::bench
