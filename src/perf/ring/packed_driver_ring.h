// SPDX-License-Identifier: Apache-2.0
// The driver's side of a packed virtqueue (virtio 1.2, 2.8). Made by DriverRing::Create; see there. Buffer ids are
// used again in the order in which they come back, the last one first, so that they soon have nothing to do with where
// a chain lies.
#pragma once

#include <atomic>

#include "perf/ring/driver_ring.h"
#include "perf/wire/virtqueue.h"

namespace cleat::perf {

class PackedDriverRing final : public DriverRing {
 public:
  PackedDriverRing(GuestMemory& memory, const RingOptions& options) : DriverRing(memory, options) {}

  std::optional<uint16_t> Add(std::span<const Segment> chain, bool indirect, uint64_t token) override;
  bool Publish() override;
  PopResult Pop(UsedEntry* used) override;
  bool EnableCalls() override;
  void DisableCalls() override;
  std::optional<uint16_t> Reserve(uint16_t segments, bool indirect) override;
  void Prepare(uint16_t id, std::span<const Segment> chain) override;
  void Unreserve(uint16_t id) override;
  uint32_t first_base() const override { return uint32_t{kWrapBit} << 16 | kWrapBit; }
  // Behind what the device has used, which is more than QEMU knows (see VirtioDriver::Reconnect). What was in flight is
  // only known to the in-flight log, which a back end has to believe.
  uint32_t base_after_crash() const override;
  bool HasUsed() const override { return in_flight_ > 0 && UsedIsThere(used_); }
  PackedDriverRing* AsPacked() override { return this; }

  // For misbehaviour. As Add, with descriptors as they are but for their flags' AVAIL and USED, in which what is set is
  // wrong (0: right), and their ids. The used descriptor that comes with `id` is accepted with any length.
  void AddRaw(std::span<const wire::PackedDescriptor> chain, uint16_t id, uint64_t token);

  // ---- See DriverRing::Posted.
  void Post(uint16_t id) {
    const Reserved& reserved = reserved_[id];
    const wire::PackedDescriptor* descriptor = &prepared_[size_t{id} * prepared_stride_];
    bool first = unpublished_descriptors_ == 0;
    for (uint16_t i = 0; i < reserved.used_descriptors; ++i, first = false) Put(descriptor[i], first);
    heads_[id].descriptors = reserved.used_descriptors;
    ++in_flight_;
    ++unpublished_;
    ++stats_.chains;
  }
  PopResult PopPosted(Posted* posted) {
    wire::PackedDescriptor& descriptor = desc_[used_.index];
    const uint16_t flags = std::atomic_ref<uint16_t>(descriptor.flags).load(std::memory_order_acquire);
    constexpr uint16_t kBoth = wire::kDescAvail | wire::kDescUsed;
    if (in_flight_ == 0 || (flags & kBoth) != (used_.wrap ? kBoth : 0)) return PopResult::kNone;
    // Read once: the device may go on writing.
    const uint16_t id = std::atomic_ref<uint16_t>(descriptor.id).load(std::memory_order_relaxed);
    const uint32_t len = std::atomic_ref<uint32_t>(descriptor.len).load(std::memory_order_relaxed);
    const uint32_t written_bytes = (flags & wire::kDescWrite) != 0 ? len : 0;
    if (broken() || id >= options_.size || heads_[id].descriptors == 0 ||
        written_bytes > heads_[id].writable_bytes) [[unlikely]] {
      return BreakUsed(id, written_bytes);
    }
    used_.Advance(heads_[id].descriptors, options_.size);
    heads_[id].descriptors = 0;
    --in_flight_;
    *posted = {id, written_bytes};
    return PopResult::kDone;
  }

 private:
  static constexpr uint16_t kWrapBit = 0x8000;
  // An index with the wrap counter under which it is looked at.
  struct Index {
    uint16_t index = 0;
    bool wrap = true;
    uint16_t word() const { return static_cast<uint16_t>(index | (wrap ? kWrapBit : 0)); }
    void Advance(uint16_t count, uint16_t size) {
      const uint32_t next = uint32_t{index} + count;
      if (next >= size) wrap = !wrap;
      index = static_cast<uint16_t>(next >= size ? next - size : next);
    }
  };

  Status Initialize() override;
  static uint16_t IdOf(uint64_t meta) { return static_cast<uint16_t>(meta >> 32); }
  bool UsedIsThere(const Index& at) const;
  uint32_t WriteTable(std::span<const Segment> chain, uint16_t id);
  uint16_t AvailableBits() const { return avail_.wrap ? wire::kDescAvail : wire::kDescUsed; }
  // The next descriptor of the ring; `descriptor.flags` has the wrong ones of AVAIL and USED set.
  void Put(wire::PackedDescriptor descriptor, bool first) {
    descriptor.flags = static_cast<uint16_t>(descriptor.flags ^ AvailableBits());
    wire::PackedDescriptor& slot = desc_[avail_.index];
    if (first) {
      first_index_ = avail_.index;
      first_flags_ = descriptor.flags;
      slot.gpa = descriptor.gpa;
      slot.len = descriptor.len;
      slot.id = descriptor.id;
    } else {
      slot = descriptor;
    }
    avail_.Advance(1, options_.size);
    ++unpublished_descriptors_;
  }

  wire::PackedDescriptor* desc_ = nullptr;
  uint32_t* driver_event_ = nullptr;
  uint32_t* device_event_ = nullptr;

  // Ours, never read back from memory that the device can write.
  std::vector<uint16_t> free_ids_;
  Index avail_;
  Index used_;
  uint16_t unpublished_descriptors_ = 0;
  uint16_t first_index_ = 0;  // of what is not published: its flags are held back
  uint16_t first_flags_ = 0;

  // Chains as Post puts them into the ring: `prepared_stride_` descriptors for each id, from the first Reserve on.
  std::vector<wire::PackedDescriptor> prepared_;
  uint16_t prepared_stride_ = 0;
};

}  // namespace cleat::perf
