// SPDX-License-Identifier: Apache-2.0
// A queue pair of an adapter. It belongs to an identifier of the connection manager, which brings it through its states and outlives it
// (rdma/rdmacm/connection.h). Post belongs to the thread of its completion queue, Break to any that knows that it lives.
#pragma once

#include <memory>

#include "rdma/connection.h"
#include "rdma/ibverbs/library.h"
#include "rdma/verbs.h"

namespace cleat::rdma {

class AdapterQueuePair final : public QueuePair {
 public:
  // `id` knows its adapter, has no queue pair, and outlives it. The limits are what `parts` wants, less where the adapter has less.
  static Result<std::unique_ptr<AdapterQueuePair>> Make(const Library& library, rdma_cm_id& id,
                                                        const QueuePairParts& parts);
  ~AdapterQueuePair() override { library_.destroy_qp(&id_); }
  AdapterQueuePair(const AdapterQueuePair&) = delete;
  AdapterQueuePair& operator=(const AdapterQueuePair&) = delete;

  uint32_t number() const override { return pair_.qp_num; }
  const SendLimits& limits() const override { return limits_; }
  uint32_t Post(std::span<const SendWork> works) override;
  void Break() override;

  // What both ends have agreed on, before it is used.
  void SetReadCredits(uint32_t credits) { limits_.read_credits = credits; }
  // How long a peer waits that finds no ReceiveWork here. Of one that may receive.
  void SetReceiverNotReadyTimer();

 private:
  AdapterQueuePair(const Library& library, rdma_cm_id& id, const SendLimits& limits)
      : library_(library), id_(id), pair_(*id.qp), limits_(limits) {}

  const Library& library_;
  rdma_cm_id& id_;
  ibv_qp& pair_;
  SendLimits limits_;
};

}  // namespace cleat::rdma
