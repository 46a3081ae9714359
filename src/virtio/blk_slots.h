// SPDX-License-Identifier: Apache-2.0
// Where a virtio-blk queue keeps its requests in flight. Slots are made in chunks when they are first needed
// and used again, last in first out, so that a busy queue stays in few cache lines, allocates nothing for a
// request, and an idle one keeps a few KiB. How many there are is bounded by the ring: a queue has no more
// requests than entries.
//
// Belongs to one queue, on its reactor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "block/request.h"
#include "virtio/chain.h"
#include "virtio/ring_queue.h"

namespace cleat::virtio {

// One virtio-blk request. It is the block request, so that a completion finds its way back.
struct BlkSlot : block::Request {
  MemoryEpoch* epoch = nullptr;  // of the chain, with `head` what the ring wants back
  uint16_t head = 0;
  uint32_t written_bytes = 0;  // the used length
  block::Segment status_byte;
  std::span<const block::Segment> data;  // the request's data part, of the inline or the large array

  // Discard and write zeroes: `data` holds this many ranges, which are submitted one after the other.
  enum class RangeState : uint8_t { kSubmitting, kSubmitted, kCompleted };
  uint16_t range_count = 0;
  uint16_t range_next = 0;
  RangeState range_state = RangeState::kSubmitted;

  // Takes the part [skip, skip + bytes) of a chain's segments for `data`.
  void SetData(std::span<const block::Segment> from, uint64_t skip, uint64_t bytes) {
    block::Segment* room = inline_segments_.data();
    if (from.size() > inline_segments_.size()) {
      if (large_segments_ == nullptr) large_segments_ = std::make_unique<LargeArray>();
      room = large_segments_->data();
    }
    data = {room, Cut(from, skip, bytes, room)};
  }

 private:
  friend class BlkSlots;
  using LargeArray = std::array<block::Segment, kChainSegmentsMax>;
  std::array<block::Segment, 4> inline_segments_;
  std::unique_ptr<LargeArray> large_segments_;  // made when it is needed; stays until Trim
  BlkSlot* next_free_ = nullptr;
};

class BlkSlots {
 public:
  static constexpr uint32_t kChunk = 8;

  BlkSlots() = default;
  ~BlkSlots() { CLEAT_CHECK(in_use_ == 0); }
  BlkSlots(const BlkSlots&) = delete;
  BlkSlots& operator=(const BlkSlots&) = delete;

  BlkSlot& Take() {
    if (free_ == nullptr) [[unlikely]]
      Grow();
    BlkSlot* slot = free_;
    free_ = slot->next_free_;
    ++in_use_;
    return *slot;
  }
  void Give(BlkSlot& slot) {
    slot.next_free_ = free_;
    free_ = &slot;
    --in_use_;
  }
  // Gives back all memory but a chunk. Nothing is in use.
  void Trim();
  size_t allocated() const { return chunks_.size() * kChunk; }

 private:
  void Grow();
  std::vector<std::unique_ptr<std::array<BlkSlot, kChunk>>> chunks_;
  BlkSlot* free_ = nullptr;
  uint32_t in_use_ = 0;
};

}  // namespace cleat::virtio
