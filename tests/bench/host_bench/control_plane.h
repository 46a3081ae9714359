// SPDX-License-Identifier: Apache-2.0
// A control plane with one connection to cleatd: makes controllers and disks, attaches them, and sees by Watch when they
// are there. Controller number c is "cC", its disk at target t is "cCtT". One thread; the library's threads run the
// answers of calls that are in flight together.
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
  bool memory = false;  // disks with content; otherwise null disks
  uint32_t disks() const { return controllers * targets; }
};

std::string ControllerId(uint32_t controller);

struct AttachTimes {
  double all_ready_s = 0;         // from the first call until all are READY
  double all_acknowledged_s = 0;  // until the last call's answer
  std::vector<double> calls_us;   // from call to answer, by disk
};

class ControlPlane {
 public:
  ControlPlane(const std::string& address, const std::atomic<bool>& stop);

  // Until cleatd answers and its engine is connected.
  Status WaitForEngine();
  Status CreateControllers(const HostShape& shape,
                           const std::function<std::string(const std::string&)>& socket_of);
  Status CreateDisks(const HostShape& shape);
  // All disks of the shape, controller by controller, `in_flight` calls at a time.
  Result<AttachTimes> Attach(const HostShape& shape, uint32_t in_flight);

 private:
  // Begins call `index`; `done` is to be called once.
  using Begin = std::function<void(uint32_t index, std::function<void(const grpc::Status&)> done)>;
  Status MakeCalls(uint32_t count, uint32_t in_flight, const Begin& begin);
  Status AttachOneByOne(const HostShape& shape, std::vector<double>* calls_us);
  Status AttachTogether(const HostShape& shape, uint32_t in_flight, std::vector<double>* calls_us);

  std::unique_ptr<v1::Cleat::Stub> stub_;
  const std::atomic<bool>& stop_;
};

}  // namespace cleat::bench
