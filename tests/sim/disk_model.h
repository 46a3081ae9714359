// SPDX-License-Identifier: Apache-2.0
// What a disk may hold, as its users know it: for each block the writes that may be its content, by the times at which
// they were issued and acknowledged. A read may return any write that was issued before the read ended, unless one that
// began after it had ended had happened before the read began - was acknowledged, or seen by a read (the register of
// linearizability, where writes that failed or whose fate is unknown may have happened or not).
//
// A written block is filled with its write's stamp, so that a torn or misplaced one is seen. Owned by the test; one
// thread. Lives as long as the disk's content, through any number of attachments.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace cleat::sim {

inline constexpr uint32_t kBlockBytes = 512;

// Fills a block with what belongs to `stamp` at `block`; stamp 0 is all zeroes.
void FillBlock(std::span<uint8_t> bytes, uint64_t block, uint64_t stamp);

class DiskModel {
 public:
  DiskModel(std::string name, uint64_t blocks);

  const std::string& name() const { return name_; }
  uint64_t blocks() const { return blocks_.size(); }

  // ---- Writes. The stamp stands for the write and is unique in this disk; 0 is never given out.
  enum class Kind : uint8_t { kData, kZeroes, kDiscard };
  uint64_t BeginWrite(Kind kind, uint64_t block, uint64_t count);
  // What became of it: acknowledged; failed, or its ring is gone, and it may have happened but won't any more; it was
  // never taken from the ring.
  enum class Fate : uint8_t { kDone, kUnknown, kNever };
  void EndWrite(uint64_t stamp, Kind kind, uint64_t block, uint64_t count, Fate fate);

  // The stamp that the block is sure to hold while nobody else writes; nothing when it may be one of several.
  std::optional<uint64_t> OnlyContent(uint64_t block) const;
  // Whether the write with this stamp was the only one since the block held `before` for sure.
  bool OnlyChangedBy(uint64_t block, uint64_t stamp, uint64_t before) const;
  uint64_t stamps() const { return next_stamp_; }  // all that were given out are below
  bool Acknowledged(uint64_t stamp) const { return stamp < acknowledged_.size() && acknowledged_[stamp]; }
  // The stamp that a written block shows; 0 for zeroes.
  static uint64_t StampOf(std::span<const uint8_t> bytes, uint64_t block);

  // ---- Reads
  struct Read {
    uint64_t begin = 0;  // sequence number
    uint64_t block = 0;
    uint64_t count = 0;
  };
  Read BeginRead(uint64_t block, uint64_t count);
  // Empty, or what is wrong with what came back.
  std::string EndRead(const Read& read, std::span<const uint8_t> data);
  void CancelRead(const Read& read);

  // The whole content as it is on the storage, at a time when nobody reads or writes.
  std::string CheckContent(std::span<const uint8_t> content);
  uint64_t writes_in_flight() const { return writes_in_flight_; }

 private:
  static constexpr uint64_t kPending = UINT64_MAX;
  struct Write {
    uint64_t stamp;
    uint64_t begin;
    uint64_t end;       // kPending
    uint64_t happened;  // by then it had: acknowledged, or seen by a read; kPending: not known
    bool zero;          // it leaves zeroes
  };
  struct Block {
    std::vector<Write> writes;
    uint32_t readers = 0;
  };
  static bool Overwritten(const Block& block, const Write& write, uint64_t before);
  void Prune(Block& block) const;
  std::string CheckBlock(uint64_t index, uint64_t read_begin, std::span<const uint8_t> bytes);

  const std::string name_;
  std::vector<Block> blocks_;
  std::vector<bool> acknowledged_;  // by stamp
  uint64_t sequence_ = 1;
  uint64_t next_stamp_ = 1;
  uint64_t writes_in_flight_ = 0;
};

}  // namespace cleat::sim
