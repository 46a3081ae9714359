// SPDX-License-Identifier: Apache-2.0
// A completion queue of an adapter, with the descriptor that its interrupt makes readable. Made by AdapterDevice; its thread is the one that polls it.
#pragma once

#include "rdma/ibverbs/library.h"
#include "rdma/verbs.h"

namespace cleat::rdma {

WorkStatus StatusOf(ibv_wc_status status);

class AdapterCompletionQueue final : public CompletionQueue {
 public:
  // The channel does not block, and is this queue's alone. `invalidated_flag`: by which the adapter says that the peer has invalidated a key.
  AdapterCompletionQueue(const Library& library, ibv_comp_channel& channel, ibv_cq& queue,
                         unsigned int invalidated_flag)
      : library_(library), channel_(channel), queue_(queue), invalidated_flag_(invalidated_flag) {}
  ~AdapterCompletionQueue() override;
  AdapterCompletionQueue(const AdapterCompletionQueue&) = delete;
  AdapterCompletionQueue& operator=(const AdapterCompletionQueue&) = delete;

  uint32_t Poll(std::span<Completion> completions) override;
  Status Arm() override;
  int descriptor() const override { return channel_.fd; }
  void TakeEvents() override;

  ibv_cq* queue() const { return &queue_; }

 private:
  const Library& library_;
  ibv_comp_channel& channel_;
  ibv_cq& queue_;
  const unsigned int invalidated_flag_;
};

}  // namespace cleat::rdma
