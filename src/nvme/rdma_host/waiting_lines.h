// SPDX-License-Identifier: Apache-2.0
// Commands that wait for what an adapter has: a line for the small ones of each target and one for the large ones, first come, first served, and the targets
// by turns. What a target's commands have is counted, so that no target has all there is.
//
// A target may take something more while it has less than kShareOfFree times what is free: alone it comes to three quarters, with others like it to a part
// that leaves some to the next one. So a target that answers nothing, which is waited for without limit, does not keep others from going on, however many
// of them there are.
//
// One thread: the adapter's. Allocates when a target is new.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "base/intrusive_list.h"
#include "nvme/rdma_host/host_command.h"

namespace cleat::nvme::rdma_host {

inline constexpr uint64_t kShareOfFree = 3;
constexpr bool MayTake(uint64_t has, uint64_t free) {
  return has < kShareOfFree * free;
}

// The queues to one address.
struct Target {
  struct Line {
    IntrusiveList<HostCommand, &HostCommand::waits> commands;
    ListHook turn;  // among the lines of its kind, from its first command on until somebody has seen it empty
    Target* target = nullptr;
  };
  Target() {
    for (Line& line : lines) line.target = this;
  }

  uint32_t queues = 0;
  // What its commands have, by kind: so that its large ones leave something to its small ones, too.
  std::array<uint32_t, 2> places = {};
  std::array<uint32_t, 2> windows = {};
  std::array<uint64_t, 2> bytes = {};  // of memory
  std::array<Line, 2> lines;
};

class WaitingLines {
 public:
  static constexpr uint32_t kSmall = 0;
  static constexpr uint32_t kLarge = 1;
  static uint32_t KindOf(const HostCommand& command) { return command.is_large ? kLarge : kSmall; }

  // Once for each queue, and back.
  Target& Join(const std::string& name) {
    auto& target = targets_[name];
    if (target == nullptr) target = std::make_unique<Target>();
    ++target->queues;
    return *target;
  }
  void Leave(const std::string& name) {
    const auto found = targets_.find(name);
    CLEAT_CHECK(found != targets_.end());
    if (--found->second->queues == 0) targets_.erase(found);
  }

  void Add(HostCommand& command, Target& target) {
    Target::Line& line = target.lines[KindOf(command)];
    line.commands.PushBack(command);
    if (!line.turn.linked()) turns_[KindOf(command)].PushBack(line);
  }
  bool empty() const { return turns_[kSmall].empty() && turns_[kLarge].empty(); }

  // The first line of the kind, and the one behind it, that have a command; nullptr: none has.
  Target::Line* First(uint32_t kind) { return Used(kind, turns_[kind].front()); }
  Target::Line* Next(uint32_t kind, Target::Line& line) { return Used(kind, turns_[kind].Next(line)); }
  // Its first command is served: the others have their turn.
  HostCommand& Take(uint32_t kind, Target::Line& line) {
    line.turn.Unlink();
    HostCommand& command = *line.commands.PopFront();
    if (!line.commands.empty()) turns_[kind].PushBack(line);
    return command;
  }

 private:
  using Turns = IntrusiveList<Target::Line, &Target::Line::turn>;

  Target::Line* Used(uint32_t kind, Target::Line* line) {
    while (line != nullptr && line->commands.empty()) {
      Target::Line* const next = turns_[kind].Next(*line);
      line->turn.Unlink();
      line = next;
    }
    return line;
  }

  std::unordered_map<std::string, std::unique_ptr<Target>> targets_;
  std::array<Turns, 2> turns_;
};

}  // namespace cleat::nvme::rdma_host
