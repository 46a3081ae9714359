// SPDX-License-Identifier: Apache-2.0
// A pretend guest's side of a split ring, for tests: memory of several regions, descriptor chains laid out as
// a table says, the available ring, the used ring. It does what it is told, also what is forbidden.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "block/memory.h"
#include "virtio/device_queue.h"
#include "virtio/guest_access.h"
#include "virtio/ring_format.h"

namespace cleat::virtio {

struct Desc {
  uint64_t address = 0;
  uint32_t length = 0;
  uint16_t flags = 0;
  uint16_t next = 0;
};
struct Used {
  uint32_t id = 0;
  uint32_t length = 0;
  bool operator==(const Used&) const = default;
};

// Regions of heap memory with exact sizes, so that AddressSanitizer sees a step outside.
class GuestMemory {
 public:
  using Regions = std::vector<std::pair<uint64_t, uint64_t>>;
  // (guest-physical address, bytes) each. `at`: not on the heap, but there, one region after the other (in memory that
  // processes share).
  explicit GuestMemory(const Regions& regions, uint8_t* at = nullptr) {
    std::vector<block::MemoryMap::Entry> entries;
    for (const auto& [address, bytes] : regions) {
      if (at == nullptr) blocks_.push_back(std::make_unique<uint8_t[]>(bytes));
      entries.push_back(
          {address, block::MemoryRegion::Borrow(at == nullptr ? blocks_.back().get() : at, bytes)});
      if (at != nullptr) at += (bytes + 63) / 64 * 64;
    }
    map_ = *block::MemoryMap::Make(std::move(entries));
  }

  const std::shared_ptr<const block::MemoryMap>& map() const { return map_; }
  // A new map object of the same memory.
  std::shared_ptr<const block::MemoryMap> Remap() {
    const auto entries = map_->entries();
    map_ = *block::MemoryMap::Make({entries.begin(), entries.end()});
    return map_;
  }

  uint8_t* At(uint64_t address, uint64_t bytes = 1) {
    uint8_t* at = map_->Contiguous(address, bytes);
    CLEAT_CHECK(at != nullptr);
    return at;
  }
  void Write(uint64_t address, const void* from, uint64_t bytes) {
    const auto* in = static_cast<const uint8_t*>(from);
    // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): of a structure's bytes it knows only those with names
    for (uint64_t i = 0; i < bytes; ++i) *At(address + i) = in[i];
  }
  void Read(uint64_t address, void* to, uint64_t bytes) {
    auto* out = static_cast<uint8_t*>(to);
    for (uint64_t i = 0; i < bytes; ++i) out[i] = *At(address + i);
  }
  template <typename T>
  void Put(uint64_t address, const T& value) {
    Write(address, &value, sizeof(value));
  }
  template <typename T>
  T Get(uint64_t address) {
    T value;
    Read(address, &value, sizeof(value));
    return value;
  }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  std::shared_ptr<const block::MemoryMap> map_;
};

class GuestRing {
 public:
  // The three parts, at guest addresses that the memory has.
  GuestRing(GuestMemory& memory, uint16_t size, uint64_t descriptors, uint64_t available, uint64_t used)
      : memory_(memory), size_(size), descriptors_(descriptors), available_(available), used_(used) {}

  RingMemory memory() const {
    return {size_, memory_.At(descriptors_, DescriptorBytes(size_)),
            memory_.At(available_, AvailableBytes(size_)), memory_.At(used_, UsedBytes(size_)), used_};
  }
  uint16_t size() const { return size_; }

  // Both indices, as if that many chains had gone through already.
  void StartAt(uint16_t index) {
    available_index_ = used_seen_ = index;
    StoreShared<uint16_t>(memory_.At(available_ + kRingIndexAt, 2), index, std::memory_order_release);
    StoreShared<uint16_t>(memory_.At(used_ + kRingIndexAt, 2), index, std::memory_order_release);
  }

