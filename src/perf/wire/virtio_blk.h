// SPDX-License-Identifier: Apache-2.0
// virtio-blk (virtio 1.2, 5.2): features, configuration space, requests.
// Written from the specification, on purpose apart from what the engine uses: each side of the tests has its own
// reading of it, and a wrong one shows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace cleat::perf::wire {

static_assert(std::endian::native == std::endian::little, "requests are read in place");

// Features (5.2.3).
inline constexpr uint64_t kBlkSizeMax = 1ULL << 1;
inline constexpr uint64_t kBlkSegMax = 1ULL << 2;
inline constexpr uint64_t kBlkGeometry = 1ULL << 4;
inline constexpr uint64_t kBlkReadOnly = 1ULL << 5;
inline constexpr uint64_t kBlkBlkSize = 1ULL << 6;
inline constexpr uint64_t kBlkFlush = 1ULL << 9;
inline constexpr uint64_t kBlkTopology = 1ULL << 10;
inline constexpr uint64_t kBlkConfigWce = 1ULL << 11;
inline constexpr uint64_t kBlkMq = 1ULL << 12;
inline constexpr uint64_t kBlkDiscard = 1ULL << 13;
inline constexpr uint64_t kBlkWriteZeroes = 1ULL << 14;

// The configuration space up to and with write zeroes (5.2.4).
struct __attribute__((packed)) BlkConfig {
  uint64_t capacity_sectors;
  uint32_t size_max;
  uint32_t seg_max;
  uint16_t cylinders;
  uint8_t heads;
  uint8_t sectors;
  uint32_t blk_size;
  uint8_t physical_block_exp;
  uint8_t alignment_offset;
  uint16_t min_io_size;
  uint32_t opt_io_size;
  uint8_t writeback;
  uint8_t unused0;
  uint16_t num_queues;
  uint32_t max_discard_sectors;
  uint32_t max_discard_seg;
  uint32_t discard_sector_alignment;
  uint32_t max_write_zeroes_sectors;
  uint32_t max_write_zeroes_seg;
  uint8_t write_zeroes_may_unmap;
  uint8_t unused1[3];
};
static_assert(sizeof(BlkConfig) == 60);
inline constexpr uint32_t kBlkConfigWritebackOffset = offsetof(BlkConfig, writeback);

// Request types and statuses (5.2.6).
enum BlkType : uint32_t {
  kBlkIn = 0,
  kBlkOut = 1,
  kBlkTypeFlush = 4,
  kBlkGetId = 8,
  kBlkTypeDiscard = 11,
  kBlkTypeWriteZeroes = 13,
};
enum BlkStatus : uint8_t { kBlkOk = 0, kBlkIoError = 1, kBlkUnsupported = 2 };

struct BlkHeader {
  uint32_t type;
  uint32_t reserved;
  uint64_t sector;
};
static_assert(sizeof(BlkHeader) == 16);

struct BlkRange {  // discard and write zeroes
  uint64_t sector;
  uint32_t sectors;
  uint32_t flags;  // kBlkRangeUnmap
};
static_assert(sizeof(BlkRange) == 16);
inline constexpr uint32_t kBlkRangeUnmap = 1;
inline constexpr uint32_t kBlkIdBytes = 20;
inline constexpr uint32_t kSectorBytes = 512;

}  // namespace cleat::perf::wire
