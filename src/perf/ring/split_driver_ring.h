// SPDX-License-Identifier: Apache-2.0
// The driver's side of a split virtqueue (virtio 1.2, 2.7). Made by DriverRing::Create; see there.
#pragma once

#include <atomic>
#include <cstring>

#include "perf/ring/driver_ring.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {

class SplitDriverRing final : public DriverRing {
 public:
  SplitDriverRing(GuestMemory& memory, const RingOptions& options) : DriverRing(memory, options) {}

  std::optional<uint16_t> Add(std::span<const Segment> chain, bool indirect, uint64_t token) override;
  bool Publish() override;
  PopResult Pop(UsedEntry* used) override;
  bool EnableCalls() override;
  void DisableCalls() override;
  std::optional<uint16_t> Reserve(uint16_t segments, bool indirect) override;
  void Prepare(uint16_t id, std::span<const Segment> chain) override;
  void Unreserve(uint16_t id) override;
  uint32_t first_base() const override { return 0; }
  uint32_t base_after_crash() const override { return device_used_idx(); }

  bool HasUsed() const override { return device_used_idx() != used_seen_; }

  uint16_t avail_idx() const override { return avail_shadow_; }
  uint16_t device_used_idx() const override;
  std::optional<std::vector<uint16_t>> TakeRaw(uint16_t count) override;
  wire::Descriptor& RawDescriptor(uint16_t index) override;
  void PushRaw(uint16_t head, uint16_t descriptors, uint64_t token) override;
  void PublishRawIndex(uint16_t avail_idx) override;

  // ---- See DriverRing::Posted.
  void Post(uint16_t id) {
    heads_[id].descriptors = 1;
    avail_[2 + (avail_shadow_ & (options_.size - 1))] = id;
    ++avail_shadow_;
    ++in_flight_;
    ++unpublished_;
    ++stats_.chains;
  }
  PopResult PopPosted(Posted* posted) {
    if (used_seen_ == used_cached_) {
      if (!FetchUsedIndex()) return broken() ? PopResult::kBroken : PopResult::kNone;
    }
    // Read once: the device may go on writing.
    auto* at =
        reinterpret_cast<wire::UsedElement*>(used_ + kUsedHeaderBytes) + (used_seen_ & (options_.size - 1));
    const wire::UsedElement element{std::atomic_ref<uint32_t>(at->id).load(std::memory_order_relaxed),
                                    std::atomic_ref<uint32_t>(at->len).load(std::memory_order_relaxed)};
    if (element.id >= options_.size || heads_[element.id].descriptors == 0 ||
        element.len > heads_[element.id].writable_bytes) [[unlikely]] {
      return BreakUsed(element.id, element.len);
    }
    heads_[element.id].descriptors = 0;
    --in_flight_;
    ++used_seen_;
    *posted = {static_cast<uint16_t>(element.id), element.len};
    return PopResult::kDone;
  }

 private:
  static constexpr size_t kUsedHeaderBytes = 4;
  Status Initialize() override;
  bool FetchUsedIndex() {  // false: nothing new, or broken
    const uint16_t index = std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(used_ + sizeof(uint16_t)))
                               .load(std::memory_order_acquire);
    if (index == used_seen_ || broken()) return false;
    if (static_cast<uint16_t>(index - used_seen_) > in_flight_) [[unlikely]] {
      BreakUsedIndex(index);
      return false;
    }
    used_cached_ = index;
    return true;
  }
  [[gnu::cold]] void BreakUsedIndex(uint16_t index);
  uint16_t TakeDescriptor();
  void Release(uint16_t head);
  void WriteChain(std::span<const Segment> chain, uint16_t head);
  void WriteIndirect(std::span<const Segment> chain, uint16_t head);

  wire::Descriptor* desc_ = nullptr;
  uint16_t* avail_ = nullptr;  // flags, idx, ring[size], used_event
  uint8_t* used_ = nullptr;    // u16 flags, u16 idx, UsedElement[size], u16 avail_event

  // Ours, never read back from memory that the device can write.
  std::vector<uint16_t> next_;  // of the free list, and of each chain in flight
  uint16_t free_head_ = 0;
  uint16_t avail_shadow_ = 0;
  uint16_t avail_published_ = 0;
  uint16_t used_seen_ = 0;    // entries taken
  uint16_t used_cached_ = 0;  // the device's index when last read
};

}  // namespace cleat::perf
