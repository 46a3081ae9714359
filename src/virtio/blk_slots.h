// SPDX-License-Identifier: Apache-2.0
// One virtio-blk request in flight, as its queue keeps it (slot_pool.h). It is the block request, so that a
// completion finds its way back.
#pragma once

#include <cstdint>
#include <span>

#include "block/request.h"
#include "observe/layout.h"
#include "virtio/ring_queue.h"
#include "virtio/slot_pool.h"

namespace cleat::virtio {

struct BlkSlot : block::Request, PooledSlot {
  MemoryEpoch* epoch = nullptr;  // of the chain, with `head` what the ring wants back
  uint16_t head = 0;
  uint32_t written_bytes = 0;  // the used length
  observe::OpColumn column = observe::OpColumn::kOther;
  uint64_t counted_bytes = 0;
  block::Segment status_byte;
  std::span<const block::Segment> data;  // the request's data part

  // Discard and write zeroes: `data` holds this many ranges, which are submitted one after the other.
  enum class RangeState : uint8_t { kSubmitting, kSubmitted, kCompleted };
  uint16_t range_count = 0;
  uint16_t range_next = 0;
  RangeState range_state = RangeState::kSubmitted;

  // Takes the part [skip, skip + bytes) of a chain's segments for `data`.
  void SetData(std::span<const block::Segment> from, uint64_t skip, uint64_t bytes) {
    block::Segment* to = room.Take(from.size());
    data = {to, Cut(from, skip, bytes, to)};
  }
};

using BlkSlots = SlotPool<BlkSlot>;

}  // namespace cleat::virtio
