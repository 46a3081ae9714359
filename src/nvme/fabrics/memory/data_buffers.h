// SPDX-License-Identifier: Apache-2.0
// Memory for the data of commands: one piece for each, from a pool that a reactor's queues share, so that a queue which is idle has
// none. Pieces are powers of two from 4 KiB on, cut from slabs of 1 MiB; a slab has pieces of one size until all of them are back.
//
// Memory that was used stays for the next command, and goes back to the kernel when it was not needed for a while (Trim).
//
// Pages that an adapter has registered stay as they are, or it would go on with the old ones: of such memory neither Trim nor ReplacePages is called.
//
// One thread: its reactor's. Allocates in the constructor only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "block/memory.h"
#include "nvme/fabrics/queues/target_queue.h"

namespace cleat::nvme::fabrics {

class DataBuffers {
 public:
  static constexpr uint32_t kPieceMinBytes = 4096;
  static constexpr uint32_t kSlabBytes = kTransferBytesMax;
  static constexpr uint32_t kSlabsMax = 256;
  // Slabs that stay when nobody needs them.
  static constexpr uint32_t kSlabsKept = 8;

  // `slabs`: 1 to kSlabsMax. Address space is taken for all, memory as it is used.
  explicit DataBuffers(uint32_t slabs);
  ~DataBuffers();
  DataBuffers(const DataBuffers&) = delete;
  DataBuffers& operator=(const DataBuffers&) = delete;

  // A piece of that length, 1 to kSlabBytes; what lies behind it up to the piece's end is nobody's. False: there is none now.
  bool Take(uint32_t bytes, block::Segment& piece);
  // As Take gave it.
  void Give(const block::Segment& piece);
  // Puts new pages in the place of those of a piece that was taken. Its content is lost. Whoever still uses the old pages, as the kernel does that
  // sends from them, keeps these, and nobody here writes to them any more.
  void ReplacePages(const block::Segment& piece);
  // Gives back to the kernel what nobody has needed since the call before, but for kSlabsKept slabs. Returns whether the next call may
  // find more.
  bool Trim();

  // All of it, whose pieces Take gives.
  const std::shared_ptr<block::MemoryRegion>& region() const { return region_; }
  uint32_t slabs() const { return static_cast<uint32_t>(slabs_.size()); }
  uint32_t slabs_in_use() const { return slabs_in_use_; }
  // Whether a piece of that length would be cut from a slab that is in use.
  bool HasPiece(uint32_t bytes) const { return with_room_[SizeOf(bytes)] != kNone; }

 private:
  static constexpr uint32_t kSizes = 9;  // 4 KiB to 1 MiB
  static constexpr uint16_t kNone = UINT16_MAX;
  struct Slab {
    uint8_t size = 0;         // of its pieces, as an index
    uint16_t next = kNone;    // in its list: of free slabs, or of those of its size that have room
    uint16_t before = kNone;  // likewise
    uint16_t free_count = 0;
    bool dirty = false;                                     // has memory
    std::array<uint8_t, kSlabBytes / kPieceMinBytes> free;  // pieces, the last that came back at the end
  };
  static uint32_t SizeOf(uint32_t bytes);
  static void Cut(Slab& slab, uint32_t size);
  void Insert(uint16_t& list, uint16_t number);
  void Remove(uint16_t& list, uint16_t number);

  uint8_t* base_ = nullptr;
  std::shared_ptr<block::MemoryRegion> region_;
  std::vector<Slab> slabs_;
  uint16_t free_ = kNone;                   // the slab that came back last first
  std::array<uint16_t, kSizes> with_room_;  // by size
  uint32_t slabs_in_use_ = 0;
  uint32_t slabs_most_ = 0;  // in use since the last Trim
};

}  // namespace cleat::nvme::fabrics
