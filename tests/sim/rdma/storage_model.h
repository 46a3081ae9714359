// SPDX-License-Identifier: Apache-2.0
// What is behind a controller's queues over RDMA, in virtual time: few commands for all queues, a disk for each, and memory that is poisoned when it comes
// back, so that whoever writes to it or sends it afterwards is noticed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "block/memory.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/rdma_target/target_queue.h"
#include "tests/sim/rdma/model_adapter.h"

namespace cleat::sim::rdma {

inline constexpr uint32_t kCommandBytes = 8192;  // data of one command, at most
inline constexpr uint8_t kOpcodeFlush = 0;
inline constexpr uint8_t kOpcodeWrite = 1;
inline constexpr uint8_t kOpcodeRead = 2;

// Commands and their memory. Every other command's is not registered.
class CommandPool {
 public:
  CommandPool(ModelWorld& world, uint32_t commands);
  nvme::fabrics::TargetCommand* Take(bool registered);
  void Give(nvme::fabrics::TargetCommand& command);
  void Poison(nvme::fabrics::TargetCommand& command);
  void CheckPoison(const nvme::fabrics::TargetCommand& command);
  // All are back, and nobody has written to any.
  void CheckAllBack();

  const std::shared_ptr<block::MemoryRegion>& registered_region() const { return regions_[0]; }

 private:
  struct Place {
    std::unique_ptr<nvme::fabrics::TargetCommand> command;
    std::vector<block::Segment> segments;
    bool taken = false;
  };
  ModelWorld& world_;
  std::vector<std::vector<uint8_t>> memory_;  // registered, and not
  std::vector<std::shared_ptr<block::MemoryRegion>> regions_;
  std::vector<Place> places_;
};

// The owner of one queue.
class QueueOwner final : public nvme::fabrics::TargetQueueOwner {
 public:
  // `reuses_early`: a defect, which believes that what was on the wire is back when the queue has ended.
  QueueOwner(ModelWorld& world, CommandPool& pool, bool registered, bool reuses_early)
      : disk(64 * 1024), world_(world), pool_(pool), registered_(registered), reuses_early_(reuses_early) {}

  nvme::fabrics::TargetCommand* Take(const nvme::fabrics::SubmissionEntry& entry,
                                     uint32_t in_capsule_bytes) override;
  nvme::fabrics::TargetCommand* Find(uint16_t tag) override;
  void Run(nvme::fabrics::TargetCommand& command) override;
  void DataCame(nvme::fabrics::TargetCommand& command) override;
  void Give(nvme::fabrics::TargetCommand& command) override;
  void Ended(const Error& reason) override;

  nvme::rdma_target::TargetQueue* queue = nullptr;  // nullptr once it is gone
  std::vector<uint8_t> disk;
  // Whether these are the bytes that the host's memory has for the command.
  std::function<void(uint16_t cid, const std::vector<uint8_t>& bytes)> data_came;
  std::function<void()> ended;
  uint32_t ends = 0;
  std::string reason;

 private:
  void Retry();
  void Reuse();
  void Execute(nvme::fabrics::TargetCommand& command);

  ModelWorld& world_;
  CommandPool& pool_;
  const bool registered_;
  const bool reuses_early_;
  std::set<nvme::fabrics::TargetCommand*> taken_;
  std::set<nvme::fabrics::TargetCommand*> reused_;
};

}  // namespace cleat::sim::rdma
