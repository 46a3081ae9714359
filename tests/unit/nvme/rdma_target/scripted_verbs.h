// SPDX-License-Identifier: Apache-2.0
// Verbs that a test plays by hand: what was posted is to be seen, and completes when the test says so. And an owner that keeps what it hears.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "block/memory.h"
#include "nvme/fabrics/queues/target_queue.h"
#include "nvme/rdma/keyed_sgl.h"
#include "nvme/rdma_target/target_adapter.h"
#include "nvme/rdma_target/target_queue.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_target {

struct PostedWork {
  verbs::SendWork work;
  std::vector<verbs::LocalPiece> pieces;
  std::vector<uint8_t> bytes;  // of those that were there when it was posted
};

class ScriptedPair final : public verbs::QueuePair {
 public:
  explicit ScriptedPair(uint32_t number) : number_(number) {}
  uint32_t number() const override { return number_; }
  const verbs::SendLimits& limits() const override { return told; }
  uint32_t Post(std::span<const verbs::SendWork> works) override {
    ++doorbells;
    const auto count = std::min<size_t>(works.size(), takes);
    for (const verbs::SendWork& work : works.first(count)) {
      PostedWork kept{work, {work.pieces.begin(), work.pieces.end()}, {}};
      for (const verbs::LocalPiece& piece : work.pieces) {
        const auto* const at = std::bit_cast<const uint8_t*>(piece.address);
        kept.bytes.insert(kept.bytes.end(), at, at + piece.length_bytes);
      }
      posted.push_back(std::move(kept));
    }
    return static_cast<uint32_t>(count);
  }
  void Break() override { ++breaks; }

  verbs::SendLimits told{.works = 16, .pieces = 4, .inline_bytes = 64, .read_credits = 4};
  std::vector<PostedWork> posted;
  uint32_t doorbells = 0;
  uint32_t breaks = 0;
  uint32_t takes = UINT32_MAX;

 private:
  const uint32_t number_;
};

class ScriptedQueues final : public verbs::CompletionQueue, public verbs::ReceiveQueue {
 public:
  uint32_t Poll(std::span<verbs::Completion> completions) override {
    uint32_t count = 0;
    for (; count < completions.size() && !pending.empty(); ++count) {
      completions[count] = pending.front();
      pending.pop_front();
    }
    return count;
  }
  uint32_t Post(std::span<const verbs::ReceiveWork> works) override {
    const auto count = std::min<size_t>(works.size(), takes);
    receives.insert(receives.end(), works.begin(), works.begin() + static_cast<ptrdiff_t>(count));
    return static_cast<uint32_t>(count);
  }
  cleat::Status Arm() override { return {}; }
  int descriptor() const override { return -1; }
  void TakeEvents() override {}

  std::deque<verbs::Completion> pending;
  std::deque<verbs::ReceiveWork> receives;
  uint32_t takes = UINT32_MAX;
};

class KeepingOwner final : public fabrics::TargetQueueOwner {
 public:
  // Memory of each of so many commands, in two segments.
  KeepingOwner(uint32_t commands, const std::shared_ptr<block::MemoryRegion>& region, uint32_t bytes_each) {
    for (uint32_t i = 0; i < commands; ++i) {
      auto command = std::make_unique<fabrics::TargetCommand>();
      command->tag = static_cast<uint16_t>(i);
      segments_.push_back(
          {{region.get(), uint64_t{i} * bytes_each, bytes_each / 4},
           {region.get(), uint64_t{i} * bytes_each + bytes_each / 4, bytes_each - bytes_each / 4}});
      free.push_back(command.get());
      commands_.push_back(std::move(command));
    }
    for (uint32_t i = 0; i < commands; ++i) commands_[i]->data = segments_[i];
  }

  fabrics::TargetCommand* Take(const fabrics::SubmissionEntry&, uint32_t) override {
    if (free.empty()) return nullptr;
    fabrics::TargetCommand* const command = free.front();
    free.pop_front();
    return command;
  }
  fabrics::TargetCommand* Find(uint16_t) override { return nullptr; }
  void Run(fabrics::TargetCommand& command) override { ran.push_back(&command); }
  void DataCame(fabrics::TargetCommand& command) override { came.push_back(&command); }
  void Give(fabrics::TargetCommand& command) override {
    given.push_back(&command);
    free.push_back(&command);
  }
  void Ended(const Error& reason) override {
    ends.push_back(reason.message);
    if (on_end) on_end();
  }

  std::deque<fabrics::TargetCommand*> free;
  std::vector<fabrics::TargetCommand*> ran;
  std::vector<fabrics::TargetCommand*> came;
  std::vector<fabrics::TargetCommand*> given;
  std::vector<std::string> ends;
  std::function<void()> on_end;

 private:
  std::vector<std::vector<block::Segment>> segments_;
  std::vector<std::unique_ptr<fabrics::TargetCommand>> commands_;
};

}  // namespace cleat::nvme::rdma_target
