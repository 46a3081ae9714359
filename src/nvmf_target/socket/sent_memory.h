// SPDX-License-Identifier: Apache-2.0
// Memory that a socket sends from without a copy (MSG_ZEROCOPY), until the kernel says that it does not need it any more. The kernel numbers a
// socket's sends of that kind from 0 on, modulo 2^32, leaving out those that have taken no byte. It says which are over as ranges of these
// numbers, nearly always in order.
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
  // How many sends are not over.
  uint32_t sends() const { return next_ - oldest_; }
  bool full() const { return sends() == kSendsMax; }

  // The kernel has taken `bytes` of some memory. Not while full.
  void Sent(uint32_t bytes) {
    CLEAT_CHECK(!full());
    At(next_++) = {.piece = {}, .bytes = bytes, .over = false};
    gave_up_ = false;
  }
  // Keeps `piece` until the last send is over, which was of this piece, as earlier ones may have been. False: all sends are over, and nothing is
  // kept. Not between GiveUp and the next send.
  bool Keep(const block::Segment& piece) {
    CLEAT_CHECK(!gave_up_);
    if (sends() == 0) return false;
    Send& last = At(next_ - 1);
    CLEAT_CHECK(last.piece.region == nullptr);
    last.piece = piece;
    return true;
  }
  // The sends with the numbers from `first` to `last`, both included, are over. `give` gets the pieces that the kernel does not need any more.
  // Returns how many bytes their sends had. Numbers that are not in use here are ignored: another process may have made those sends.
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
  // Ends the keeping: `give` gets all pieces, though the kernel may still be sending from them.
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
    block::Segment piece;  // kept until this send is over; without a region: none is
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
