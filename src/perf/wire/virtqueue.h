// SPDX-License-Identifier: Apache-2.0
// A virtqueue as it lies in guest memory (virtio 1.2, 2.7 split, 2.8 packed), and the features that choose its format.
// Written from the specification, on purpose apart from what the engine uses: each side of the tests has its own
// reading of it, and a wrong one shows.
#pragma once

#include <bit>
#include <cstdint>

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "rings are read in place");

// Features of every device that concern its queues (6).
inline constexpr uint64_t kFeatureIndirectDesc = 1ULL << 28;
inline constexpr uint64_t kFeatureEventIdx = 1ULL << 29;
inline constexpr uint64_t kFeatureVersion1 = 1ULL << 32;
inline constexpr uint64_t kFeatureRingPacked = 1ULL << 34;

// Split virtqueue (2.7). The rings behind the two indices are arrays: see driver_ring.cc.
struct Descriptor {
  uint64_t gpa;
  uint32_t len;
  uint16_t flags;
  uint16_t next;
};
static_assert(sizeof(Descriptor) == 16);
inline constexpr uint16_t kDescNext = 1;
inline constexpr uint16_t kDescWrite = 2;
inline constexpr uint16_t kDescIndirect = 4;
inline constexpr uint16_t kAvailNoInterrupt = 1;
inline constexpr uint16_t kUsedNoNotify = 1;

// Packed virtqueue (2.8).
struct PackedDescriptor {
  uint64_t gpa;
  uint32_t len;
  uint16_t id;
  uint16_t flags;
};
static_assert(sizeof(PackedDescriptor) == 16);
inline constexpr uint16_t kDescAvail = 1 << 7;
inline constexpr uint16_t kDescUsed = 1 << 15;
// The event suppression word: the descriptor (15 bits), its wrap counter, these flags.
inline constexpr uint32_t kEventEnable = 0 << 16;
inline constexpr uint32_t kEventDisable = 1 << 16;
inline constexpr uint32_t kEventDesc = 2 << 16;
inline constexpr uint32_t kEventFlagsMask = 3 << 16;

struct UsedElement {
  uint32_t id;
  uint32_t len;
};

}  // namespace cleat::perf::wire
