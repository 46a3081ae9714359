// SPDX-License-Identifier: Apache-2.0
// Numbers of the rings' layouts (virtio 1.2, 2.7 split, 2.8 packed) and of the features that concern them (6). Of our
// own since the kernel's header for them is not C++.
#pragma once

#include <cstdint>

namespace cleat::virtio {

// ---- Both formats. struct virtq_desc: le64 addr; le32 len; le16 flags; le16 next.
inline constexpr uint64_t kDescriptorBytes = 16;
inline constexpr uint64_t kDescriptorMetaAt = 8;  // all but the address, one aligned word
inline constexpr uint16_t kDescNext = 1;
inline constexpr uint16_t kDescWrite = 2;
inline constexpr uint16_t kDescIndirect = 4;

// ---- Split. Both the available and the used ring: le16 flags; le16 idx; elements; le16 event of the other side.
inline constexpr uint64_t kRingFlagsAt = 0;
inline constexpr uint64_t kRingIndexAt = 2;
inline constexpr uint64_t kRingElementsAt = 4;
inline constexpr uint64_t kAvailableElementBytes = 2;  // le16 head
inline constexpr uint64_t kUsedElementBytes = 8;       // le32 id; le32 len
inline constexpr uint16_t kAvailableNoInterrupt = 1;
inline constexpr uint16_t kUsedNoNotify = 1;

// ---- Packed. struct pvirtq_desc (2.8.13): le64 addr; le32 len; le16 id; le16 flags, the second half of it one aligned
// word.
inline constexpr uint16_t kDescAvail = 1 << 7;
inline constexpr uint16_t kDescUsed = 1 << 15;
// 2.8.1: what both bits are in a descriptor that was made available, or used, under a wrap counter.
constexpr uint16_t PackedAvailableBits(bool wrap) {
  return wrap ? kDescAvail : kDescUsed;
}
constexpr uint16_t PackedUsedBits(bool wrap) {
  return wrap ? kDescAvail | kDescUsed : 0;
}
// struct pvirtq_event_suppress (2.8.14), one aligned word: le16 offset (15 bits) and wrap counter; le16 flags.
inline constexpr uint64_t kEventSuppressionBytes = 4;
inline constexpr uint64_t kEventSuppressionAlignment = 4;
inline constexpr uint16_t kEventEnable = 0;
inline constexpr uint16_t kEventDisable = 1;
inline constexpr uint16_t kEventDesc = 2;  // at the descriptor that the first half names; with EVENT_IDX only
inline constexpr uint16_t kEventFlagsMask = 3;

// ---- Feature bits.
inline constexpr uint32_t kFeatureIndirectDesc = 28;
inline constexpr uint32_t kFeatureEventIdx = 29;
inline constexpr uint32_t kFeatureVersion1 = 32;
inline constexpr uint32_t kFeatureRingPacked = 34;

// What the rings here can do: every device model offers it.
inline constexpr uint64_t kRingFeatures = uint64_t{1} << kFeatureIndirectDesc |
                                          uint64_t{1} << kFeatureEventIdx | uint64_t{1} << kFeatureVersion1 |
                                          uint64_t{1} << kFeatureRingPacked;

constexpr bool IsPacked(uint64_t features) {
  return (features >> kFeatureRingPacked & 1) != 0;
}

// 2.7.10 (and 2.8.10): whether going from `old_index` to `new_index` passes the one that the other side asked to hear of.
constexpr bool PassesEvent(uint16_t event, uint16_t new_index, uint16_t old_index) {
  return static_cast<uint16_t>(new_index - event - 1) < static_cast<uint16_t>(new_index - old_index);
}

// Where a ring stands: the index of the next descriptor and the wrap counter under which it is looked at (2.8.1).
struct PackedIndex {
  uint16_t index = 0;
  bool wrap = true;
  bool operator==(const PackedIndex&) const = default;

  // Over `count` descriptors, at most `size` of them.
  void Advance(uint16_t count, uint16_t size) {
    index = static_cast<uint16_t>(index + count);
    if (index < size) return;
    index = static_cast<uint16_t>(index - size);
    wrap = !wrap;
  }
  constexpr uint16_t word() const { return static_cast<uint16_t>(index | (wrap ? 1U << 15 : 0)); }
  static constexpr PackedIndex FromWord(uint16_t word) {
    return {static_cast<uint16_t>(word & 0x7fff), (word >> 15) != 0};
  }
};

// A packed ring's position as it is told (vhost-user specification, "Ring states"): bits 0-14 the next available
// descriptor, 15 its wrap counter, 16-30 the next used one, 31 its wrap counter.
struct PackedPosition {
  PackedIndex available;
  PackedIndex used;
  bool operator==(const PackedPosition&) const = default;

  constexpr uint32_t word() const { return available.word() | uint32_t{used.word()} << 16; }
  // A front end that leaves out the used half says that nothing is in flight, as it is in a ring that was stopped.
  static constexpr PackedPosition FromWord(uint32_t word) {
    const auto available = PackedIndex::FromWord(static_cast<uint16_t>(word));
    return {available,
            word >> 16 == 0 ? available : PackedIndex::FromWord(static_cast<uint16_t>(word >> 16))};
  }
  // Descriptors that were taken and not given back; more than `size` when it is no position of such a ring.
  constexpr uint32_t InUse(uint16_t size) const {
    if (available.index >= size || used.index >= size) return UINT32_MAX;
    const int32_t ahead = available.index - used.index + (available.wrap == used.wrap ? 0 : size);
    return static_cast<uint32_t>(ahead);  // below 0: huge
  }
};
inline constexpr uint32_t kPackedStart = PackedPosition{}.word();

}  // namespace cleat::virtio
