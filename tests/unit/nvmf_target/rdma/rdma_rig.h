// SPDX-License-Identifier: Apache-2.0
// The engine's NVMe/RDMA target with a disk in memory, over adapters in memory, in virtual time: a control reactor, two I/O reactors and the hosts' machines on
// the test's own thread, which Turn lets go on in turn.
//
// What is wrong when it goes is a failure of the test: rules of src/rdma that were broken, and adapters that stayed open.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "nvme/fabrics/names.h"
#include "nvmf_target/target_service.h"
#include "rdma/connection_manager.h"
#include "rdma/device.h"
#include "reactor/task.h"
#include "tests/support/rdma_fabric/rdma_fabric.h"
#include "tests/unit/nvmf_target/rig_threads.h"
#include "tests/unit/nvmf_target/target_rig.h"

namespace cleat::test {

class RdmaHostQueue;

// A machine of hosts: its adapter, and its connection manager.
struct RdmaMachine {
  RdmaMachine(RdmaFabric& fabric, const std::string& name, std::string own_address);
  void Pump();

  const std::string address;
  std::unique_ptr<rdma::Device> device;
  std::unique_ptr<rdma::ConnectionManager> manager;
  std::vector<RdmaHostQueue*> queues;
};

class RdmaRig {
 public:
  static constexpr uint64_t kBytes = uint64_t{8} << 20;
  static constexpr uint32_t kSlots = 1024;  // for capsules, on each reactor
  static constexpr uint64_t kTurnNs = 10 * kNsPerUs;
  static constexpr const char* kNqn = "nqn.2024-01.com.example:export";
  static constexpr uint16_t kPort = 4420;

  // Adapters "target0", "target1" ... with an address each, at which it listens.
  explicit RdmaRig(uint32_t adapters = 1, const nvmf_target::PortLimits& limits = SmallLimits());
  ~RdmaRig();
  RdmaRig(const RdmaRig&) = delete;
  RdmaRig& operator=(const RdmaRig&) = delete;

  static nvmf_target::PortLimits SmallLimits();
  static std::string AdapterName(uint32_t number) { return "target" + std::to_string(number); }
  static std::string AddressOf(uint32_t number) { return "192.0.2." + std::to_string(number + 1); }
  // A host that is let in: 0 to 3.
  static nvme::fabrics::HostIdentity Host(uint8_t number = 0) {
    return nvme::fabrics::HostIdentityOfUuid({7, 7, number});
  }
  void AddTargetAdapter(uint32_t number);

  void Turn();
  // One turn of the I/O reactors alone, or of the control reactor, while the others stand still.
  void TurnIo();
  void TurnControl();
  // From now on the I/O reactors run on threads of their own, until Close is over. Time passes no faster than they turn.
  void RunIoReactors() { threads_.Run(io); }
  // False: not within a number of turns that nothing takes.
  bool Until(const std::function<bool()>& done);
  // Some turns, in which nothing is to happen.
  void Settle();
  // Turns until that time is over.
  void Pass(uint64_t ns);

  template <typename T>
  std::optional<T> Await(std::function<Task<T>(RdmaRig&)> make) {
    std::optional<T> result;
    control->PostCall([&] { Spawn(Keep(make(*this), result)); });
    if (!Until([&] { return result.has_value(); })) CLEAT_CHECK(false);
    return result;
  }
  void Begin(std::function<Task<void>(RdmaRig&)> make, bool& done);
  // No host is served any more, and all of the target is over. Again is no error.
  void Close();

  nvmf_target::SubsystemStatus status() const { return service->StatusOf(kNqn); }
  uint32_t receives_posted(uint32_t adapter = 0) const {
    return fabric.receives_posted(AdapterName(adapter));
  }
  uint32_t queue_pairs(uint32_t adapter = 0) const { return fabric.queue_pairs(AdapterName(adapter)); }

  RdmaFabric fabric;
  RigClock clock;
  std::unique_ptr<Reactor> control = MakeReactor(0);
  std::array<std::unique_ptr<Reactor>, 2> io;
  nvmf::RdmaAdapters target_adapters;
  std::unique_ptr<nvmf_target::TargetService> service;
  Storage* storage = nullptr;  // the backing pipeline's
  std::unique_ptr<block::Pipeline> backing;
  std::array<std::unique_ptr<block::PipelineChannel>, 2> channels;
  std::vector<std::unique_ptr<RdmaMachine>> machines;  // two

 private:
  template <typename T>
  static Task<void> Keep(Task<T> task, std::optional<T>& result) {
    result.emplace(co_await task);
  }
  static Task<void> Note(std::function<Task<void>(RdmaRig&)> make, RdmaRig& rig, bool& done) {
    co_await make(rig);
    done = true;
  }
  std::unique_ptr<Reactor> MakeReactor(uint32_t index);
  void AddSubsystem(uint32_t adapters);
  void PassTime();

  bool closed_ = false;
  RigThreads threads_;  // none are running: Turn lets the I/O reactors go on
};

}  // namespace cleat::test
