// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/relay_queue.h"

#include <utility>

#include "base/check.h"
#include "block/segments.h"

namespace cleat::nvmf_target {

using nvme::fabrics::TargetCommand;

void RelayQueue::Start(TransportOwner& owner) {
  turns_ = &owner;
  relayed_->TakeNext();
}

void RelayQueue::InTurn(const std::function<void()>& what) {
  if (turns_ == nullptr) return;
  turns_->BeginTurn();
  what();
  if (turns_ != nullptr) turns_->EndTurn();
  // The owner may have let the queue go with that.
  if (turns_ != nullptr && !ended_ && std::exchange(may_take_next_, false)) relayed_->TakeNext();
}

void RelayQueue::Wake() {
  if (std::exchange(wakes_, true)) return;
  control_.PostCall([self = shared_from_this()] {
    self->wakes_ = false;
    self->InTurn([] {});
  });
}

// ---- What the owner does

void RelayQueue::BecomeQueue(uint32_t entries, bool flow_control, uint32_t in_capsule_bytes) {
  TargetQueue::BecomeQueue(entries, flow_control, in_capsule_bytes);
  relayed_->BecomeQueue(entries, flow_control, in_capsule_bytes);
}

void RelayQueue::Ask(TargetCommand& command) {
  CLEAT_CHECK(command.state == TargetCommand::State::kRunning && !command.in_capsule && !ended_);
  command.state = TargetCommand::State::kAsked;
  relayed_->Ask(command.wire<Wire>().tag, command.data_bytes);
}

void RelayQueue::Answer(TargetCommand& command, nvme::Status status, uint64_t result, uint32_t data_bytes) {
  CLEAT_CHECK(command.state == TargetCommand::State::kRunning);
  if (ended_) return LetGo(command);
  command.state = TargetCommand::State::kAnswering;
  std::vector<uint8_t> data(data_bytes);
  if (data_bytes > 0) block::Gather(command.data, 0, data.data(), data_bytes);
  relayed_->Answer(command.wire<Wire>().tag, status, result, std::move(data));
}

void RelayQueue::Abort(const Error& reason) {
  if (ended_) return;
  relayed_->Abort(reason);
  End(reason);
}

void RelayQueue::Resume() {
  while (!waiting_.empty() && !ended_) {
    // Executing it may end the queue, and with that nothing waits any more.
    RelayedCommand next = std::move(waiting_.front());
    waiting_.pop_front();
    if (Take(next)) continue;
    waiting_.push_front(std::move(next));
    return;
  }
}

// ---- What the host and the adapter do

void RelayQueue::CommandCame(RelayedCommand command) {
  InTurn([&] {
    if (ended_ || !turns_->MayReceive()) return;
    if (!waiting_.empty() || !Take(command)) waiting_.push_back(std::move(command));
  });
}

bool RelayQueue::Take(RelayedCommand& came) {
  const auto in_capsule_bytes = static_cast<uint32_t>(came.data.size());
  TargetCommand* const command = owner_->Take(came.entry, in_capsule_bytes);
  if (command == nullptr) return false;
  if (in_capsule_bytes > 0) block::Scatter(came.data.data(), in_capsule_bytes, command->data, 0);
  command->entry = came.entry;
  command->data_bytes = came.data_bytes;
  command->in_capsule = came.in_capsule;
  command->moved_bytes = in_capsule_bytes;
  command->state = TargetCommand::State::kRunning;
  command->MakeWire<Wire>().tag = came.tag;
  by_tag_[came.tag] = command;
  Begin(*command);
  owner_->Run(*command);
  return true;
}

void RelayQueue::DataCame(uint16_t tag, const std::vector<uint8_t>& data) {
  InTurn([&] {
    TargetCommand* const command = Find(tag, TargetCommand::State::kAsked);
    if (command == nullptr || !turns_->MayReceive()) return;
    CLEAT_CHECK(data.size() == command->data_bytes);
    block::Scatter(data.data(), data.size(), command->data, 0);
    command->moved_bytes = command->data_bytes;
    command->state = TargetCommand::State::kRunning;
    owner_->DataCame(*command);
  });
}

void RelayQueue::GivenBack(uint16_t tag) {
  InTurn([&] {
    const auto found = by_tag_.find(tag);
    // A command that runs here was given back there because the queue has ended, which is the next mail.
    if (found == by_tag_.end() || found->second->state == TargetCommand::State::kRunning) return;
    may_take_next_ = true;
    LetGo(*found->second);
  });
}

void RelayQueue::NothingCame() {
  InTurn([this] { may_take_next_ = true; });
}

void RelayQueue::QueueEnded(const Error& reason) {
  InTurn([&] {
    if (!ended_) End(reason);
  });
}

// nullptr: this end has ended in between.
TargetCommand* RelayQueue::Find(uint16_t tag, TargetCommand::State state) {
  const auto found = by_tag_.find(tag);
  return found != by_tag_.end() && found->second->state == state ? found->second : nullptr;
}

void RelayQueue::LetGo(TargetCommand& command) {
  by_tag_.erase(command.wire<Wire>().tag);
  GiveBack(command);
}

// What the adapter has of commands is the other end's: here nothing refers to their memory.
void RelayQueue::End(const Error& reason) {
  ended_ = true;
  waiting_.clear();
  TargetCommand* next = nullptr;
  for (TargetCommand* command = of_queue_.front(); command != nullptr; command = next) {
    next = of_queue_.Next(*command);
    if (command->state != TargetCommand::State::kRunning) LetGo(*command);
  }
  owner_->Ended(reason);
}

}  // namespace cleat::nvmf_target
