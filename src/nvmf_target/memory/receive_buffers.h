// SPDX-License-Identifier: Apache-2.0
// What a reactor's connections receive to, one after the other. A command's data may stay where it was received, in place of a copy, until the
// storage is through with it: the buffer that holds it is kept then, and what comes next goes to another one. There are kMost of these at the
// most, one of which nothing is ever kept in, so that a slow disk's commands never keep others from receiving.
//
// One thread: its reactor's. Allocates when a buffer is used for the first time, or again after Trim.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "block/memory.h"

namespace cleat::nvmf_target {

class ReceiveBuffers {
 public:
  static constexpr uint32_t kBytes = 256 * 1024;
  static constexpr uint32_t kMost = 8;

  ReceiveBuffers();
  ~ReceiveBuffers();  // nothing is kept
  ReceiveBuffers(const ReceiveBuffers&) = delete;
  ReceiveBuffers& operator=(const ReceiveBuffers&) = delete;

  // One in which nothing is kept, to receive to. The same until something is kept in it, and the next call.
  std::span<uint8_t> Current();
  // Keeps `bytes`, of what was received to the current one. False: it has to be copied.
  bool Keep(std::span<const uint8_t> bytes, block::Segment& piece);
  // As Keep gave it.
  void LetGo(const block::Segment& piece);
  // Pieces that are kept at present.
  uint32_t kept() const { return kept_; }
  // Gives back buffers in which nothing is kept, but for the current one.
  void Trim();

 private:
  struct Buffer {
    std::unique_ptr<uint8_t[]> bytes;  // nullptr: never used, or given back
    std::shared_ptr<block::MemoryRegion> region;
    uint32_t kept = 0;
  };
  Buffer& current() { return buffers_[current_]; }
  void Make(uint32_t number);

  std::array<Buffer, kMost> buffers_;
  uint32_t current_ = 0;
  uint32_t kept_ = 0;
  uint32_t kept_buffers_ = 0;
};

}  // namespace cleat::nvmf_target
