// SPDX-License-Identifier: Apache-2.0
// Registered memory for the data of commands, as the queues of a reactor share it: so that large commands leave some to small ones, and small ones to large;
// and so that nothing of one queue's data is left in a piece that another queue reads to.
//
// A controller may answer a read with success, and not write its data, or not all of it: over RDMA its host can't know. What was in the memory before is
// what the reader gets then. So each page is known by the queue whose data it has, and is cleared when another one's command takes it. The data of the same
// queue stays, which its controller has seen: in a queue that is alone nothing is ever cleared.
//
// One thread: the adapter's. Allocates in the constructor only.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "block/memory.h"
#include "nvme/fabrics/memory/data_buffers.h"

namespace cleat::nvme::rdma_host {

class DataShares {
 public:
  // Data that makes a command large. Blocks of databases and file systems are smaller; pieces of up to that size fill a slab in 64 at least, so that few
  // slabs have all small commands of a reactor.
  static constexpr uint32_t kSmallBytesMax = 16 * 1024;
  // The part of the slabs that each of the two kinds leaves to the other one, whatever waits: with less, one large command after another would have what
  // small ones need, or a queue that gets no answers all there is. More would halve what one kind that is alone may have.
  static constexpr uint32_t kLeftParts = 4;

  // `data` outlives it, is used by it alone, and has two slabs at least: one for each kind.
  explicit DataShares(fabrics::DataBuffers& data);

  // False: there is none now, or what there is is the other kind's.
  bool Take(uint32_t bytes, block::Segment& piece);
  void Give(const block::Segment& piece);
  // The first `kept_bytes` of the piece are data of the queue `owner`, and what is behind them is its own or nothing from now on. owner: not 0.
  void Clear(const block::Segment& piece, uint32_t kept_bytes, uint32_t owner);

  // Memory that a piece of so many bytes has, and what each kind could still have.
  static uint64_t PieceBytes(uint32_t bytes) { return std::bit_ceil(std::max(bytes, kPageBytes)); }
  uint64_t BytesFree(uint32_t kind) const {
    return uint64_t{slabs_max_} * fabrics::DataBuffers::kSlabBytes - bytes_[kind];
  }
  const fabrics::DataBuffers& data() const { return data_; }

 private:
  static constexpr uint32_t kPageBytes = fabrics::DataBuffers::kPieceMinBytes;
  static uint32_t KindOf(uint32_t bytes) { return bytes > kSmallBytesMax ? 1 : 0; }

  fabrics::DataBuffers& data_;
  const uint32_t slabs_max_;      // of each kind
  uint32_t slabs_[2] = {};        // that it has
  uint64_t bytes_[2] = {};        // of the pieces that are taken
  std::vector<uint32_t> owners_;  // of each page; 0: never used
};

}  // namespace cleat::nvme::rdma_host
