// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_target/transfer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace cleat::nvme::rdma_target {
namespace {

uint64_t AddressOf(const uint8_t* data) {
  return std::bit_cast<uint64_t>(data);
}

// Calls `copy` with each piece of memory and where it is in the `bytes`.
template <typename Copy>
void ForEachPiece(std::span<const block::Segment> segments, uint32_t offset_bytes, size_t bytes, Copy copy) {
  size_t done = 0;
  for (const block::Segment& segment : segments) {
    if (done == bytes) return;
    if (offset_bytes >= segment.length_bytes) {
      offset_bytes -= segment.length_bytes;
      continue;
    }
    const size_t part = std::min<size_t>(segment.length_bytes - offset_bytes, bytes - done);
    copy(segment.data() + offset_bytes, done, part);
    done += part;
    offset_bytes = 0;
  }
  CLEAT_CHECK(done == bytes);
}

uint32_t KeyOf(const LocalMemory& local, const block::Segment& segment) {
  const auto key = local.keys->Find(segment.region);
  CLEAT_CHECK(key);
  return *key;
}

// Of the memory here from the cursor on, at most `bytes_max`, in one piece.
verbs::LocalPiece NextPiece(TransferCursor& cursor, const LocalMemory& local, uint32_t bytes_max) {
  if (local.staged) {
    const uint32_t offset = cursor.bytes - local.round_from_bytes;
    CLEAT_CHECK(bytes_max <= local.staging.length_bytes - offset);
    cursor.bytes += bytes_max;
    return {local.staging.address + offset, bytes_max, local.staging.local_key};
  }
  while (cursor.segment_offset == local.segments[cursor.segment].length_bytes) {
    ++cursor.segment;
    cursor.segment_offset = 0;
    CLEAT_CHECK(cursor.segment < local.segments.size());
  }
  const block::Segment& segment = local.segments[cursor.segment];
  const uint32_t bytes = std::min(segment.length_bytes - cursor.segment_offset, bytes_max);
  const uint32_t key = KeyOf(local, segment);
  const uint64_t address = AddressOf(segment.data() + cursor.segment_offset);
  cursor.segment_offset += bytes;
  cursor.bytes += bytes;
  return {address, bytes, key};
}

}  // namespace

TransferWork NextWork(TransferCursor& cursor, std::span<const rdma::HostPiece> host, const LocalMemory& local,
                      uint32_t end_bytes, std::span<verbs::LocalPiece> pieces) {
  CLEAT_CHECK(cursor.bytes < end_bytes && !pieces.empty());
  if (cursor.host_offset == host[cursor.host_piece].length_bytes) {
    ++cursor.host_piece;
    cursor.host_offset = 0;
  }
  CLEAT_CHECK(cursor.host_piece < host.size());
  const rdma::HostPiece& remote = host[cursor.host_piece];
  TransferWork work{.remote_address = remote.address + cursor.host_offset, .key = remote.key};
  uint32_t bytes_left = std::min(remote.length_bytes - cursor.host_offset, end_bytes - cursor.bytes);
  if (!local.staged) [[likely]] {
    // Nearly all: what is left of one segment has it.
    const block::Segment& segment = local.segments[cursor.segment];
    if (bytes_left <= segment.length_bytes - cursor.segment_offset) [[likely]] {
      pieces[0] = {AddressOf(segment.data() + cursor.segment_offset), bytes_left, KeyOf(local, segment)};
      work.pieces = 1;
      cursor.segment_offset += bytes_left;
      cursor.bytes += bytes_left;
      cursor.host_offset += bytes_left;
      return work;
    }
  }
  while (bytes_left > 0 && work.pieces < pieces.size()) {
    verbs::LocalPiece& piece = pieces[work.pieces++];
    piece = NextPiece(cursor, local, bytes_left);
    bytes_left -= piece.length_bytes;
    cursor.host_offset += piece.length_bytes;
  }
  return work;
}

uint32_t CountWorks(TransferCursor cursor, std::span<const rdma::HostPiece> host, const LocalMemory& local,
                    uint32_t end_bytes, uint32_t pieces_max) {
  std::array<verbs::LocalPiece, kWorkPiecesMax> pieces;
  uint32_t works = 0;
  for (; cursor.bytes < end_bytes; ++works)
    NextWork(cursor, host, local, end_bytes, std::span(pieces).first(pieces_max));
  return works;
}

bool AllRegistered(std::span<const block::Segment> segments, uint32_t bytes, const LocalKeys& keys) {
  for (const block::Segment& segment : segments) {
    if (bytes == 0) return true;
    if (!keys.Find(segment.region)) return false;
    bytes -= std::min(bytes, segment.length_bytes);
  }
  return true;
}

void CopyTo(std::span<const block::Segment> segments, uint32_t offset_bytes, std::span<const uint8_t> from) {
  ForEachPiece(segments, offset_bytes, from.size(), [&](uint8_t* memory, size_t at, size_t bytes) {
    std::memcpy(memory, from.data() + at, bytes);
  });
}

void CopyFrom(std::span<const block::Segment> segments, uint32_t offset_bytes, std::span<uint8_t> to) {
  ForEachPiece(segments, offset_bytes, to.size(), [&](const uint8_t* memory, size_t at, size_t bytes) {
    std::memcpy(to.data() + at, memory, bytes);
  });
}

}  // namespace cleat::nvme::rdma_target
