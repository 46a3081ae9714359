// SPDX-License-Identifier: Apache-2.0
// Random operations on a whole engine in virtual time: controllers, disks and guests come and go in any order and at
// any moment, many at a time, under I/O, on storage that is slow, fails and hangs. A plain model says what each request
// must answer and what the engine must report when everything is quiet.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "defect.h"
#include "engine/engine.h"
#include "engine/stores/group_store.h"
#include "engine/stores/memory_store.h"
#include "observe/engine_counters.h"
#include "sim_disk_factory.h"
#include "sim_endpoint.h"
#include "sim_guest.h"
#include "world.h"

namespace cleat::sim {

struct OperationsConfig {
  uint64_t seed = 1;
  uint64_t operations = 10'000;
  bool trace = false;
  Defect defect = Defect::kNone;
};

class Operations final : private engine::Engine::Listener {
 public:
  explicit Operations(const OperationsConfig& config);
  ~Operations() override;

  // Everything, to the end: empty, or what was violated first, with more behind it.
  std::string Run();
  uint64_t digest() const { return world_.digest(); }
  uint64_t completed_io() const;
  uint64_t requests_ok() const { return requests_ok_; }

 private:
  static constexpr uint32_t kControllers = 8;
  static constexpr uint32_t kDisks = 6;
  static constexpr uint64_t kDiskBlocks = 256;
  static constexpr uint32_t kGroups = 3;
  static constexpr uint32_t kIoReactors = 3;
  static constexpr uint32_t kRunningMax = 60;
  static constexpr uint64_t kQuietLimitNs = 120 * kNsPerSecond;

  struct ModelController {
    engine::ControllerSpec spec;
    uint64_t generation = 0;  // another one after it was deleted and made again
    std::optional<engine::AttachmentSpec> attached;
  };

  // ---- Drawing an operation
  void OneOperation();
  void RequestOperation(uint64_t dice);
  void GuestOperation(SimGuest& guest);
  engine::ControllerSpec DrawController();
  engine::AttachmentSpec DrawAttachment();
  std::string DrawName();
  engine::LimitsSpec DrawLimits();
  SimGuest& DrawGuest() { return *guests_[random_.Below(guests_.size())]; }
  GuestDisk FindDisk(const std::string& serial);

  // ---- Requests, with what they must answer
  void Put();
  void PutGroup();
  void DropGroup();
  Task<void> LimitDisk();
  void CheckLimits(const std::string& what, const std::string& controller);
  Task<void> Delete(std::string name);
  Task<void> Attach(engine::AttachmentSpec spec);
  Task<void> Detach(std::string name, uint32_t target);
  Task<void> Shutdown();
  ModelController* Model(const std::string& name, uint64_t generation);
  uint64_t GenerationOf(const std::string& name) const;
  void Expect(const std::string& request, const Status& status, std::optional<ErrorCode> expected);
  void CheckNothingLeft(const std::string& request, const std::string& controller);

  // ---- When everything is quiet
  void Quiet();
  void SettleMisbehaved();
  void CheckReports();
  void CheckGuests();

  // ---- engine::Engine::Listener: what a follower of the changes would know
  void ControllerChanged(const std::string& controller) override;
  void AttachmentChanged(const std::string& controller, uint32_t target) override;

  const OperationsConfig config_;
  World world_;
  Random random_;
  SimDiskFactory disks_;
  SimNetwork network_;
  engine::MemoryStore memories_;
  engine::GroupStore groups_;
  engine::ClusterStore clusters_;
  const std::unique_ptr<observe::EngineCounters> counters_;  // refuses to die while a disk is still counted
  engine::Engine engine_;
  std::vector<std::unique_ptr<SimGuest>> guests_;
  std::map<std::string, ModelController> model_;
  std::map<std::string, engine::GroupSpec> model_groups_;
  std::map<std::string, engine::LimitsSpec> limits_;  // of disks, as they were asked for last
  std::map<std::string, engine::ControllerReport> told_controllers_;
  std::map<std::string, engine::AttachmentReport> told_attachments_;
  uint64_t next_generation_ = 1;
  uint64_t next_revision_ = 1;
  uint32_t running_ = 0;
  uint64_t requests_ok_ = 0;
  bool shutting_down_ = false;
};

}  // namespace cleat::sim
