// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/relay_end.h"

#include <algorithm>
#include <utility>

namespace cleat::nvmf_target {

using nvme::fabrics::TargetCommand;

namespace {

constexpr nvme::Status kInternalError{0x06};
constexpr nvme::Status kAborted{0x07};

}  // namespace

RelayEnd::RelayEnd(Reactor& control, std::shared_ptr<RelayQueue> relay, uint32_t commands_max)
    : control_(control),
      relay_(std::move(relay)),
      one_by_one_(commands_max == 1),
      room_(one_by_one_ ? 0 : commands_max) {}

void RelayEnd::Tell(std::function<void(RelayQueue&)> what) {
  control_.PostCall([relay = relay_, what = std::move(what)] { what(*relay); });
}

// ---- The control reactor

RelayEnd::Command* RelayEnd::FindRunning(uint16_t tag) {
  const bool is_known = tag < commands_.size() && commands_[tag]->in_use;
  return is_known && commands_[tag]->state == TargetCommand::State::kRunning ? commands_[tag].get() : nullptr;
}

void RelayEnd::Ask(uint16_t tag, uint32_t bytes) {
  Command* const command = FindRunning(tag);
  if (command == nullptr || queue_->ended()) return;
  Resize(*command, bytes);
  queue_->Ask(*command);
}

void RelayEnd::Answer(uint16_t tag, nvme::Status status, uint64_t result, const std::vector<uint8_t>& data) {
  Command* const command = FindRunning(tag);
  if (command == nullptr) return;
  const auto bytes = static_cast<uint32_t>(data.size());
  // More than the host has memory for can't be sent; whoever has made it has not looked.
  if (bytes > 0 && (command->in_capsule || bytes > command->data_bytes))
    return queue_->Answer(*command, kInternalError);
  Resize(*command, bytes);
  std::ranges::copy(data, command->memory.begin());
  queue_->Answer(*command, status, result, bytes);
}

void RelayEnd::TakeNext() {
  if (one_by_one_) room_ = 1;
  if (queue_->waits()) queue_->Resume();
}

// ---- The queue

TargetCommand* RelayEnd::Take(const nvme::fabrics::SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) {
  if (room_ == 0) return nullptr;
  --room_;
  size_t tag = 0;
  while (tag < commands_.size() && commands_[tag]->in_use) ++tag;
  if (tag == commands_.size()) {
    commands_.push_back(std::make_unique<Command>());
    commands_.back()->tag = static_cast<uint16_t>(tag);
  }
  Command& command = *commands_[tag];
  command.in_use = true;
  Resize(command, in_capsule_bytes);
  return &command;
}

void RelayEnd::Run(TargetCommand& of_queue) {
  auto& command = static_cast<Command&>(of_queue);
  command.told = true;
  Tell([came = RelayedCommand{.tag = command.tag,
                              .entry = command.entry,
                              .data_bytes = command.data_bytes,
                              .in_capsule = command.in_capsule,
                              .data = BytesOf(command)}](RelayQueue& relay) { relay.CommandCame(came); });
}

void RelayEnd::DataCame(TargetCommand& of_queue) {
  const auto& command = static_cast<Command&>(of_queue);
  Tell([tag = command.tag, data = BytesOf(command)](RelayQueue& relay) { relay.DataCame(tag, data); });
}

void RelayEnd::Give(TargetCommand& of_queue) {
  auto& command = static_cast<Command&>(of_queue);
  command.in_use = false;
  Resize(command, 0);
  if (!one_by_one_) ++room_;
  if (std::exchange(command.told, false)) {
    Tell([tag = command.tag](RelayQueue& relay) { relay.GivenBack(tag); });
  } else {
    Tell([](RelayQueue& relay) { relay.NothingCame(); });
  }
}

// The control reactor's answers come too late.
void RelayEnd::Ended(const Error& reason) {
  for (const auto& command : commands_) {
    if (command->in_use && command->state == TargetCommand::State::kRunning)
      queue_->Answer(*command, kAborted);
  }
  Tell([reason](RelayQueue& relay) { relay.QueueEnded(reason); });
}

void RelayEnd::Resize(Command& command, uint32_t bytes) {
  command.data = {};
  command.memory.assign(bytes, 0);
  if (bytes == 0) return;
  command.region = block::MemoryRegion::Borrow(command.memory.data(), bytes);
  command.segment = {command.region.get(), 0, bytes};
  command.data = {&command.segment, 1};
}

std::vector<uint8_t> RelayEnd::BytesOf(const Command& command) {
  return command.data.empty() ? std::vector<uint8_t>() : command.memory;
}

}  // namespace cleat::nvmf_target
