// SPDX-License-Identifier: Apache-2.0
// A namespace behind NVMe/TCP as the virtio drivers' disks are behind their rings: a controller, its I/O queues, and requests in slots that
// are prepared once and posted as often as wanted. Owned by the load's owner; uses a GuestMemory that outlives it, in which the commands
// and their data lie. Started and stopped on one thread, each queue used by one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "perf/nvme_tcp/controller.h"
#include "perf/nvme_tcp/queue.h"
#include "perf/ring/driver_ring.h"
#include "perf/vhost_user/guest_memory.h"

namespace cleat::perf {

// A queue pair in the form of a ring with posted chains (DriverRing). A chain is the command, its data, and where the answer goes.
class NvmePostedQueue {
 public:
  struct Posted {
    uint16_t id = 0;
  };
  struct Options {
    uint16_t indirect_entries = NvmeTcpQueue::kPiecesMax + 2;  // no request takes more than one slot
  };

  NvmePostedQueue(GuestMemory& memory, std::unique_ptr<NvmeTcpQueue> queue)
      : memory_(memory), queue_(std::move(queue)) {}

  // A slot, whatever the chain's length. Nothing when all are taken.
  std::optional<uint16_t> Reserve(uint16_t segments, bool indirect);
  void Unreserve(uint16_t /*id*/) { --reserved_; }  // all of them, in any order, before the next is reserved
  void Prepare(uint16_t id, std::span<const Segment> chain);
  void Post(uint16_t id) { queue_->Post(id); }
  bool HasUnpublished() const { return queue_->HasUnsent(); }
  void Submit() { queue_->Flush(); }
  PopResult PopPosted(Posted* posted) {
    if (queue_->Pop(&posted->id)) [[likely]]
      return PopResult::kDone;
    return queue_->broken() ? PopResult::kBroken : PopResult::kNone;
  }

  // Sleeping: the socket calls. What it does not take now is sent by polling on.
  int call_fd() const { return queue_->socket(); }
  void DisableCalls() {}
  bool EnableCalls() const { return !queue_->HasUnsent() || queue_->broken(); }

  bool broken() const { return queue_->broken(); }
  std::string Problem() const { return queue_->broken_reason(); }
  uint16_t size() const { return queue_->slots(); }
  const Options& options() const { return options_; }
  const NvmeTcpQueue::Stats& stats() const { return queue_->stats(); }

 private:
  GuestMemory& memory_;
  std::unique_ptr<NvmeTcpQueue> queue_;
  const Options options_;
  uint16_t reserved_ = 0;
};

class NvmeTcpDriver {
 public:
  // Connects, finds the namespace and opens the queues.
  static Result<std::unique_ptr<NvmeTcpDriver>> Start(GuestMemory& memory, const NvmeTcpOptions& options);
  Status Stop() { return controller_->Stop(); }

  GuestMemory& memory() { return memory_; }
  uint16_t num_queues() const { return static_cast<uint16_t>(queues_.size()); }
  NvmePostedQueue& queue(uint16_t number) { return *queues_[number]; }
  const NvmeTcpController::Facts& facts() const { return controller_->facts(); }
  const NvmeTcpController::Namespace& disk() const { return namespace_; }
  // Closed by the target when the association is over.
  int admin_socket() const { return controller_->admin_socket(); }

 private:
  explicit NvmeTcpDriver(GuestMemory& memory) : memory_(memory) {}

  GuestMemory& memory_;
  std::unique_ptr<NvmeTcpController> controller_;
  NvmeTcpController::Namespace namespace_;
  std::vector<std::unique_ptr<NvmePostedQueue>> queues_;
};

}  // namespace cleat::perf