  void SetDescriptor(uint16_t index, const Desc& desc) {
    memory_.Put(descriptors_ + kDescriptorBytes * index, desc);
  }
  void SetIndirect(uint64_t table, uint16_t index, const Desc& desc) {
    memory_.Put(table + kDescriptorBytes * index, desc);
  }
  // Direct descriptors from `first` on, linked one after the other; flags of `descs` are kept, next is set.
  void SetChain(uint16_t first, std::vector<Desc> descs) {
    for (size_t i = 0; i < descs.size(); ++i) {
      if (i + 1 < descs.size()) descs[i].flags |= kDescNext;
      descs[i].next = static_cast<uint16_t>(first + i + 1);
      SetDescriptor(static_cast<uint16_t>(first + i), descs[i]);
    }
  }
  // An indirect table at `table`, referred to by descriptor `index`.
  void SetIndirectChain(uint16_t index, uint64_t table, std::vector<Desc> descs) {
    for (size_t i = 0; i < descs.size(); ++i) {
      if (i + 1 < descs.size()) descs[i].flags |= kDescNext;
      descs[i].next = static_cast<uint16_t>(i + 1);
      SetIndirect(table, static_cast<uint16_t>(i), descs[i]);
    }
    SetDescriptor(index, {table, static_cast<uint32_t>(kDescriptorBytes * descs.size()), kDescIndirect, 0});
  }

  void PutAvailable(uint16_t head) {
    StoreShared<uint16_t>(
        memory_.At(available_ + kRingElementsAt + kAvailableElementBytes * (available_index_ & (size_ - 1)),
                   2),
        head, std::memory_order_relaxed);
    ++available_index_;
  }
  void Expose() { SetAvailableIndex(available_index_); }
  void Offer(uint16_t head) {
    PutAvailable(head);
    Expose();
  }
  void SetAvailableIndex(uint16_t index) {
    StoreShared<uint16_t>(memory_.At(available_ + kRingIndexAt, 2), index, std::memory_order_release);
  }
  uint16_t available_index() const { return available_index_; }

  // What the guest wants and what it is asked for.
  void SetAvailableFlags(uint16_t flags) { memory_.Put(available_, flags); }
  void SetUsedEvent(uint16_t event) { memory_.Put(available_ + kRingElementsAt + 2ULL * size_, event); }
  uint16_t used_flags() { return memory_.Get<uint16_t>(used_); }
  uint16_t avail_event() { return memory_.Get<uint16_t>(used_ + kRingElementsAt + 8ULL * size_); }
  uint16_t used_index() {
    return LoadShared<uint16_t>(memory_.At(used_ + kRingIndexAt, 2), std::memory_order_acquire);
  }

  // The next used chain, if there is one.
  std::optional<Used> TakeUsed() {
    if (used_index() == used_seen_) return std::nullopt;
    const auto used =
        memory_.Get<Used>(used_ + kRingElementsAt + kUsedElementBytes * (used_seen_ & (size_ - 1)));
    ++used_seen_;
    return used;
  }
  std::vector<Used> TakeAllUsed() {
    std::vector<Used> all;
    while (const auto used = TakeUsed()) all.push_back(*used);
    return all;
  }

 private:
  GuestMemory& memory_;
  const uint16_t size_;
  const uint64_t descriptors_;
  const uint64_t available_;
  const uint64_t used_;
  uint16_t available_index_ = 0;
  uint16_t used_seen_ = 0;
};

// A layout that most tests share: the ring's parts in regions of their own, exactly as large as they have to
// be, and two neighbouring regions for buffers, with a hole behind them.
struct GuestLayout {
  static constexpr uint64_t kDescriptors = 0x10000;
  static constexpr uint64_t kAvailable = 0x20000;
  static constexpr uint64_t kUsed = 0x30000;
  static constexpr uint64_t kLow = 0x100000;  // buffers
  static constexpr uint64_t kLowBytes = 0x80000;
  static constexpr uint64_t kHigh = kLow + kLowBytes;  // the region next to it
  static constexpr uint64_t kHighBytes = 0x80000;
  static constexpr uint64_t kEnd = kHigh + kHighBytes;  // nothing from here on

  static std::vector<std::pair<uint64_t, uint64_t>> Regions(uint16_t size) {
    return {{kLow, kLowBytes},
            {kHigh, kHighBytes},
            {kDescriptors, DescriptorBytes(size)},
            {kAvailable, AvailableBytes(size)},
            {kUsed, UsedBytes(size)}};
  }
  static GuestRing Ring(GuestMemory& memory, uint16_t size) {
    return {memory, size, kDescriptors, kAvailable, kUsed};
  }
};

}  // namespace cleat::virtio
