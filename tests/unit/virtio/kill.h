// SPDX-License-Identifier: Apache-2.0
// The death of a process that serves rings, for tests within one process: what it shares with the guest and with its
// successor - guest memory and in-flight logs - is copied, the queue is stopped and drained as life demands, and what
// it wrote on the way is taken back. The successor then finds what a SIGKILL at that moment would have left.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "guest_ring.h"

namespace cleat::virtio {

// One queue's in-flight log, large enough for either format.
class LogMemory {
 public:
  explicit LogMemory(uint16_t queue_size) : words_(4 + 4 * queue_size) {}
  InflightMemory memory() { return {bytes(), words_.size() * sizeof(uint64_t), nullptr}; }
  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(words_.data()); }

 private:
  friend class Moment;
  std::vector<uint64_t> words_;
};

class Moment {
 public:
  Moment(GuestMemory& memory, LogMemory& log) : memory_(memory), log_(log), log_words_(log.words_) {
    for (const block::MemoryMap::Entry& entry : memory.map()->entries()) {
      const uint8_t* base = entry.region->base();
      regions_.emplace_back(base, base + entry.region->size_bytes());
    }
  }
  void Restore() {
    const auto entries = memory_.map()->entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      std::memcpy(entries[i].region->base(), regions_[i].data(), regions_[i].size());
    }
    log_.words_ = log_words_;
  }

 private:
  GuestMemory& memory_;
  LogMemory& log_;
  std::vector<uint64_t> log_words_;
  std::vector<std::vector<uint8_t>> regions_;
};

}  // namespace cleat::virtio
