// SPDX-License-Identifier: Apache-2.0
// One process: an engine on the world's reactors with all that goes when it dies. It begins as after a start - it knows
// nothing, and is told what to attach, to serve it or to stand by for whoever does - and ends by itself when it is
// terminated, or dead, when it is torn down with the world frozen. Owned by the test.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "crash_medium.h"
#include "engine/engine.h"
#include "engine/stores/memory_store.h"
#include "kill_switch.h"
#include "sim_endpoint.h"
#include "world.h"

namespace cleat::sim {

// A controller with its disk, and who is at the other end of its socket. As cleatd has stored it.
struct CrashVm {
  std::string name;
  uint32_t queues = 1;
  engine::ControllerType type = engine::ControllerType::kBlk;
  std::vector<CrashMedium*> media;  // that may be attached
  size_t attached = 0;
  SimPeer* peer = nullptr;
  DiskIdentity last_disk;  // ControllerSpec::last_disk

  CrashMedium& medium() const { return *media[attached]; }
};

class EngineProcess final : public engine::Engine::Listener {
 public:
  struct Parts {  // all of it outlives the process
    World& world;
    KillSwitch& kill;
    const std::vector<CrashVm>& vms;
    uint64_t open_ns_max;
    bool identities = true;  // it is told which disk is which
    // The engine has something to report of the controller.
    std::function<void(const CrashVm&, const engine::ControllerReport&)> on_report;
  };
  EngineProcess(const Parts& parts, uint64_t number, uint64_t seed);
  ~EngineProcess() override;  // ended

  enum class Stance : uint8_t { kServe, kStandBy };
  void Start(Stance stance);
  bool started() const { return starting_ == 0; }
  void Terminate();  // SIGTERM; also the way to tear a dead one down
  bool terminating() const { return terminating_; }
  bool ended() const { return ended_ && starting_ == 0; }
  uint64_t number() const { return number_; }
  engine::Engine& engine() { return engine_; }
  static std::string ControllerOf(const CrashVm& vm) { return "controllers/" + vm.name; }
  // The controller, as it is stored now.
  Status PutController(const CrashVm& vm, Stance stance);
  Task<Status> AttachDisk(const CrashVm& vm);
  Task<Status> DetachDisk(const CrashVm& vm);
  std::string Describe() const { return network_.Describe(); }

 private:
  class Disks final : public engine::DiskFactory {
   public:
    Disks(const Parts& parts, uint64_t process, uint64_t seed)
        : parts_(parts), process_(process), random_(seed) {}
    Task<Result<engine::OpenDisk>> Open(const engine::DiskSpec& disk, block::AccessMode mode,
                                        std::shared_ptr<qos::Group> group,
                                        engine::DiskEvents events) override;

   private:
    const Parts& parts_;
    const uint64_t process_;
    Random random_;
  };

  void ControllerChanged(const std::string& controller) override;
  void AttachmentChanged(const std::string& /*controller*/, uint32_t /*target*/) override {}
  Task<void> Attach(const CrashVm& vm, Stance stance);
  Task<void> Shutdown();

  const Parts parts_;
  const uint64_t number_;
  Disks disks_;
  SimNetwork network_;
  engine::MemoryStore memories_;
  engine::GroupStore groups_;
  engine::ClusterStore clusters_;
  engine::Engine engine_;
  uint32_t starting_ = 0;
  bool terminating_ = false;
  bool ended_ = false;
};

}  // namespace cleat::sim
