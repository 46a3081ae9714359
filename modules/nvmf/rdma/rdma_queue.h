// SPDX-License-Identifier: Apache-2.0
// One NVMe queue pair over RDMA, on one reactor, with its connection: what its owner has of a HostLink, which may go on for a moment when this is gone.
//
// Ownership and thread: transport_queue.h. Nothing is allocated from Connected on but for mail at the end, and the text of the error.
#pragma once

#include <functional>
#include <memory>

#include "modules/nvmf/rdma/host_link.h"
#include "modules/nvmf/transport/transport_queue.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/rdma_host/host_queue.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class RdmaQueue final : public TransportQueue, private HostLinkOwner, private nvme::fabrics::QueuePairOwner {
 public:
  // `reactor` and `owner` outlive it; `reactor`, too, what is left of the connection (RdmaPorts::Close).
  RdmaQueue(TransportQueueOptions options, Reactor& reactor, nvme::fabrics::QueuePairOwner& owner);
  ~RdmaQueue() override;
  RdmaQueue(const RdmaQueue&) = delete;
  RdmaQueue& operator=(const RdmaQueue&) = delete;

  // ---- TransportQueue
  void Start() override;
  void set_in_capsule_bytes(uint32_t bytes) override { queue_->set_in_capsule_bytes(bytes); }
  // True once the owner hears of the last commands: when the queue breaks, or, where it owes some, when its queue pair is gone.
  bool ended() const override { return ended_ || (queue_ != nullptr && queue_->ended() && !queue_->owes()); }

  // ---- QueuePair
  uint32_t room() const override { return queue_ != nullptr ? queue_->room() : 0; }
  void Submit(const nvme::fabrics::QueuedCommand& command) override;
  void Abort(const Error& reason) override;

 private:
  // ---- HostLinkOwner
  nvme::fabrics::QueuePairOwner& queue_owner() override { return *this; }
  void LinkConnected(nvme::rdma_host::HostQueue& queue) override;
  void LinkFailed(const Error& reason) override;
  void LinkBreaks(const Error& reason) override;
  // ---- QueuePairOwner: of the queue, for the owner
  void Connected() override {}
  void Completed(uint64_t cookie, const nvme::fabrics::CompletionEntry& entry, uint64_t data_bytes) override;
  void Unanswered(uint64_t cookie, nvme::fabrics::Reached reached) override;
  void Ended(const Error& reason) override;

  const std::string name_;
  const std::function<void(const Error& reason)> on_breaks_;
  nvme::fabrics::QueuePairOwner& owner_;
  const std::shared_ptr<HostLink> link_;
  nvme::rdma_host::HostQueue* queue_ = nullptr;  // the link's; nullptr: not connected, or it has ended
  bool started_ = false;
  bool ended_ = false;
};

}  // namespace cleat::modules
