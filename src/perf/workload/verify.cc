// SPDX-License-Identifier: Apache-2.0
// A sector is 64 words of 8 bytes: magic, disk, offset, generation, then 59 words that are a function of
// these and of their position, then a checksum over all before it. A sector with a wrong checksum is torn
// when it begins as one write of its block (or zeroes) and goes on to its end as another; anything else is
// corrupt.
#include "perf/workload/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "perf/wire/virtio_blk.h"

namespace cleat::perf {
namespace {

constexpr uint64_t kMagic = 0x0132'746b'6361'6c43ULL;
constexpr size_t kWords = wire::kSectorBytes / sizeof(uint64_t);
enum Word : size_t {
  kWordMagic,
  kWordDisk,
  kWordOffset,
  kWordGeneration,
  kWordBody,
  kWordChecksum = kWords - 1
};

using Sector = std::array<uint64_t, kWords>;

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

uint64_t BodyWord(uint64_t seed, size_t position) {
  return Mix(seed + position * 0x9e3779b97f4a7c15ULL);
}

uint64_t Checksum(const Sector& sector) {
  uint64_t sum = 0;
  for (size_t i = 0; i < kWordChecksum; ++i) sum = Mix(sum ^ sector[i]);
  return sum;
}

Sector MakeSector(uint64_t disk_id, uint64_t offset_bytes, uint32_t generation) {
  Sector words{};
  words[kWordMagic] = kMagic;
  words[kWordDisk] = disk_id;
  words[kWordOffset] = offset_bytes;
  words[kWordGeneration] = generation;
  const uint64_t seed =
      Mix(disk_id + 0x9e3779b97f4a7c15ULL) ^ Mix(offset_bytes + 1) ^ Mix(~uint64_t{generation});
  for (size_t i = kWordBody; i < kWordChecksum; ++i) words[i] = BodyWord(seed, i);
  words[kWordChecksum] = Checksum(words);
  return words;
}

// Only these many of a block's last writes are tried when a sector looks torn.
constexpr uint32_t kTornGenerationsMax = 16;

// The head of one candidate and the tail of another: zeroes (if they count) and the writes from `newest` down to
// `oldest`. Byte by byte, since a tear need not keep to words.
struct TornFrom {
  bool zeroes = true;
  uint32_t oldest = 1;
  uint32_t newest = 0;
};
bool IsTorn(const Sector& found, uint64_t disk_id, uint64_t offset_bytes, const TornFrom& from) {
  const auto* begin = reinterpret_cast<const uint8_t*>(found.data());
  const uint8_t* end = begin + sizeof found;
  ptrdiff_t prefix_max = 0;
  ptrdiff_t suffix_max = 0;
  const auto consider = [&](const Sector& candidate) {
    const auto* other = reinterpret_cast<const uint8_t*>(candidate.data());
    prefix_max = std::max(prefix_max, std::mismatch(begin, end, other).first - begin);
    const auto from_end = std::mismatch(std::make_reverse_iterator(end), std::make_reverse_iterator(begin),
                                        std::make_reverse_iterator(other + sizeof candidate));
    suffix_max = std::max(suffix_max, from_end.first - std::make_reverse_iterator(end));
  };
  if (from.zeroes) consider(Sector{});
  for (uint32_t i = 0; i < kTornGenerationsMax && i < from.newest && from.newest - i >= from.oldest; ++i) {
    consider(MakeSector(disk_id, offset_bytes, from.newest - i));
  }
  return prefix_max + suffix_max >= end - begin;
}

}  // namespace

const char* BlockFaultName(BlockFault fault) {
  switch (fault) {
    case BlockFault::kNone:
      return "none";
    case BlockFault::kTorn:
      return "torn";
    case BlockFault::kStale:
      return "stale";
    case BlockFault::kLost:
      return "lost";
    case BlockFault::kMisplaced:
      return "misplaced";
    case BlockFault::kCorrupt:
      return "corrupt";
  }
  return "?";
}

std::string BlockFinding::ToString() const {
  std::string text = fmt::format("{} at byte {}: generation {}, expected {} or later", BlockFaultName(fault),
                                 offset_bytes, generation, generation_expected);
  if (fault == BlockFault::kMisplaced) text += fmt::format("; it belongs to byte {}", offset_found_bytes);
  return text;
}

StampedBlocks::StampedBlocks(uint64_t disk_bytes, uint32_t block_bytes, uint64_t disk_id, bool initially_zero)
    : block_bytes_(block_bytes), disk_id_(disk_id), initially_zero_(initially_zero) {
  CLEAT_CHECK(block_bytes > 0 && block_bytes % wire::kSectorBytes == 0 && disk_bytes % block_bytes == 0);
  Block fresh;
  if (!initially_zero) fresh.zeroed = kNeverZero;
  blocks_.resize(disk_bytes / block_bytes, fresh);
}

void StampedBlocks::BeginWrite(uint64_t offset_bytes, std::span<uint8_t> data) {
  CLEAT_CHECK(offset_bytes % block_bytes_ == 0 && data.size() % block_bytes_ == 0);
  CLEAT_CHECK(offset_bytes <= disk_bytes() && data.size() <= disk_bytes() - offset_bytes);
  for (uint64_t done = 0; done < data.size(); done += wire::kSectorBytes) {
    const uint64_t at = offset_bytes + done;
    Block& block = blocks_[at / block_bytes_];
    if (at % block_bytes_ == 0) ++block.issued;
    const Sector sector = MakeSector(disk_id_, at, block.issued);
    std::memcpy(data.data() + done, sector.data(), sizeof sector);
  }
}

void StampedBlocks::BeginZero(uint64_t offset_bytes, uint64_t length_bytes) {
  CLEAT_CHECK(offset_bytes % block_bytes_ == 0 && length_bytes % block_bytes_ == 0);
  CLEAT_CHECK(offset_bytes <= disk_bytes() && length_bytes <= disk_bytes() - offset_bytes);
  for (uint64_t at = offset_bytes; at < offset_bytes + length_bytes; at += block_bytes_) {
    Block& block = blocks_[at / block_bytes_];
    block.zeroed = ++block.issued;
  }
}

void StampedBlocks::Acknowledge(uint64_t offset_bytes, uint64_t length_bytes) {
  CLEAT_CHECK(offset_bytes % block_bytes_ == 0 && length_bytes % block_bytes_ == 0);
  CLEAT_CHECK(offset_bytes <= disk_bytes() && length_bytes <= disk_bytes() - offset_bytes);
  for (uint64_t at = offset_bytes; at < offset_bytes + length_bytes; at += block_bytes_) {
    Block& block = blocks_[at / block_bytes_];
    block.acknowledged = block.issued;
  }
}

StampedBlocks::SectorContent StampedBlocks::ReadSector(uint64_t offset_bytes, uint32_t issued,
                                                       const uint8_t* sector) const {
  Sector words;
  std::memcpy(words.data(), sector, sizeof words);
  SectorContent content;
  if (std::all_of(words.begin(), words.end(), [](uint64_t word) { return word == 0; })) {
    content.zero = true;
    return content;
  }
  content.offset_bytes = words[kWordOffset];
  content.generation = static_cast<uint32_t>(words[kWordGeneration]);
  if (words[kWordMagic] == kMagic && words[kWordChecksum] == Checksum(words)) {
    const bool here = words[kWordDisk] == disk_id_ && words[kWordOffset] == offset_bytes;
    content.fault = here ? BlockFault::kNone : BlockFault::kMisplaced;
  } else {
    content.fault =
        IsTorn(words, disk_id_, offset_bytes, {.newest = issued}) ? BlockFault::kTorn : BlockFault::kCorrupt;
  }
  return content;
}

// Every sector whole or torn, and nothing in it that is older than what has to be there.
bool StampedBlocks::TornAsItMay(const Block& block, uint64_t offset_bytes, const uint8_t* data) const {
  const uint32_t least = std::max(block.acknowledged, block.seen);
  if (!may_tear_ || block.issued == least) return false;
  const TornFrom from{.zeroes = least == 0 || (block.zeroed != kNeverZero && block.zeroed >= least),
                      .oldest = std::max(least, 1U),
                      .newest = block.issued};
  for (uint32_t done = 0; done < block_bytes_; done += wire::kSectorBytes) {
    Sector words;
    std::memcpy(words.data(), data + done, sizeof words);
    if (!IsTorn(words, disk_id_, offset_bytes + done, from)) return false;
  }
  return true;
}

BlockFinding StampedBlocks::CheckBlock(Block& block, uint64_t offset_bytes, const uint8_t* data) const {
  BlockFinding finding;
  finding.generation_expected = std::max(block.acknowledged, block.seen);
  uint32_t first_generation = 0;
  for (uint32_t done = 0; done < block_bytes_; done += wire::kSectorBytes) {
    const SectorContent content = ReadSector(offset_bytes + done, block.issued, data + done);
    finding.offset_bytes = offset_bytes + done;
    finding.generation = content.generation;
    if (content.fault != BlockFault::kNone) {
      // What was there before our first write is nobody's business if it was never promised to be zeroes.
      if (block.acknowledged == 0 && block.seen == 0 && !initially_zero_) return {};
      finding.fault = content.fault;
      finding.offset_found_bytes = content.offset_bytes;
      return finding;
    }
    // Zeroes where a block was never zeroed are as old as can be.
    if (content.zero) finding.generation = block.zeroed == kNeverZero ? 0 : block.zeroed;
    if (finding.generation > block.issued) {
      finding.fault = BlockFault::kCorrupt;
      return finding;
    }
    if (done == 0) first_generation = finding.generation;
    if (finding.generation != first_generation) {
      finding.fault = BlockFault::kTorn;
      return finding;
    }
  }
  if (finding.generation < finding.generation_expected) {
    finding.fault = finding.generation < block.seen ? BlockFault::kStale : BlockFault::kLost;
    finding.offset_bytes = offset_bytes;
    return finding;
  }
  block.seen = finding.generation;
  return finding;
}

BlockFinding StampedBlocks::Check(uint64_t offset_bytes, std::span<const uint8_t> data) {
  CLEAT_CHECK(offset_bytes % block_bytes_ == 0 && data.size() % block_bytes_ == 0);
  CLEAT_CHECK(offset_bytes <= disk_bytes() && data.size() <= disk_bytes() - offset_bytes);
  for (uint64_t done = 0; done < data.size(); done += block_bytes_) {
    const uint64_t at = offset_bytes + done;
    Block& block = blocks_[at / block_bytes_];
    const BlockFinding finding = CheckBlock(block, at, data.data() + done);
    const bool torn_as_it_may =
        finding.fault == BlockFault::kTorn && TornAsItMay(block, at, data.data() + done);
    if (!finding.ok() && !torn_as_it_may) return finding;
  }
  return {};
}

}  // namespace cleat::perf
