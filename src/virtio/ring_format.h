// SPDX-License-Identifier: Apache-2.0
// Numbers of the split ring's layout (virtio 1.2, 2.7) and of the features that concern it (6). Of our own
// since the kernel's header for them is not C++.
#pragma once

#include <cstdint>

namespace cleat::virtio {

// struct virtq_desc: le64 addr; le32 len; le16 flags; le16 next.
inline constexpr uint64_t kDescriptorBytes = 16;
inline constexpr uint16_t kDescNext = 1;
inline constexpr uint16_t kDescWrite = 2;
inline constexpr uint16_t kDescIndirect = 4;

// Both the available and the used ring: le16 flags; le16 idx; elements; le16 event of the other side.
inline constexpr uint64_t kRingFlagsAt = 0;
inline constexpr uint64_t kRingIndexAt = 2;
inline constexpr uint64_t kRingElementsAt = 4;
inline constexpr uint64_t kAvailableElementBytes = 2;  // le16 head
inline constexpr uint64_t kUsedElementBytes = 8;       // le32 id; le32 len
inline constexpr uint16_t kAvailableNoInterrupt = 1;
inline constexpr uint16_t kUsedNoNotify = 1;

// Feature bits.
inline constexpr uint32_t kFeatureIndirectDesc = 28;
inline constexpr uint32_t kFeatureEventIdx = 29;
inline constexpr uint32_t kFeatureVersion1 = 32;

// 2.7.10: whether going from `old_index` to `new_index` passes the one that the other side asked to hear of.
constexpr bool PassesEvent(uint16_t event, uint16_t new_index, uint16_t old_index) {
  return static_cast<uint16_t>(new_index - event - 1) < static_cast<uint16_t>(new_index - old_index);
}

}  // namespace cleat::virtio
