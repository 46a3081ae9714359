// SPDX-License-Identifier: Apache-2.0
// Does the disk hold what was written? Every 512-byte sector carries where it belongs, which write of its
// block it is from, and a checksum; a model remembers which writes were acknowledged and which were seen. A
// sector that is wrong is then not just wrong: it is torn, stale, misplaced, lost or corrupt, and that tells
// where to look.
//
// The model is of one disk that only the owner writes, in whole blocks, with at most one request at a time
// for a block (requests for different blocks may overlap as they like). A write whose fate is unknown - the
// back end died, the request failed - is abandoned: the block may hold it or what was there before, until the
// block is written again. Where the medium is memory, it may even hold parts of both (MayTear). Any thread, as long as
// no two use the same block at once; memory is 16 bytes a block. Generations are per block, count from 1 and never
// wrap.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace cleat::perf {

enum class BlockFault : uint8_t {
  kNone,
  kTorn,       // parts of two writes in one block
  kStale,      // an older write, although a newer one had been read there before
  kLost,       // an acknowledged write left no trace: what was there before is still there
  kMisplaced,  // a good sector of another place or another disk
  kCorrupt,    // nothing that was ever written
};

const char* BlockFaultName(BlockFault fault);

struct BlockFinding {
  BlockFault fault = BlockFault::kNone;
  uint64_t offset_bytes = 0;         // of the sector on the disk
  uint32_t generation = 0;           // found there, where that can be told
  uint32_t generation_expected = 0;  // the least that would have been right
  uint64_t offset_found_bytes = 0;   // kMisplaced: where it says it belongs

  bool ok() const { return fault == BlockFault::kNone; }
  std::string ToString() const;
};

class StampedBlocks {
 public:
  // `block_bytes` is a multiple of 512; `disk_id` tells disks apart. The disk's first content counts as
  // generation 0: zeroes, or anything at all when `initially_zero` is false.
  StampedBlocks(uint64_t disk_bytes, uint32_t block_bytes, uint64_t disk_id, bool initially_zero = true);

  // A block whose last write was abandoned may hold parts of that write and of what was right there before: the
  // process that copied it was killed in the middle of a sector, and nobody ran the request again.
  void MayTear() { may_tear_ = true; }

  // Offsets and lengths are multiples of the block size, inside the disk.
  // Before a write is submitted: fills `data` with each block's next generation.
  void BeginWrite(uint64_t offset_bytes, std::span<uint8_t> data);
  // Before write zeroes (or a discard, on a disk where discarded blocks read as zeroes) is submitted.
  void BeginZero(uint64_t offset_bytes, uint64_t length_bytes);
  // After the device said OK. A request that is never completed is left as it is: that is what abandoned
  // means.
  void Acknowledge(uint64_t offset_bytes, uint64_t length_bytes);

  // Checks what a read returned; the first fault in it, if there is one. Notes what was seen.
  BlockFinding Check(uint64_t offset_bytes, std::span<const uint8_t> data);

  // Whether a write of the block at this offset was ever begun.
  bool begun(uint64_t offset_bytes) const { return blocks_[offset_bytes / block_bytes_].issued > 0; }

  uint64_t disk_bytes() const { return blocks_.size() * block_bytes_; }
  uint32_t block_bytes() const { return block_bytes_; }

 private:
  struct Block {
    uint32_t issued = 0;        // the newest write that was begun
    uint32_t acknowledged = 0;  // the newest that is known to be there
    uint32_t seen = 0;          // the newest that was read back
    uint32_t zeroed = 0;        // the newest generation that consists of zeroes; kNeverZero if there is none
  };
  struct SectorContent {
    BlockFault fault = BlockFault::kNone;  // kNone, kTorn, kMisplaced or kCorrupt
    bool zero = false;
    uint64_t offset_bytes = 0;
    uint32_t generation = 0;
  };
  static constexpr uint32_t kNeverZero = UINT32_MAX;

  SectorContent ReadSector(uint64_t offset_bytes, uint32_t issued, const uint8_t* sector) const;
  bool TornAsItMay(const Block& block, uint64_t offset_bytes, const uint8_t* data) const;
  BlockFinding CheckBlock(Block& block, uint64_t offset_bytes, const uint8_t* data) const;

  const uint32_t block_bytes_;
  const uint64_t disk_id_;
  const bool initially_zero_;
  bool may_tear_ = false;
  std::vector<Block> blocks_;
};

}  // namespace cleat::perf
