// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/queues/target_queue.h"

#include "base/check.h"

namespace cleat::nvme::fabrics {
namespace {

// SQHD where there is no flow control (base 2.0, 6.3).
constexpr uint16_t kNoFlowControl = 0xffff;

}  // namespace

TargetQueue::~TargetQueue() {
  CLEAT_CHECK(commands_ == 0);
}

void TargetQueue::BecomeQueue(uint32_t entries, bool flow_control, uint32_t /*in_capsule_bytes*/) {
  CLEAT_CHECK(entries > 0);
  entries_ = entries;
  flow_control_ = flow_control;
}

uint32_t TargetQueue::running() {
  uint32_t count = 0;
  for (TargetCommand* command = of_queue_.front(); command != nullptr; command = of_queue_.Next(*command))
    count += command->state == TargetCommand::State::kRunning ? 1 : 0;
  return count;
}

void TargetQueue::ForEachUnanswered(const std::function<void(TargetCommand&)>& visit) {
  for (TargetCommand* command = of_queue_.front(); command != nullptr; command = of_queue_.Next(*command)) {
    const bool is_unanswered =
        command->state == TargetCommand::State::kRunning || command->state == TargetCommand::State::kAsked;
    if (is_unanswered) visit(*command);
  }
}

CompletionEntry TargetQueue::MakeEntry(const TargetCommand& command, Status status, uint64_t result) {
  CompletionEntry entry;
  entry.result = result;
  entry.cid = command.entry.cid;
  entry.status_field = static_cast<uint16_t>(status.field() << 1);
  entry.sq_head = kNoFlowControl;
  if (flow_control_) {
    sq_head_ = static_cast<uint16_t>(sq_head_ + 1U == entries_ ? 0 : sq_head_ + 1U);
    entry.sq_head = sq_head_;
  }
  return entry;
}

}  // namespace cleat::nvme::fabrics
