// SPDX-License-Identifier: Apache-2.0
// A shared receive queue of an adapter. Made by AdapterDevice; its thread is that of the completion queue.
#pragma once

#include "rdma/ibverbs/library.h"
#include "rdma/verbs.h"

namespace cleat::rdma {

class AdapterReceiveQueue final : public ReceiveQueue {
 public:
  AdapterReceiveQueue(const Library& library, ibv_srq& queue) : library_(library), queue_(queue) {}
  ~AdapterReceiveQueue() override { library_.destroy_srq(&queue_); }
  AdapterReceiveQueue(const AdapterReceiveQueue&) = delete;
  AdapterReceiveQueue& operator=(const AdapterReceiveQueue&) = delete;

  uint32_t Post(std::span<const ReceiveWork> works) override;

  ibv_srq* queue() const { return &queue_; }

 private:
  const Library& library_;
  ibv_srq& queue_;
};

}  // namespace cleat::rdma
