// SPDX-License-Identifier: Apache-2.0
// Commands that each have memory of their own, for queues whose commands are few and small.
//
// One thread: the queue's. Limits: the queue's, which takes no more commands than it has entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "block/memory.h"
#include "nvme/fabrics/queues/target_queue.h"

namespace cleat::nvmf_target {

struct OwnedCommand : nvme::fabrics::TargetCommand {
  std::vector<uint8_t> memory;
  std::shared_ptr<block::MemoryRegion> region;
  block::Segment segment;
  bool in_use = false;

  // Gives the command so much memory, of zeroes, as its data.
  void Resize(uint32_t bytes) {
    data = {};
    memory.assign(bytes, 0);
    if (bytes == 0) return;
    region = block::MemoryRegion::Borrow(memory.data(), bytes);
    segment = {region.get(), 0, bytes};
    data = {&segment, 1};
  }
};

// `Command` is an OwnedCommand. The pool keeps a command once it was made, for the next that needs one.
template <typename Command>
class OwnedCommands {
 public:
  // A command in use, with the lowest tag that is free.
  Command& Take() {
    size_t tag = 0;
    while (tag < commands_.size() && commands_[tag]->in_use) ++tag;
    if (tag == commands_.size()) {
      commands_.push_back(std::make_unique<Command>());
      commands_.back()->tag = static_cast<uint16_t>(tag);
    }
    commands_[tag]->in_use = true;
    return *commands_[tag];
  }
  // nullptr: no command in use has the tag.
  Command* Find(uint16_t tag) const {
    return tag < commands_.size() && commands_[tag]->in_use ? commands_[tag].get() : nullptr;
  }
  // Every command that was made, in use or not, by its tag.
  const std::vector<std::unique_ptr<Command>>& all() const { return commands_; }

 private:
  std::vector<std::unique_ptr<Command>> commands_;  // by tag
};

}  // namespace cleat::nvmf_target
