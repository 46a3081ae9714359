// SPDX-License-Identifier: Apache-2.0
// A drive in memory that loses power, or fails, at any of its operations. Sparse: blocks that were never written are zeroes.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "pool/drive.h"
#include "pool/layout.h"

namespace cleat::pool::test {

class MemoryDrive : public Drive {
 public:
  using Block = std::array<uint8_t, kBlockBytes>;

  explicit MemoryDrive(uint64_t size_bytes) : size_bytes_(size_bytes) {}

  // How it misbehaves. Operations are counted from 1 on; 0: never.
  struct Faults {
    uint64_t cut_at = 0;   // from that operation on there is no power: it may have had any effect or none
    uint64_t fail_at = 0;  // that one fails without an effect, and later ones work
    std::vector<uint64_t> unreadable{};   // blocks at these offsets
    uint64_t sector_bytes = kBlockBytes;  // what is written whole or not at all when power is lost
    // Negative controls: drives that nobody can keep a pool on.
    bool flushes_nothing = false;
    bool zeroes_nothing = false;
    bool one_slot = false;  // both slots of the map are one place
  };
  Faults faults;

  uint64_t operations() const { return operations_; }
  const std::vector<uint64_t>& reads() const { return reads_; }  // their offsets

  // Loses power, which is back then: each sector that was written since the last flush is there or not.
  void LosePower(Random& random) {
    const uint64_t sector = faults.sector_bytes;
    for (const auto& [number, versions] : unflushed_) {
      Block block = BlockOf(durable_, number);
      for (uint64_t at = 0; at < kBlockBytes; at += sector) {
        const uint64_t version = random.Below(versions.size() + 1);
        if (version > 0) std::copy_n(versions[version - 1].begin() + at, sector, block.begin() + at);
      }
      durable_[number] = block;
    }
    unflushed_.clear();
    faults.cut_at = faults.fail_at = 0;
    operations_ = 0;
    reads_.clear();
  }
  // All of it, without a fault and without being counted.
  void Put(uint64_t offset_bytes, const Block& block) {
    unflushed_.erase(offset_bytes / kBlockBytes);
    durable_[offset_bytes / kBlockBytes] = block;
  }
  void Put(uint64_t offset_bytes, uint8_t byte) {
    Block block;
    block.fill(byte);
    Put(offset_bytes, block);
  }
  Block At(uint64_t offset_bytes) const { return Present(offset_bytes / kBlockBytes); }
  // Whether the range has other bytes than zeroes.
  bool HasData(uint64_t offset_bytes, uint64_t length_bytes) const {
    const uint64_t first = offset_bytes / kBlockBytes;
    const uint64_t end = first + length_bytes / kBlockBytes;
    for (auto it = unflushed_.lower_bound(first); it != unflushed_.end() && it->first < end; ++it) {
      if (it->second.back() != Block{}) return true;
    }
    for (auto it = durable_.lower_bound(first); it != durable_.end() && it->first < end; ++it) {
      if (Present(it->first) != Block{}) return true;
    }
    return false;
  }

  uint64_t size_bytes() const override { return size_bytes_; }
  Status Read(uint64_t offset_bytes, std::span<uint8_t> to) override {
    CLEAT_TRY(Begin(offset_bytes, to.size()));
    reads_.push_back(offset_bytes);
    for (uint64_t at = 0; at < to.size(); at += kBlockBytes) {
      if (std::count(faults.unreadable.begin(), faults.unreadable.end(), offset_bytes + at) > 0)
        return Error(ErrorCode::kIo, "the test's drive can't read there");
      const Block block = Present(Number(offset_bytes + at));
      std::copy(block.begin(), block.end(), to.begin() + static_cast<ptrdiff_t>(at));
    }
    return Ok{};
  }
  Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) override {
    const Status begun = Begin(offset_bytes, from.size());
    if (!begun && !WasCutNow()) return begun;
    for (uint64_t at = 0; at < from.size(); at += kBlockBytes) {
      Block block;
      std::copy_n(from.begin() + static_cast<ptrdiff_t>(at), kBlockBytes, block.begin());
      unflushed_[Number(offset_bytes + at)].push_back(block);
    }
    return begun;
  }
  Status Zero(uint64_t offset_bytes, uint64_t length_bytes) override {
    const Status begun = Begin(offset_bytes, length_bytes);
    if (faults.zeroes_nothing || (!begun && !WasCutNow())) return begun;
    const uint64_t first = Number(offset_bytes);
    const uint64_t end = first + length_bytes / kBlockBytes;
    for (auto it = unflushed_.lower_bound(first); it != unflushed_.end() && it->first < end; ++it)
      it->second.push_back({});
    for (auto it = durable_.lower_bound(first); it != durable_.end() && it->first < end; ++it) {
      auto& versions = unflushed_[it->first];
      if (versions.empty()) versions.push_back({});
    }
    return begun;
  }
  Status Flush() override {
    CLEAT_TRY(Begin(0, 0));
    if (faults.flushes_nothing) return Ok{};
    for (const auto& [number, versions] : unflushed_) durable_[number] = versions.back();
    unflushed_.clear();
    return Ok{};
  }

 private:
  static Block BlockOf(const std::map<uint64_t, Block>& blocks, uint64_t number) {
    const auto it = blocks.find(number);
    return it == blocks.end() ? Block{} : it->second;
  }
  Block Present(uint64_t number) const {
    const auto it = unflushed_.find(number);
    return it == unflushed_.end() ? BlockOf(durable_, number) : it->second.back();
  }
  uint64_t Number(uint64_t offset_bytes) const {
    const bool second_slot = offset_bytes >= kMapOffsets[1] && offset_bytes < kMapOffsets[1] + kMapBytesMax;
    if (faults.one_slot && second_slot) offset_bytes -= kMapOffsets[1] - kMapOffsets[0];
    return offset_bytes / kBlockBytes;
  }
  bool WasCutNow() const { return operations_ == faults.cut_at; }
  // Within the drive and in whole blocks: whoever asks for anything else has a bug.
  Status Begin(uint64_t offset_bytes, uint64_t length_bytes) {
    CLEAT_CHECK(offset_bytes % kBlockBytes == 0 && length_bytes % kBlockBytes == 0);
    CLEAT_CHECK(offset_bytes <= size_bytes_ && length_bytes <= size_bytes_ - offset_bytes);
    ++operations_;
    if (faults.cut_at != 0 && operations_ >= faults.cut_at)
      return Error(ErrorCode::kIo, "the test's drive has no power");
    if (faults.fail_at != 0 && operations_ == faults.fail_at)
      return Error(ErrorCode::kIo, "the test's drive fails");
    return Ok{};
  }

  const uint64_t size_bytes_;
  std::map<uint64_t, Block> durable_;
  std::map<uint64_t, std::vector<Block>> unflushed_;  // of each block, in the order of its writes
  std::vector<uint64_t> reads_;
  uint64_t operations_ = 0;
};

}  // namespace cleat::pool::test
