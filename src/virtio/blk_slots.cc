// SPDX-License-Identifier: Apache-2.0
#include "virtio/blk_slots.h"

#include "base/check.h"

namespace cleat::virtio {

void BlkSlots::Grow() {
  chunks_.push_back(std::make_unique<std::array<BlkSlot, kChunk>>());
  for (BlkSlot& slot : *chunks_.back()) {
    slot.next_free_ = free_;
    free_ = &slot;
  }
}

void BlkSlots::Trim() {
  CLEAT_CHECK(in_use_ == 0);
  if (chunks_.empty()) return;
  chunks_.resize(1);
  free_ = nullptr;
  for (BlkSlot& slot : *chunks_.front()) {
    slot.large_segments_.reset();
    slot.next_free_ = free_;
    free_ = &slot;
  }
}

}  // namespace cleat::virtio
