// SPDX-License-Identifier: Apache-2.0
// Works on their way to a send queue, which takes them by one doorbell: a place for them, their pieces and the completion entries that the adapter copies.
// A reactor's queues have one in turn. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/rdma_target/transfer.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_target {

class SendChain {
 public:
  static constexpr uint32_t kWorksMax = 64;

  void Clear() { count_ = 0; }
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == kWorksMax; }
  std::span<const verbs::SendWork> works() const { return {works_.data(), count_}; }

  // Room for the pieces of the work that is added next.
  std::span<verbs::LocalPiece> pieces(uint32_t pieces_max) {
    return std::span(pieces_[count_]).first(pieces_max);
  }
  // The same for its completion entry.
  fabrics::CompletionEntry& entry() { return entries_[count_]; }

  // Not full. `pieces` of the room above are the work's.
  verbs::SendWork& Add(uint32_t pieces) {
    CLEAT_CHECK(!full());
    verbs::SendWork& work = works_[count_];
    work = {};
    work.pieces = std::span(pieces_[count_]).first(pieces);
    ++count_;
    return work;
  }
  verbs::SendWork& last() { return works_[count_ - 1]; }

 private:
  std::array<verbs::SendWork, kWorksMax> works_;
  std::array<std::array<verbs::LocalPiece, kWorkPiecesMax>, kWorksMax> pieces_;
  std::array<fabrics::CompletionEntry, kWorksMax> entries_;
  uint32_t count_ = 0;
};

}  // namespace cleat::nvme::rdma_target
