// SPDX-License-Identifier: Apache-2.0
#include "disk_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace cleat::sim {
namespace {

constexpr uint32_t kWords = kBlockBytes / sizeof(uint64_t);

// Every word says where it belongs: a stamp is mixed with its place's key, by exclusive or.
uint64_t Key(uint64_t block, uint32_t word) {
  return (block * kWords + word + 1) * 0x9e3779b97f4a7c15ULL;
}
uint64_t Word(uint64_t stamp, uint64_t block, uint32_t word) {
  return stamp == 0 ? 0 : stamp ^ Key(block, word);
}

std::string Name(uint64_t stamp) {
  return stamp == 0 ? "zeroes" : "write " + std::to_string(stamp);
}

}  // namespace

void FillBlock(std::span<uint8_t> bytes, uint64_t block, uint64_t stamp) {
  CLEAT_CHECK(bytes.size() == kBlockBytes);
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint64_t word = Word(stamp, block, i);
    std::memcpy(bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
}

uint64_t DiskModel::StampOf(std::span<const uint8_t> bytes, uint64_t block) {
  uint64_t first = 0;
  std::memcpy(&first, bytes.data(), sizeof(first));
  return first == 0 ? 0 : first ^ Key(block, 0);
}

DiskModel::DiskModel(std::string name, uint64_t blocks) : name_(std::move(name)), blocks_(blocks) {
  for (Block& block : blocks_) block.writes.push_back({0, 0, 0, 0, true});
}

bool DiskModel::Overwritten(const Block& block, const Write& write, uint64_t before) {
  return std::any_of(block.writes.begin(), block.writes.end(), [&](const Write& later) {
    return write.end != kPending && later.begin > write.end && later.happened < before;
  });
}

void DiskModel::Prune(Block& block) const {
  if (block.readers > 0) return;  // they may still see what would go
  const Block copy = block;
  std::erase_if(block.writes, [&](const Write& write) { return Overwritten(copy, write, sequence_); });
}

uint64_t DiskModel::BeginWrite(Kind kind, uint64_t block, uint64_t count) {
  CLEAT_CHECK(count > 0 && block + count <= blocks_.size());
  const uint64_t stamp = next_stamp_++;
  const uint64_t begin = ++sequence_;
  for (uint64_t i = block; i < block + count; ++i) {
    blocks_[i].writes.push_back({stamp, begin, kPending, kPending, kind != Kind::kData});
  }
  ++writes_in_flight_;
  return stamp;
}

void DiskModel::EndWrite(uint64_t stamp, Kind kind, uint64_t block, uint64_t count, Fate fate) {
  const uint64_t end = ++sequence_;
  for (uint64_t i = block; i < block + count; ++i) {
    auto& writes = blocks_[i].writes;
    const auto found =
        std::find_if(writes.begin(), writes.end(), [&](const Write& w) { return w.stamp == stamp; });
    CLEAT_CHECK(found != writes.end() && found->end == kPending);
    if (fate == Fate::kNever) {
      writes.erase(found);
      continue;
    }
    found->end = end;
    // What a discarded block reads as is not said (virtio 1.2, 5.2.6): what it was, or zeroes.
    if (fate == Fate::kDone && kind != Kind::kDiscard) found->happened = std::min(found->happened, end);
    Prune(blocks_[i]);
  }
  if (fate == Fate::kDone) {
    acknowledged_.resize(next_stamp_);
    acknowledged_[stamp] = true;
  }
  CLEAT_CHECK(writes_in_flight_ > 0);
  --writes_in_flight_;
}

std::optional<uint64_t> DiskModel::OnlyContent(uint64_t block) const {
  const auto& writes = blocks_[block].writes;
  if (writes.size() != 1) return std::nullopt;
  return writes.front().zero ? 0 : writes.front().stamp;
}

bool DiskModel::OnlyChangedBy(uint64_t block, uint64_t stamp, uint64_t before) const {
  const auto& writes = blocks_[block].writes;
  return writes.size() == 2 && writes.back().stamp == stamp &&
         (writes.front().zero ? 0 : writes.front().stamp) == before;
}

DiskModel::Read DiskModel::BeginRead(uint64_t block, uint64_t count) {
  CLEAT_CHECK(count > 0 && block + count <= blocks_.size());
  for (uint64_t i = block; i < block + count; ++i) ++blocks_[i].readers;
  return {++sequence_, block, count};
}

void DiskModel::CancelRead(const Read& read) {
  for (uint64_t i = read.block; i < read.block + read.count; ++i) {
    CLEAT_CHECK(blocks_[i].readers > 0);
    --blocks_[i].readers;
    Prune(blocks_[i]);
  }
}

std::string DiskModel::CheckBlock(uint64_t index, uint64_t read_begin, std::span<const uint8_t> bytes) {
  Block& block = blocks_[index];
  const uint64_t stamp = StampOf(bytes, index);
  const std::string where = name_ + " block " + std::to_string(index);
  for (uint32_t i = 0; i < kWords; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof(word), sizeof(word));
    if (word != Word(stamp, index, i)) return where + " is torn or was never written by anybody";
  }
  std::string allowed;
  for (Write& write : block.writes) {
    if (Overwritten(block, write, read_begin)) continue;
    const uint64_t shows = write.zero ? 0 : write.stamp;
    if (shows == stamp) {
      // Zeroes may be another write's.
      if (stamp != 0) write.happened = std::min(write.happened, ++sequence_);
      return {};
    }
    allowed += (allowed.empty() ? "" : ", ") + Name(shows);
  }
  return where + " holds " + Name(stamp) + " but may hold only: " + allowed;
}

std::string DiskModel::EndRead(const Read& read, std::span<const uint8_t> data) {
  CLEAT_CHECK(data.size() == read.count * kBlockBytes);
  std::string wrong;
  for (uint64_t i = 0; i < read.count && wrong.empty(); ++i) {
    wrong = CheckBlock(read.block + i, read.begin, data.subspan(i * kBlockBytes, kBlockBytes));
  }
  CancelRead(read);
  return wrong;
}

std::string DiskModel::CheckContent(std::span<const uint8_t> content) {
  CLEAT_CHECK(content.size() == blocks_.size() * kBlockBytes);
  const Read all = BeginRead(0, blocks_.size());
  return EndRead(all, content);
}

}  // namespace cleat::sim
