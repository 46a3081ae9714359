// SPDX-License-Identifier: Apache-2.0
// A host's queue over RDMA as the control reactor has it, for as long as it has it: an admin queue to its end, what is to be an I/O queue until it moves.
// The queue pair is polled by another reactor all the time, since it can't change its completion queue; RelayEnd has the queue there, and the two send each
// other what happens by mail. Commands and their data are copied: few of them, and small.
//
// Control reactor; kept by shared_ptr, for mail that is on its way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "nvme/fabrics/queues/target_queue.h"
#include "nvmf_target/transport/queue_transport.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

// A command as it has come, with what its capsule brings.
struct RelayedCommand {
  uint16_t tag = 0;  // RelayEnd's
  nvme::fabrics::SubmissionEntry entry;
  uint32_t data_bytes = 0;
  bool in_capsule = false;
  std::vector<uint8_t> data = {};
};

// What is asked of the queue itself. Each is mail to its reactor, in that order.
class RelayedQueue {
 public:
  virtual void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) = 0;
  virtual void Ask(uint16_t tag, uint32_t bytes) = 0;
  virtual void Answer(uint16_t tag, nvme::Status status, uint64_t result, std::vector<uint8_t> data) = 0;
  virtual void Abort(const Error& reason) = 0;
  // As RelayEnd::TakeNext.
  virtual void TakeNext() = 0;

 protected:
  ~RelayedQueue() = default;
};

class RelayQueue final : public nvme::fabrics::TargetQueue, public std::enable_shared_from_this<RelayQueue> {
 public:
  // `queue` is called until this has ended, or has been stopped.
  RelayQueue(Reactor& control, RelayedQueue& queue) : control_(control), relayed_(&queue) {}

  // From now on `owner` hears of turns.
  void Start(TransportOwner& owner);
  // Hears of nothing from now on. No command is left, or it has ended.
  void Stop() { turns_ = nullptr; }
  bool started() const { return turns_ != nullptr; }
  // A turn follows.
  void Wake();

  // ---- TargetQueue
  void BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) override;
  using TargetQueue::Answer;
  void Ask(nvme::fabrics::TargetCommand& command) override;
  void Answer(nvme::fabrics::TargetCommand& command, nvme::Status status, uint64_t result,
              uint32_t data_bytes) override;
  void Abort(const Error& reason) override;
  void Resume() override;
  bool waits() const override { return !waiting_.empty(); }

  // ---- Mail from the queue's reactor
  void CommandCame(RelayedCommand command);
  void DataCame(uint16_t tag, const std::vector<uint8_t>& data);
  // The command was answered. Of one that is not there: nothing.
  void GivenBack(uint16_t tag);
  // A command was taken that could not be executed, and has been answered: this has not heard of it.
  void NothingCame();
  void QueueEnded(const Error& reason);

 private:
  struct Wire {
    uint16_t tag = 0;
  };
  // False: the owner has no command for it.
  bool Take(RelayedCommand& command);
  nvme::fabrics::TargetCommand* Find(uint16_t tag, nvme::fabrics::TargetCommand::State state);
  void LetGo(nvme::fabrics::TargetCommand& command);
  void End(const Error& reason);
  // Between the beginning and the end of a turn of the owner's.
  void InTurn(const std::function<void()>& what);

  Reactor& control_;
  RelayedQueue* const relayed_;
  TransportOwner* turns_ = nullptr;
  std::map<uint16_t, nvme::fabrics::TargetCommand*> by_tag_;
  std::deque<RelayedCommand> waiting_;
  bool wakes_ = false;
  bool may_take_next_ = false;
};

}  // namespace cleat::nvmf_target
