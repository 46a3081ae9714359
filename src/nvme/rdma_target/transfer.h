// SPDX-License-Identifier: Apache-2.0
// The data of a command as works of a send queue: a READ or WRITE moves bytes between one piece of the host's memory and some pieces of the memory here.
// Pure; one thread.
#pragma once

#include <cstdint>
#include <span>

#include "block/memory.h"
#include "nvme/rdma/keyed_sgl.h"
#include "nvme/rdma_target/local_keys.h"
#include "rdma/verbs.h"

namespace cleat::nvme::rdma_target {

namespace verbs = ::cleat::rdma;

// Pieces of one work, however many the adapter could take: more make no difference to 1 MiB of data, and each has a place in the chain.
inline constexpr uint32_t kWorkPiecesMax = 16;

// How far the works that were made have come.
struct TransferCursor {
  uint32_t bytes = 0;
  uint32_t host_piece = 0;
  uint32_t host_offset = 0;
  uint32_t segment = 0;
  uint32_t segment_offset = 0;
};

// Where the data is, or is to be. In a round of a transfer whose memory is not registered: memory that stands in for it, from the round's first byte on.
struct LocalMemory {
  std::span<const block::Segment> segments;
  const LocalKeys* keys = nullptr;  // has each of the segments' regions, or the data is staged
  bool staged = false;
  verbs::LocalPiece staging;
  uint32_t round_from_bytes = 0;
};

struct TransferWork {
  uint64_t remote_address = 0;
  uint32_t key = 0;
  uint32_t pieces = 0;
};

// The next work, with one byte at least: up to `end_bytes` of the command's data, which is beyond cursor.bytes, and as many pieces as `pieces` has room
// for. The memory and the host's pieces have so many bytes.
TransferWork NextWork(TransferCursor& cursor, std::span<const rdma::HostPiece> host, const LocalMemory& local,
                      uint32_t end_bytes, std::span<verbs::LocalPiece> pieces);

// How many works these are, at most `pieces_max` (<= kWorkPiecesMax) pieces each.
uint32_t CountWorks(TransferCursor cursor, std::span<const rdma::HostPiece> host, const LocalMemory& local,
                    uint32_t end_bytes, uint32_t pieces_max);

// Whether each of the first `bytes` is in a region that has a key.
bool AllRegistered(std::span<const block::Segment> segments, uint32_t bytes, const LocalKeys& keys);

// Between the segments, from `offset_bytes` on, and other memory.
void CopyTo(std::span<const block::Segment> segments, uint32_t offset_bytes, std::span<const uint8_t> from);
void CopyFrom(std::span<const block::Segment> segments, uint32_t offset_bytes, std::span<uint8_t> to);

}  // namespace cleat::nvme::rdma_target
