// SPDX-License-Identifier: Apache-2.0
// The admin queue of our own initiator, connected in memory to the target: commands are executed once asked to, and events come when they come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "block/segments.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/target/target.h"
#include "tests/unit/nvme/target/rig.h"

namespace cleat::nvme::target {

class TargetQueue final : public fabrics::QueuePair, public ControllerOwner {
 public:
  explicit TargetQueue(Target& to) : target_(to) {}
  ~TargetQueue() { Close(); }

  fabrics::QueuePairOwner* owner = nullptr;
  fabrics::TransportAddress local = kLocal;
  uint64_t now_ns = kSecondNs;
  TargetController* controller = nullptr;
  std::optional<Error> aborted;
  bool mute = false;  // as if the network lost everything

  uint32_t room() const override { return 32 - static_cast<uint32_t>(queue_.size()); }
  void Submit(const fabrics::QueuedCommand& command) override { queue_.push_back(command); }
  void Abort(const Error& reason) override {
    if (aborted) return;
    aborted = reason;
    Close();
    for (const auto& [cid, command] : held_) owner->Unanswered(command.cookie, fabrics::Reached::kPerhapsAll);
    for (const auto& command : queue_) owner->Unanswered(command.cookie, fabrics::Reached::kPerhapsAll);
    held_.clear();
    queue_.clear();
    owner->Ended(reason);
  }

  // Executes what is there, and what that leads to.
  void Serve() {
    while (!queue_.empty() && !aborted && !mute) {
      fabrics::QueuedCommand command = std::move(queue_.front());
      queue_.pop_front();
      Execute(command);
    }
    for (const auto& [cid, answer] : std::exchange(told_, {})) {
      const fabrics::QueuedCommand command = held_.at(cid);
      held_.erase(cid);
      owner->Completed(command.cookie, EntryOf(answer), 0);
    }
    if (ended_ && !aborted) Abort(*ended_);
  }

  // ---- ControllerOwner
  void Completed(uint16_t cid, const Answer& answer) override { told_.emplace_back(cid, answer); }
  void EndQueues(QueuesEndFor /*why*/) override {}
  void EndAssociation(const Error& reason) override { ended_ = reason; }

 private:
  void Execute(fabrics::QueuedCommand& command) {
    fabrics::SubmissionEntry& entry = command.entry;
    std::vector<uint8_t> data(block::SumBytes(command.to_target));
    block::Gather(command.to_target, 0, data.data(), data.size());
    entry.cid = next_cid_++;
    entry.data.type = data.empty() ? fabrics::kSglByTransport : fabrics::kSglInCapsule;
    entry.data.length_bytes =
        static_cast<uint32_t>(data.empty() ? block::SumBytes(command.from_target) : data.size());
    Answer answer;
    if (controller == nullptr) {
      Connected connected = target_.Connect(entry, data, local, nullptr, *this, now_ns);
      controller = connected.controller;
      answer = std::move(connected.answer);
    } else {
      answer = controller->Execute(entry, data, now_ns);
    }
    if (answer.kind == Answer::Kind::kHeld) {
      held_[entry.cid] = command;
      return;
    }
    uint64_t bytes = 0;
    if (!command.from_target.empty()) {
      const block::Segment& room = command.from_target[0];
      bytes = std::min<uint64_t>(room.length_bytes, answer.data.size());
      std::copy_n(answer.data.begin(), bytes, room.data());
    }
    owner->Completed(command.cookie, EntryOf(answer), bytes);
  }
  static fabrics::CompletionEntry EntryOf(const Answer& answer) {
    fabrics::CompletionEntry entry;
    entry.result = answer.result;
    entry.status_field = static_cast<uint16_t>(answer.status << 1);
    return entry;
  }
  void Close() {
    if (controller != nullptr) target_.End(*std::exchange(controller, nullptr));
  }

  Target& target_;
  std::deque<fabrics::QueuedCommand> queue_;
  std::map<uint16_t, fabrics::QueuedCommand> held_;
  std::vector<std::pair<uint16_t, Answer>> told_;
  std::optional<Error> ended_;
  uint16_t next_cid_ = 1;
};

}  // namespace cleat::nvme::target
