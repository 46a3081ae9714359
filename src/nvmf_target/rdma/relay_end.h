// SPDX-License-Identifier: Apache-2.0
// The reactor's end of a RelayQueue: has a queue that the control reactor decides about, and tells it what comes.
//
// One thread: the queue's reactor. The queue outlives its commands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "nvme/fabrics/queues/target_queue.h"
#include "nvmf_target/memory/owned_commands.h"
#include "nvmf_target/rdma/relay_queue.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

class RelayEnd final : public nvme::fabrics::TargetQueueOwner {
 public:
  // `commands_max`: taken at a time. 1: the next one comes after TakeNext alone.
  RelayEnd(Reactor& control, std::shared_ptr<RelayQueue> relay, uint32_t commands_max);

  // Before the first command; `queue` is owned by this.
  void SetQueue(nvme::fabrics::TargetQueue& queue) { queue_ = &queue; }
  // ---- What the control reactor wants. Of commands that are gone: nothing.
  void Ask(uint16_t tag, uint32_t bytes);
  void Answer(uint16_t tag, nvme::Status status, uint64_t result, const std::vector<uint8_t>& data);
  // One more command may come, where they come one by one; and capsules that wait are tried again.
  void TakeNext();

 private:
  struct Command : OwnedCommand {
    bool told = false;  // the relay knows it
  };
  // TargetQueueOwner
  nvme::fabrics::TargetCommand* Take(const nvme::fabrics::SubmissionEntry& entry,
                                     uint32_t in_capsule_bytes) override;
  nvme::fabrics::TargetCommand* Find(uint16_t tag) override { return FindRunning(tag); }
  void Run(nvme::fabrics::TargetCommand& command) override;
  void DataCame(nvme::fabrics::TargetCommand& command) override;
  void Give(nvme::fabrics::TargetCommand& command) override;
  void Ended(const Error& reason) override;

  Command* FindRunning(uint16_t tag);
  static std::vector<uint8_t> BytesOf(const Command& command);
  void Tell(std::function<void(RelayQueue&)> what);

  Reactor& control_;
  const std::shared_ptr<RelayQueue> relay_;
  nvme::fabrics::TargetQueue* queue_ = nullptr;
  const bool one_by_one_;
  uint32_t room_ = 0;  // commands that may be taken
  OwnedCommands<Command> commands_;
};

}  // namespace cleat::nvmf_target
