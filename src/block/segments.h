// SPDX-License-Identifier: Apache-2.0
// Copies between segments and memory of ours, and parts of segment lists. What lies in segments belongs to somebody
// who may write it at this very moment (a guest's CPU): it is read once, and the copy is what is checked and used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "block/memory.h"

namespace cleat::block {

// A copy of bytes of any alignment. What is done with the copy can't be turned into a second look at the source.
inline void CopyShared(void* to, const uint8_t* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

inline uint64_t SumBytes(std::span<const Segment> segments) {
  uint64_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.length_bytes;
  return bytes;
}

// Calls `piece(at, bytes)` for each piece of [skip_bytes, skip_bytes + bytes) in the segments, which hold that much.
template <typename Piece>
void ForEachPiece(std::span<const Segment> segments, uint64_t skip_bytes, uint64_t bytes, Piece&& piece) {
  for (const Segment& segment : segments) {
    if (bytes == 0) return;
    if (skip_bytes >= segment.length_bytes) {
      skip_bytes -= segment.length_bytes;
      continue;
    }
    const uint64_t room = segment.length_bytes - skip_bytes;
    const size_t length = bytes < room ? bytes : room;
    piece(segment.data() + skip_bytes, length);
    bytes -= length;
    skip_bytes = 0;
  }
  CLEAT_CHECK(bytes == 0);
}

// Copies `bytes` out of the segments, from `skip_bytes` on.
inline void Gather(std::span<const Segment> segments, uint64_t skip_bytes, void* to, size_t bytes) {
  auto* out = static_cast<uint8_t*>(to);
  ForEachPiece(segments, skip_bytes, bytes, [&out](const uint8_t* at, size_t length) {
    CopyShared(out, at, length);
    out += length;
  });
}

// Copies `bytes` into the segments, from `skip_bytes` on.
inline void Scatter(const void* from, size_t bytes, std::span<const Segment> segments, uint64_t skip_bytes) {
  const auto* in = static_cast<const uint8_t*>(from);
  ForEachPiece(segments, skip_bytes, bytes, [&in](uint8_t* at, size_t length) {
    std::memcpy(at, in, length);
    in += length;
  });
}

// The part [skip_bytes, skip_bytes + length_bytes) of `in`, written to `out`, which has room for in.size().
// Returns how many segments that took.
inline uint32_t Cut(std::span<const Segment> in, uint64_t skip_bytes, uint64_t length_bytes, Segment* out) {
  uint32_t count = 0;
  for (const Segment& segment : in) {
    if (length_bytes == 0) break;
    if (skip_bytes >= segment.length_bytes) {
      skip_bytes -= segment.length_bytes;
      continue;
    }
    const uint64_t room = segment.length_bytes - skip_bytes;
    const uint64_t piece = length_bytes < room ? length_bytes : room;
    out[count++] = {segment.region, segment.offset_bytes + skip_bytes, static_cast<uint32_t>(piece)};
    length_bytes -= piece;
    skip_bytes = 0;
  }
  return count;
}

}  // namespace cleat::block
