// SPDX-License-Identifier: Apache-2.0
// The adapter of a target at the other end of initiator_model.h's wire: what a controller's queue posts becomes work of that far end, and the capsules of the
// host arrive in its memory. So a host's queue and a target's run against each other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "rdma/verbs.h"
#include "tests/sim/rdma/initiator_model.h"

namespace cleat::sim::rdma {

class FarAdapter final : public verbs::CompletionQueue, public verbs::ReceiveQueue {
 public:
  uint32_t Poll(std::span<verbs::Completion> completions) override;
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override;
  Status Arm() override { return {}; }
  int descriptor() const override { return -1; }
  void TakeEvents() override {}
  bool empty() const { return completions_.empty(); }

 private:
  friend class FarPair;
  std::deque<verbs::Completion> completions_;
  std::deque<verbs::ReceiveWork> receives_;
};

class FarPair final : public verbs::QueuePair, public TargetEnd {
 public:
  FarPair(ModelWorld& world, FarAdapter& adapter, uint32_t number, const verbs::SendLimits& limits)
      : world_(world), adapter_(adapter), number_(number), limits_(limits) {}
  ~FarPair() override;
  // The host's queue pair; nullptr: it goes.
  void Connect(InitiatorPair* host) { host_ = host; }
  // The connection is gone.
  std::function<void()> disconnected;

  uint32_t number() const override { return number_; }
  const verbs::SendLimits& limits() const override { return limits_; }
  uint32_t Post(std::span<const verbs::SendWork> works) override;
  void Break() override;

  bool TakeReceive() override { return !broken_ && !adapter_.receives_.empty(); }
  void Arrived(std::vector<uint8_t> capsule) override;
  bool silent() const override { return false; }
  void Broken() override;

 private:
  struct Work {
    verbs::SendWork work;
    std::vector<verbs::LocalPiece> pieces;
    bool over = false;
    verbs::WorkStatus status = verbs::WorkStatus::kDone;
  };
  using WorkPtr = std::shared_ptr<Work>;
  void Go(const WorkPtr& work);
  void Done(const WorkPtr& work, const std::vector<uint8_t>& read);
  void Flush();
  void EmitDone();

  ModelWorld& world_;
  FarAdapter& adapter_;
  const uint32_t number_;
  const verbs::SendLimits limits_;
  InitiatorPair* host_ = nullptr;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::deque<WorkPtr> works_;
  bool broken_ = false;
};

}  // namespace cleat::sim::rdma
