// SPDX-License-Identifier: Apache-2.0
// The owner of a host's queue over RDMA, in virtual time: each command has memory of its own, in several segments, and a part of the disk. What comes back is
// compared with what may come; memory is poisoned at a command's end, so that whoever reads or writes there afterwards is noticed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "block/memory.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/rdma_host/direct_memory.h"
#include "nvme/rdma_host/host_queue.h"
#include "rdma/memory.h"
#include "tests/sim/rdma/initiator_model.h"
#include "tests/sim/rdma/model_adapter.h"
#include "tests/sim/rdma/remote_target.h"

namespace cleat::sim::rdma {

// Registers guests' memory with the adapter, which is found at some times and not at others.
class DirectModel final : public nvme::rdma_host::DirectMemory {
 public:
  explicit DirectModel(ModelWorld& world) : world_(world) {}
  void Register(const block::MemoryRegion& region);
  const verbs::Registration* Find(const block::MemoryRegion& region) override;
  // Whether the last Find has found something.
  bool TakeFound() { return std::exchange(found_, false); }

 private:
  static constexpr uint32_t kFirstKey = 100;
  ModelWorld& world_;
  std::map<const block::MemoryRegion*, ModelRegistration> registrations_;
  bool found_ = false;
};

struct GuestOptions {
  uint32_t entries = 2;
  uint32_t commands = 10;  // in all
  uint8_t mark = 1;        // of its bytes
  bool believes = true;    // what it reads: its controller is good
  uint64_t large_percent = 10;
  uint32_t part_bytes = kPartBytes;  // of the disk for each command
  DirectModel* direct = nullptr;     // its memory may be registered there
};

class GuestModel final : public nvme::fabrics::QueuePairOwner {
 public:
  GuestModel(ModelWorld& world, const GuestOptions& options);
  void Start(nvme::rdma_host::HostQueue& queue);
  void Gone() { queue_ = nullptr; }
  bool done() const { return over_ >= options_.commands; }
  uint32_t completed() const { return completed_; }
  uint64_t unanswered() const { return unanswered_; }
  bool ended() const { return ends_ > 0; }
  const std::string& reason() const { return reason_; }
  // Whether a write of these bytes runs there.
  bool Wrote(uint32_t offset, const std::vector<uint8_t>& bytes) const;
  // The target has the command of that number.
  void Arrived(uint32_t number);
  // All has come back, and nobody has written to memory of what is over.
  void CheckAllBack();

  std::function<void()> on_ended;

  void Connected() override { world_.Wrong("a queue is connected that was"); }
  void Completed(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry, uint64_t data_bytes) override;
  void Unanswered(uint64_t cookie, nvme::fabrics::Reached reached) override;
  void Ended(const Error& reason) override;

 private:
  struct Slot {
    bool busy = false;
    bool is_write = false;
    bool is_direct = false;  // its memory may be shown to the controller
    uint64_t cookie = 0;
    uint32_t bytes = 0;
    uint32_t offset = 0;  // of the disk
    std::vector<block::Segment> segments;
    std::vector<uint8_t> data;  // that is written, or that a read is to bring
  };

  void Issue();
  void IssueOne(uint32_t number);
  Slot* Over(uint64_t cookie);
  uint8_t* MemoryOf(uint32_t number);
  void CheckPoison(uint32_t number);
  void CheckRead(const Slot& slot, const uint8_t* memory);

  ModelWorld& world_;
  const GuestOptions options_;
  nvme::rdma_host::HostQueue* queue_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<uint8_t> memory_;
  std::shared_ptr<block::MemoryRegion> region_;
  std::set<uint32_t> arrived_;
  std::set<uint32_t> is_nowhere_;  // as was said when it ended
  std::vector<uint8_t> content_;   // of the disk
  uint32_t issued_ = 0;
  uint32_t over_ = 0;
  uint32_t completed_ = 0;
  uint64_t unanswered_ = 0;
  uint32_t ends_ = 0;
  std::string reason_;
};

}  // namespace cleat::sim::rdma
