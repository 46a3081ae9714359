// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/storage_model.h"

#include <algorithm>
#include <cstring>

namespace cleat::sim::rdma {
namespace {

using nvme::fabrics::SubmissionEntry;
using nvme::fabrics::TargetCommand;
using State = TargetCommand::State;

constexpr uint8_t kPoison = 0xee;
constexpr uint64_t kWorkNs = 4'000;   // that the storage takes, at most
constexpr uint64_t kRetryNs = 2'000;  // until a command is looked for again
constexpr nvme::Status kSuccess{0};
constexpr nvme::Status kOutOfRange{0x80};

void ForEachByteRange(const TargetCommand& command, uint32_t bytes, auto visit) {
  uint32_t at = 0;
  for (const block::Segment& segment : command.data) {
    const uint32_t part = std::min(segment.length_bytes, bytes - at);
    if (part > 0) visit(segment.data(), at, part);
    at += part;
  }
}

}  // namespace

CommandPool::CommandPool(ModelWorld& world, uint32_t commands) : world_(world) {
  const uint32_t each = (commands + 1) / 2;
  for (uint32_t i = 0; i < 2; ++i) {
    memory_.emplace_back(size_t{each} * kCommandBytes, kPoison);
    regions_.push_back(block::MemoryRegion::Borrow(memory_[i].data(), memory_[i].size()));
  }
  places_.resize(size_t{each} * 2);
  for (uint32_t i = 0; i < places_.size(); ++i) {
    Place& place = places_[i];
    place.command = std::make_unique<TargetCommand>();
    place.command->tag = static_cast<uint16_t>(i);
    // In pieces, so that a work may have several, and a command several works.
    uint32_t left = kCommandBytes;
    uint64_t offset = uint64_t{i / 2} * kCommandBytes;
    while (left > 0) {
      const uint32_t bytes =
          world.Chance(40) ? left : static_cast<uint32_t>(world.random.Between(1, std::min(left, 3000U)));
      place.segments.push_back({regions_[i % 2].get(), offset, bytes});
      offset += bytes;
      left -= bytes;
    }
    place.command->data = place.segments;
  }
}

TargetCommand* CommandPool::Take(bool registered) {
  for (uint32_t i = registered ? 0 : 1; i < places_.size(); i += 2) {
    if (places_[i].taken) continue;
    CheckPoison(*places_[i].command);
    places_[i].taken = true;
    return places_[i].command.get();
  }
  return nullptr;
}

void CommandPool::Give(TargetCommand& command) {
  Place& place = places_[command.tag];
  if (!place.taken) world_.Wrong("a command is given back that was not taken");
  place.taken = false;
  Poison(command);
}

void CommandPool::Poison(TargetCommand& command) {
  ForEachByteRange(command, kCommandBytes,
                   [](uint8_t* memory, uint32_t, uint32_t part) { std::memset(memory, kPoison, part); });
}

void CommandPool::CheckPoison(const TargetCommand& command) {
  ForEachByteRange(command, kCommandBytes, [&](const uint8_t* memory, uint32_t, uint32_t part) {
    if (std::any_of(memory, memory + part, [](uint8_t byte) { return byte != kPoison; }))
      world_.Wrong("somebody has written to memory that was given back");
  });
}

void CommandPool::CheckAllBack() {
  for (const Place& place : places_) {
    if (place.taken) world_.Wrong("a command was never given back");
    CheckPoison(*place.command);
  }
}

// ---- QueueOwner

TargetCommand* QueueOwner::Take(const SubmissionEntry& /*entry*/, uint32_t in_capsule_bytes) {
  if (in_capsule_bytes > kCommandBytes) world_.Wrong("more data in a capsule than may be");
  TargetCommand* const command = world_.Chance(10) ? nullptr : pool_.Take(registered_);
  if (command == nullptr) {
    world_.After(kRetryNs, [this] { Retry(); });
  } else {
    taken_.insert(command);
  }
  return command;
}

void QueueOwner::Retry() {
  if (queue != nullptr) queue->Resume();
}

TargetCommand* QueueOwner::Find(uint16_t tag) {
  for (TargetCommand* command : taken_) {
    if (command->tag == tag) return command;
  }
  return nullptr;
}

void QueueOwner::Run(TargetCommand& command) {
  if (ends > 0) world_.Wrong("a command comes behind the end");
  const uint64_t ns = world_.Chance(30) ? 0 : world_.random.Below(kWorkNs);
  const bool asks = command.entry.opcode == kOpcodeWrite && command.data_bytes > 0 && !command.in_capsule &&
                    command.data_bytes <= kCommandBytes;
  const auto go = [this, &command, asks] {
    if (!asks || queue->ended()) return Execute(command);
    queue->Ask(command);
  };
  if (ns == 0) return go();
  world_.After(ns, go);
}

void QueueOwner::DataCame(TargetCommand& command) {
  if (ends > 0) world_.Wrong("data comes behind the end");
  if (command.state != State::kRunning) world_.Wrong("data comes for a command that does not run");
  std::vector<uint8_t> bytes(command.data_bytes);
  ForEachByteRange(command, command.data_bytes, [&](const uint8_t* memory, uint32_t at, uint32_t part) {
    std::memcpy(bytes.data() + at, memory, part);
  });
  data_came(command.entry.cid, bytes);
  world_.After(world_.random.Below(kWorkNs), [this, &command] { Execute(command); });
}

void QueueOwner::Execute(TargetCommand& command) {
  const uint64_t offset = command.entry.cdw10;
  const uint32_t bytes = command.data_bytes;
  if (bytes > kCommandBytes || offset + bytes > disk.size() ||
      (bytes > 0 && command.entry.opcode > kOpcodeRead) ||
      (bytes > 0 && command.entry.opcode == kOpcodeFlush))
    return queue->Answer(command, kOutOfRange);
  if (command.entry.opcode == kOpcodeWrite) {
    ForEachByteRange(command, bytes, [&](const uint8_t* memory, uint32_t at, uint32_t part) {
      std::memcpy(disk.data() + offset + at, memory, part);
    });
    return queue->Answer(command, kSuccess);
  }
  if (bytes > 0 && command.in_capsule) return queue->Answer(command, kOutOfRange);
  ForEachByteRange(command, bytes, [&](uint8_t* memory, uint32_t at, uint32_t part) {
    std::memcpy(memory, disk.data() + offset + at, part);
  });
  queue->Answer(command, kSuccess, 0, bytes);
}

void QueueOwner::Give(TargetCommand& command) {
  if (taken_.erase(&command) == 0) world_.Wrong("a command of another queue is given back");
  if (reused_.erase(&command) > 0) pool_.CheckPoison(command);
  pool_.Give(command);
}

void QueueOwner::Ended(const Error& why) {
  if (++ends > 1) world_.Wrong("an end that is heard twice");
  if (why.message.empty()) world_.Wrong("an end without a reason");
  reason = why.message;
  if (reuses_early_) Reuse();
  ended();
}

void QueueOwner::Reuse() {
  for (TargetCommand* command : taken_) {
    if (command->state != State::kAsked && command->state != State::kAnswering) continue;
    pool_.Poison(*command);
    reused_.insert(command);
  }
}

}  // namespace cleat::sim::rdma
