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

// By value: what is handed on by reference lives in memory and not in registers, here as in what follows.
Descriptor ReadScattered(DescriptorTable table, const block::MemoryMap& map, uint32_t index);
inline Descriptor ReadDescriptor(const DescriptorTable& table, const block::MemoryMap& map, uint32_t index) {
  if (table.base == nullptr) [[unlikely]]
    return ReadScattered(table, map, index);
  const uint8_t* at = table.base + kDescriptorBytes * index;
  return {ReadWord(at), ReadWord(at + 8)};
}

// The table that an indirect descriptor refers to; its flags are the caller's business.
bool OpenUnusualTable(Descriptor descriptor, const block::MemoryMap& map, DescriptorTable& table,
                      std::string& why);
inline bool OpenIndirect(const Descriptor& descriptor, const block::MemoryMap& map, DescriptorTable& table,
                         std::string& why) {
  const uint32_t length = descriptor.length();
  block::Segment whole;
  if (length % kDescriptorBytes != 0 || !map.TranslateWhole(descriptor.address, length, whole)) [[unlikely]] {
    DescriptorTable unusual;
    const bool open = OpenUnusualTable(descriptor, map, unusual, why);
    table = unusual;
    return open;
  }
  table = {whole.data(), descriptor.address, static_cast<uint32_t>(length / kDescriptorBytes)};
  return true;
}

// One more descriptor of a chain was met.
[[gnu::cold]] bool RefuseCount(std::string& why);
inline bool CountDescriptor(ChainFiller& chain, std::string& why) {
  return chain.CountDescriptor() || RefuseCount(why);
}

// Adds the descriptor's buffer to the chain. The way for one that is right and lies in one region is short; the
// other way checks everything one by one.
bool AddBufferInPieces(Descriptor descriptor, bool writable, const block::MemoryMap& map, Chain& chain,
                       std::string& why);
inline bool AddBuffer(const Descriptor& descriptor, bool writable, const block::MemoryMap& map,
                      ChainFiller& chain, std::string& why) {
  const uint32_t length = descriptor.length();
  block::Segment whole;
  if (chain.Takes(length, writable) && map.TranslateWhole(descriptor.address, length, whole)) [[likely]] {
    chain.Add(whole, writable);
    return true;
  }
  // The filler is not handed on, so that it can stay in registers.
  const bool added = AddBufferInPieces(descriptor, writable, map, chain.Commit(), why);
  chain.Reload();
  return added;
}

}  // namespace cleat::virtio
