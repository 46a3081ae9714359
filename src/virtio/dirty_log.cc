// SPDX-License-Identifier: Apache-2.0
#include "virtio/dirty_log.h"

#include <atomic>

namespace cleat::virtio {

void DirtyLog::MarkPages(uint64_t guest_address, uint64_t length_bytes) {
  if (length_bytes == 0) return;
  uint64_t page = guest_address >> kPageShift;
  const uint64_t last = (guest_address + (length_bytes - 1)) >> kPageShift;
  while (page <= last) {
    const uint64_t byte = page >> 3;
    if (byte >= memory_.size_bytes) {
      if (!overrun_) overrun_address_ = page << kPageShift;
      overrun_ = true;
      return;
    }
    uint8_t bits = 0;
    for (; page <= last && page >> 3 == byte; ++page) bits = static_cast<uint8_t>(bits | 1U << (page & 7));
    // Always the read-modify-write, also when the bits look set: it is what keeps the data's stores before
    // QEMU's next look at them. A plain look could see a bit that QEMU clears before it sees our data.
    std::atomic_ref<uint8_t>(memory_.base[byte]).fetch_or(bits, std::memory_order_seq_cst);
  }
}

void DirtyLog::MarkSegments(const block::MemoryMap& map, std::span<const block::Segment> segments) {
  for (const block::Segment& segment : segments) {
    // No early end: a region may be mapped at several guest addresses.
    for (const block::MemoryMap::Entry& entry : map.entries()) {
      if (entry.region.get() == segment.region) {
        MarkPages(entry.guest_address + segment.offset_bytes, segment.length_bytes);
      }
    }
  }
}

}  // namespace cleat::virtio
