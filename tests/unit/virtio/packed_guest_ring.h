// SPDX-License-Identifier: Apache-2.0
// A pretend guest's side of a packed ring, for tests. It does what it is told, also what is forbidden.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "guest_ring.h"

namespace cleat::virtio {

class PackedGuestRing {
 public:
  PackedGuestRing(GuestMemory& memory, uint16_t size, uint64_t descriptors = GuestLayout::kDescriptors,
                  uint64_t driver_event = GuestLayout::kAvailable, uint64_t device_event = GuestLayout::kUsed)
      : memory_(memory),
        size_(size),
        descriptors_(descriptors),
        driver_event_(driver_event),
        device_event_(device_event) {}

  RingMemory memory() const {
    return {size_,
            memory_.At(descriptors_, DescriptorBytes(size_)),
            memory_.At(driver_event_, kEventSuppressionBytes),
            memory_.At(device_event_, kEventSuppressionBytes),
            device_event_,
            descriptors_};
  }
  uint16_t size() const { return size_; }
  PackedIndex available() const { return available_; }
  PackedIndex used() const { return used_; }
  uint32_t in_use() const { return in_use_; }

  // Both, as if descriptors had gone through already.
  void StartAt(PackedIndex at) {
    available_ = used_ = at;
    for (uint16_t i = 0; i < size_; ++i) SetFlags(i, PackedUsedBits(i < at.index ? at.wrap : !at.wrap));
  }

  // ---- As it should be. Flags of `descs` are kept, NEXT and the ring's bits are set; the first one's flags last.
  void Offer(const std::vector<Desc>& descs, uint16_t id) {
    PackedIndex at = available_;
    std::vector<std::pair<uint16_t, uint16_t>> flags;
    for (size_t i = 0; i < descs.size(); ++i) {
      const uint16_t next = i + 1 < descs.size() ? kDescNext : 0;
      // The id of the last one counts (2.8.6); the others' lead astray who looks at them.
      Put(at.index, descs[i], i + 1 < descs.size() ? static_cast<uint16_t>(id + 1) : id);
      flags.emplace_back(at.index,
                         static_cast<uint16_t>(descs[i].flags | next | PackedAvailableBits(at.wrap)));
      at.Advance(1, size_);
    }
    for (auto it = flags.rbegin(); it != flags.rend(); ++it) SetFlags(it->first, it->second);
    available_ = at;
    lengths_[id] = static_cast<uint16_t>(descs.size());
    in_use_ += static_cast<uint32_t>(descs.size());
  }
  // A descriptor for Offer that refers to a table with these (2.8.7), whose ids and other flags mean nothing.
  Desc Table(uint64_t address, const std::vector<Desc>& descs) {
    for (size_t i = 0; i < descs.size(); ++i) {
      PutAt(address + kDescriptorBytes * i, descs[i], 0xbad,
            static_cast<uint16_t>(descs[i].flags | kDescNext));
    }
    return {address, static_cast<uint32_t>(kDescriptorBytes * descs.size()), kDescIndirect, 0};
  }

  // The next used chain, if there is one.
  std::optional<Used> TakeUsed() {
    const auto meta =
        LoadShared<uint64_t>(memory_.At(descriptors_ + kDescriptorBytes * used_.index + kDescriptorMetaAt, 8),
                             std::memory_order_acquire);
    const auto flags = static_cast<uint16_t>(meta >> 48);
    if ((flags & (kDescAvail | kDescUsed)) != PackedUsedBits(used_.wrap)) return std::nullopt;
    const Used used{static_cast<uint16_t>(meta >> 32), static_cast<uint32_t>(meta)};
    CLEAT_CHECK(((flags & kDescWrite) != 0) == (used.length > 0));
    const auto it = lengths_.find(static_cast<uint16_t>(used.id));
    CLEAT_CHECK(it != lengths_.end());
    used_.Advance(it->second, size_);
    in_use_ -= it->second;
    lengths_.erase(it);
    return used;
  }
  std::vector<Used> TakeAllUsed() {
    std::vector<Used> all;
    while (const auto used = TakeUsed()) all.push_back(*used);
    return all;
  }

  // ---- As it should not be
  void Put(uint16_t index, const Desc& desc, uint16_t id) {
    memory_.Put(descriptors_ + kDescriptorBytes * index, desc.address);
    memory_.Put(descriptors_ + kDescriptorBytes * index + 8, desc.length);
    memory_.Put(descriptors_ + kDescriptorBytes * index + 12, id);
  }
  void SetFlags(uint16_t index, uint16_t flags) {
    StoreShared<uint16_t>(memory_.At(descriptors_ + kDescriptorBytes * index + 14, 2), flags,
                          std::memory_order_release);
  }
  void PutAt(uint64_t address, const Desc& desc, uint16_t id, uint16_t flags) {
    memory_.Put(address, desc.address);
    memory_.Put(address + 8, desc.length);
    memory_.Put(address + 12, id);
    memory_.Put(address + 14, flags);
  }

  // ---- What the guest wants and what it is asked for: offset and wrap counter, flags << 16
  void SetDriverEvent(uint32_t word) {
    StoreShared<uint32_t>(memory_.At(driver_event_, 4), word, std::memory_order_release);
  }
  uint32_t device_event() {
    return LoadShared<uint32_t>(memory_.At(device_event_, 4), std::memory_order_acquire);
  }

 private:
  GuestMemory& memory_;
  const uint16_t size_;
  const uint64_t descriptors_;
  const uint64_t driver_event_;
  const uint64_t device_event_;
  PackedIndex available_;
  PackedIndex used_;
  uint32_t in_use_ = 0;
  std::map<uint16_t, uint16_t> lengths_;  // of each chain in use, by its buffer id
};

}  // namespace cleat::virtio
