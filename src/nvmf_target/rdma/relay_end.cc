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
  Command* const command = commands_.Find(tag);
  return command != nullptr && command->state == TargetCommand::State::kRunning ? command : nullptr;
}

void RelayEnd::Ask(uint16_t tag, uint32_t bytes) {
  Command* const command = FindRunning(tag);
  if (command == nullptr || queue_->ended()) return;
  command->Resize(bytes);
  queue_->Ask(*command);
}

void RelayEnd::Answer(uint16_t tag, nvme::Status status, uint64_t result, const std::vector<uint8_t>& data) {
  Command* const command = FindRunning(tag);
  if (command == nullptr) return;
  const auto bytes = static_cast<uint32_t>(data.size());
  // More than the host has memory for can't be sent; whoever has made it has not looked.
  if (bytes > 0 && (command->in_capsule || bytes > command->data_bytes))
    return queue_->Answer(*command, kInternalError);
  command->Resize(bytes);
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
  Command& command = commands_.Take();
  command.Resize(in_capsule_bytes);
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
  command.Resize(0);
  if (!one_by_one_) ++room_;
  if (std::exchange(command.told, false)) {
    Tell([tag = command.tag](RelayQueue& relay) { relay.GivenBack(tag); });
  } else {
    Tell([](RelayQueue& relay) { relay.NothingCame(); });
  }
}

// The control reactor's answers come too late.
void RelayEnd::Ended(const Error& reason) {
  for (const auto& command : commands_.all()) {
    if (command->in_use && command->state == TargetCommand::State::kRunning)
      queue_->Answer(*command, kAborted);
  }
  Tell([reason](RelayQueue& relay) { relay.QueueEnded(reason); });
}

std::vector<uint8_t> RelayEnd::BytesOf(const Command& command) {
  return command.data.empty() ? std::vector<uint8_t>() : command.memory;
}

}  // namespace cleat::nvmf_target
