// SPDX-License-Identifier: Apache-2.0
#include "virtio/descriptors.h"

#include <utility>

#include "base/check.h"

namespace cleat::virtio {
namespace {

std::string Hex(uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[value & 15]);
    value >>= 4;
  } while (value != 0);
  return "0x" + text;
}

std::string Place(const Descriptor& descriptor) {
  return " at " + Hex(descriptor.address) + " of " + std::to_string(descriptor.length()) + " bytes ";
}

// A copy across memory regions; the caller has checked that all of it is mapped.
void CopyFromGuest(const block::MemoryMap& map, uint64_t guest_address, void* to, uint64_t bytes) {
  auto* out = static_cast<uint8_t*>(to);
  while (bytes > 0) {
    const block::Segment piece = map.Translate(guest_address, bytes);
    CLEAT_CHECK(piece.length_bytes > 0);
    CopyShared(out, piece.data(), piece.length_bytes);
    out += piece.length_bytes;
    guest_address += piece.length_bytes;
    bytes -= piece.length_bytes;
  }
}

bool IsMapped(const block::MemoryMap& map, uint64_t guest_address, uint64_t bytes) {
  while (bytes > 0) {
    const uint32_t piece = map.Translate(guest_address, bytes).length_bytes;
    if (piece == 0) return false;
    guest_address += piece;
    bytes -= piece;
  }
  return true;
}

bool WrapsAround(const Descriptor& descriptor) {
  return descriptor.address + (descriptor.length() - 1) < descriptor.address;
}

bool Refuse(std::string& why, std::string reason) {
  why = std::move(reason);
  return false;
}

}  // namespace

Descriptor ReadScattered(DescriptorTable table, const block::MemoryMap& map, uint32_t index) {
  Descriptor descriptor;
  CopyFromGuest(map, table.guest_address + kDescriptorBytes * index, &descriptor, sizeof(descriptor));
  return descriptor;
}

bool OpenUnusualTable(Descriptor descriptor, const block::MemoryMap& map, DescriptorTable& table,
                      std::string& why) {
  const uint32_t length = descriptor.length();
  if (length == 0 || length % kDescriptorBytes != 0) {
    return Refuse(why, "indirect table of " + std::to_string(length) + " bytes is not a multiple of 16");
  }
  table.entries = length / kDescriptorBytes;
  table.guest_address = descriptor.address;
  table.base = nullptr;
  if (WrapsAround(descriptor) || !IsMapped(map, descriptor.address, length)) {
    return Refuse(why, "indirect table" + Place(descriptor) + "is not in guest memory");
  }
  return true;
}

bool RefuseCount(std::string& why) {
  return Refuse(why, "chain is longer than " + std::to_string(kChainDescriptorsMax) + " descriptors");
}

bool AddBufferInPieces(Descriptor descriptor, bool writable, const block::MemoryMap& map, Chain& chain,
                       std::string& why) {
  ChainFiller filler(chain);
  if (!writable && filler.any_writable()) {
    return Refuse(why, "readable descriptor after a writable one");
  }
  uint32_t left = descriptor.length();
  if (left == 0) return Refuse(why, "descriptor of length 0");
  if (WrapsAround(descriptor)) {
    return Refuse(why, "buffer" + Place(descriptor) + "wraps around");
  }
  if (!filler.HasRoomFor(left)) {
    return Refuse(why, "chain is longer than 4 GiB");
  }
  uint64_t address = descriptor.address;
  do {
    const block::Segment segment = map.Translate(address, left);
    if (segment.length_bytes == 0) {
      return Refuse(why, "buffer" + Place(descriptor) + "is not in guest memory");
    }
    if (filler.full()) {
      return Refuse(why, "chain has more than " + std::to_string(kChainSegmentsMax) + " pieces of memory");
    }
    filler.Add(segment, writable);
    address += segment.length_bytes;
    left -= segment.length_bytes;
  } while (left > 0);
  filler.Commit();
  return true;
}

}  // namespace cleat::virtio
