// SPDX-License-Identifier: Apache-2.0
// The memory of one command: as much of a request's as the command may take. Pure; on any thread.
//
// A drive's list of pages has whole ones but at its ends (PRP, NVM Express Base Specification 2.0, 4.1.1): memory with a gap in between takes
// two commands. The kernel would copy such memory instead, and has no limit of ours on that.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "block/memory.h"

namespace cleat::nvme {

inline constexpr uint64_t kPageBytes = 4096;

struct DataLimits {
  uint32_t pages = 0;         // that a command's memory touches: at least two
  uint32_t block_bytes = 0;   // a command's memory ends with a whole block
  uint32_t memory_align = 1;  // of addresses and lengths, a power of two
};

struct DataPiece {
  uint32_t iovecs = 0;
  uint64_t bytes = 0;
};

// Whether one command's memory may go on at `next` after it has come to `end`.
inline bool Joins(const uint8_t* end, const uint8_t* next) {
  return end == next ||
         ((std::bit_cast<uintptr_t>(end) | std::bit_cast<uintptr_t>(next)) & (kPageBytes - 1)) == 0;
}

// Whether the memory has to be copied to be given to the drive: it is not aligned, or has a gap within a block.
inline bool NeedsCopy(std::span<const block::Segment> segments, const DataLimits& limits) {
  uint64_t bytes = 0;
  const uint8_t* end = nullptr;
  for (const block::Segment& segment : segments) {
    if (segment.length_bytes == 0) continue;
    const uint8_t* const data = segment.data();
    if (((std::bit_cast<uintptr_t>(data) | segment.length_bytes) & (limits.memory_align - 1)) != 0)
      return true;
    if (bytes % limits.block_bytes != 0 && !Joins(end, data)) return true;
    bytes += segment.length_bytes;
    end = data + segment.length_bytes;
  }
  return false;
}

// Fills `iovecs`, two at least where the segments are several, with the memory of `segments` from `from_bytes` on, at most `bytes_max`, a
// multiple of the block as `from_bytes`. Of memory that needs no copy: always some.
inline DataPiece TakeData(std::span<const block::Segment> segments, uint64_t from_bytes, uint64_t bytes_max,
                          const DataLimits& limits, std::span<iovec> iovecs) {
  DataPiece piece;
  uint64_t pages_left = limits.pages;
  const uint8_t* end = nullptr;
  for (const block::Segment& segment : segments) {
    if (from_bytes >= segment.length_bytes) {
      from_bytes -= segment.length_bytes;
      continue;
    }
    uint8_t* const data = segment.data() + from_bytes;
    const bool goes_on = end == data;
    if (piece.iovecs > 0 && !Joins(end, data)) break;
    // In memory that goes on, the rest of the page is counted already.
    const uint64_t into_page = std::bit_cast<uintptr_t>(data) % kPageBytes;
    const uint64_t counted = goes_on && into_page != 0 ? kPageBytes - into_page : 0;
    const uint64_t room = pages_left * kPageBytes + counted - (goes_on || pages_left == 0 ? 0 : into_page);
    const uint64_t bytes = std::min({segment.length_bytes - from_bytes, bytes_max - piece.bytes, room});
    if (bytes == 0 || (!goes_on && piece.iovecs == iovecs.size())) break;
    pages_left -=
        (bytes - std::min(bytes, counted) + (goes_on ? 0 : into_page) + kPageBytes - 1) / kPageBytes;
    if (goes_on) {
      iovecs[piece.iovecs - 1].iov_len += bytes;
    } else {
      iovecs[piece.iovecs++] = {data, bytes};
    }
    piece.bytes += bytes;
    end = data + bytes;
    from_bytes = 0;
  }
  uint64_t beyond = piece.bytes % limits.block_bytes;
  piece.bytes -= beyond;
  while (beyond > 0) {
    iovec& last = iovecs[piece.iovecs - 1];
    const uint64_t cut = std::min<uint64_t>(beyond, last.iov_len);
    last.iov_len -= cut;
    beyond -= cut;
    if (last.iov_len == 0) --piece.iovecs;
  }
  return piece;
}

}  // namespace cleat::nvme
