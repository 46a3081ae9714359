// SPDX-License-Identifier: Apache-2.0
// Descriptors of either ring format (virtio 1.2, 2.7.5 and 2.8.13): reading them, once each, and turning what they
// refer to into a Chain, checked and translated. What the two formats differ in - how one descriptor leads to the
// next - is in split_ring.cc and packed_ring.cc.
//
// Free functions, on the queue's reactor. False means that the guest broke a rule; `why` says which.
#pragma once

#include <cstdint>
#include <string>

#include "block/memory.h"
#include "virtio/chain.h"
#include "virtio/ring_format.h"

namespace cleat::virtio {

// struct virtq_desc in both layouts: a packed one has its buffer id where a split one's flags are.
struct Descriptor {
  uint64_t address = 0;
  uint64_t meta = 0;

  uint32_t length() const { return static_cast<uint32_t>(meta); }
  uint16_t split_flags() const { return static_cast<uint16_t>(meta >> 32); }
  uint16_t split_next() const { return static_cast<uint16_t>(meta >> 48); }
  uint16_t packed_id() const { return static_cast<uint16_t>(meta >> 32); }
  uint16_t packed_flags() const { return static_cast<uint16_t>(meta >> 48); }
};

// Where descriptors are read from: the ring's table or an indirect one.
struct DescriptorTable {
  const uint8_t* base = nullptr;  // nullptr: `guest_address`, in pieces, as it lies across memory regions
  uint64_t guest_address = 0;
  uint32_t entries = 0;
};

// Tables may lie at any address, so their halves are read as unaligned words, each once.
struct __attribute__((packed, may_alias)) UnalignedWord {
  uint64_t value;
};
inline uint64_t ReadWord(const uint8_t* at) {
  return reinterpret_cast<const volatile UnalignedWord*>(at)->value;
}

Descriptor ReadScattered(const DescriptorTable& table, const block::MemoryMap& map, uint32_t index);
inline Descriptor ReadDescriptor(const DescriptorTable& table, const block::MemoryMap& map, uint32_t index) {
  if (table.base == nullptr) [[unlikely]]
    return ReadScattered(table, map, index);
  const uint8_t* at = table.base + kDescriptorBytes * index;
  return {ReadWord(at), ReadWord(at + 8)};
}

// The table that an indirect descriptor refers to; its flags are the caller's business.
bool OpenIndirect(const Descriptor& descriptor, const block::MemoryMap& map, DescriptorTable& table,
                  std::string& why);

// One more descriptor of a chain was met.
bool RefuseCount(std::string& why);
inline bool CountDescriptor(Chain& chain, std::string& why) {
  if (chain.descriptors() == kChainDescriptorsMax) [[unlikely]]
    return RefuseCount(why);
  chain.CountDescriptor();
  return true;
}

// Adds the descriptor's buffer to the chain. The way for one that is right and lies in one region is short; the
// other way checks everything one by one.
bool AddBufferInPieces(const Descriptor& descriptor, bool writable, const block::MemoryMap& map, Chain& chain,
                       std::string& why);
inline bool AddBuffer(const Descriptor& descriptor, bool writable, const block::MemoryMap& map, Chain& chain,
                      std::string& why) {
  const uint32_t length = descriptor.length();
  const bool in_order = writable || chain.writable().empty();
  if (length != 0 && in_order && !chain.full() &&
      chain.readable_bytes() + chain.writable_bytes() + length <= kChainBytesMax) [[likely]] {
    const block::Segment segment = map.Translate(descriptor.address, length);
    if (segment.length_bytes == length) [[likely]] {
      chain.Add(segment, writable);
      return true;
    }
  }
  return AddBufferInPieces(descriptor, writable, map, chain, why);
}

}  // namespace cleat::virtio
