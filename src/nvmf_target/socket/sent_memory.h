// SPDX-License-Identifier: Apache-2.0
// The memory of a socket's sends that the kernel makes from where it is (MSG_ZEROCOPY), until it says that it is through with it. The kernel
// numbers such sends of a socket from 0 on, each that has taken a byte, modulo 2^32, and tells of ranges of these numbers, nearly always in order.
//
// Pure. One thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/check.h"
#include "block/memory.h"

namespace cleat::nvmf_target {

class SentMemory {
 public:
  static constexpr uint32_t kSendsMax = 64;

  // `next`: the number of the next send.
  explicit SentMemory(uint32_t next) : oldest_(next), next_(next) {}

  uint32_t next() const { return next_; }
  // Sends that the kernel is not through with.
  uint32_t sends() const { return next_ - oldest_; }
  bool full() const { return sends() == kSendsMax; }

  // The kernel has taken `bytes` of some memory. Not while full.
  void Sent(uint32_t bytes) {
    CLEAT_CHECK(!full());
    At(next_++) = {.piece = {}, .bytes = bytes, .over = false};
    gave_up_ = false;
  }
  // The last send was of this piece, of which several may have been: it is in use until that one is over. False: it is. Not after GiveUp.
  bool Keep(const block::Segment& piece) {
    CLEAT_CHECK(!gave_up_);
    if (sends() == 0) return false;
    Send& last = At(next_ - 1);
    CLEAT_CHECK(last.piece.region == nullptr);
    last.piece = piece;
    return true;
  }
  // The kernel is through with the sends of these numbers, both included: `give` gets the pieces that are in use no more. Returns how many bytes
  // were sent. Numbers of sends that are not there are of another process, or of none.
  template <typename Give>
  uint64_t Over(uint32_t first, uint32_t last, const Give& give) {
    for (uint32_t at = 0; at < sends(); ++at) {
      if (oldest_ + at - first <= last - first) At(oldest_ + at).over = true;
    }
    uint64_t bytes = 0;
    while (sends() > 0 && At(oldest_).over) {
      const Send send = At(oldest_++);
      bytes += send.bytes;
      if (send.piece.region != nullptr) give(send.piece);
    }
    return bytes;
  }
  // Nobody waits for the kernel any more: `give` gets all pieces, which it may still be sending from.
  template <typename Give>
  void GiveUp(const Give& give) {
    gave_up_ = sends() > 0;
    while (sends() > 0) {
      const Send send = At(oldest_++);
      if (send.piece.region != nullptr) give(send.piece);
    }
  }

 private:
  struct Send {
    block::Segment piece;  // that ends with it; without a region: none does
    uint32_t bytes = 0;
    bool over = false;
  };
  Send& At(uint32_t number) { return ring_[number % kSendsMax]; }

  std::array<Send, kSendsMax> ring_;
  uint32_t oldest_;
  uint32_t next_;
  bool gave_up_ = false;
};

}  // namespace cleat::nvmf_target
