// SPDX-License-Identifier: Apache-2.0
// Where a queue keeps its requests in flight. Slots are made in chunks when they are first needed and used again,
// last in first out, so that a busy queue stays in few cache lines, allocates nothing for a request, and an idle one
// keeps a few KiB. How many there are is bounded by the ring: a queue has no more requests than entries.
//
// Belongs to one queue, on its reactor.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "virtio/chain.h"

namespace cleat::virtio {

// The segments that a request keeps of its chain, which is gone when it has been handled: a few inline, as most
// requests have, else in an array that is made when it is needed and stays until Trim.
class SegmentRoom {
 public:
  // Room for `count` segments, which the caller fills in; what the room held before is gone.
  block::Segment* Take(size_t count) {
    if (count <= inline_.size()) [[likely]]
      return inline_.data();
    CLEAT_CHECK(count <= kLarge);
    if (large_ == nullptr) large_ = std::make_unique<std::array<block::Segment, kLarge>>();
    return large_->data();
  }
  void Trim() { large_.reset(); }

 private:
  // One more than a chain's: one that is cut in two, at the end of a header.
  static constexpr size_t kLarge = kChainSegmentsMax + 1;
  std::array<block::Segment, 6> inline_;
  std::unique_ptr<std::array<block::Segment, kLarge>> large_;
};

// What a slot needs for the pool.
struct PooledSlot {
  SegmentRoom room;

 private:
  template <typename Slot>
  friend class SlotPool;
  PooledSlot* next_free_ = nullptr;  // itself while it is in use
};

template <typename Slot>  // a PooledSlot
class SlotPool {
 public:
  static constexpr uint32_t kChunk = 8;

  SlotPool() = default;
  ~SlotPool() { CLEAT_CHECK(in_use_ == 0); }
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  Slot& Take() {
    if (free_ == nullptr) [[unlikely]]
      Grow();
    Slot* slot = free_;
    free_ = static_cast<Slot*>(Next(*slot));
    Next(*slot) = slot;
    ++in_use_;
    return *slot;
  }
  void Give(Slot& slot) {
    Next(slot) = free_;
    free_ = &slot;
    --in_use_;
  }
  // Gives back all memory but a chunk. Nothing is in use.
  void Trim() {
    CLEAT_CHECK(in_use_ == 0);
    if (chunks_.empty()) return;
    chunks_.resize(1);
    free_ = nullptr;
    for (Slot& slot : *chunks_.front()) {
      slot.room.Trim();
      Next(slot) = free_;
      free_ = &slot;
    }
  }
  template <typename Visit>
  void ForEachInUse(Visit visit) {
    for (const auto& chunk : chunks_) {
      for (Slot& slot : *chunk) {
        if (Next(slot) == &slot) visit(slot);
      }
    }
  }
  size_t allocated() const { return chunks_.size() * kChunk; }

 private:
  static PooledSlot*& Next(Slot& slot) { return static_cast<PooledSlot&>(slot).next_free_; }
  void Grow() {
    chunks_.push_back(std::make_unique<std::array<Slot, kChunk>>());
    for (Slot& slot : *chunks_.back()) {
      Next(slot) = free_;
      free_ = &slot;
    }
  }
  std::vector<std::unique_ptr<std::array<Slot, kChunk>>> chunks_;
  Slot* free_ = nullptr;
  uint32_t in_use_ = 0;
};

}  // namespace cleat::virtio
