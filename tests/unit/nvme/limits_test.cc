// SPDX-License-Identifier: Apache-2.0
#include "nvme/limits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <vector>

#include "base/random.h"
#include "nvme/data_piece.h"

namespace cleat::nvme::limits_test {
namespace {

constexpr uint64_t kKiB = 1024;

Limits Make(const ControllerInfo& controller, NamespaceInfo space, const TransportLimits& transport = {}) {
  if (space.block_bytes == 0) space.block_bytes = 512;
  return Limits(controller, space, {}, transport);
}

TEST(Limits, TheLeastOfWhatDriveAndKernelTake) {
  ControllerInfo controller;
  controller.transfer_bytes_max = 512 * kKiB;
  EXPECT_EQ(Make(controller, {}).transfer_bytes_max(), 512 * kKiB);
  EXPECT_EQ(Make(controller, {}, {.transfer_bytes_max = 128 * kKiB}).transfer_bytes_max(), 128 * kKiB);
  EXPECT_EQ(Make(controller, {}, {.transfer_bytes_max = 1300}).transfer_bytes_max(), 1024U) << "whole blocks";
  EXPECT_EQ(Make({}, {}).transfer_bytes_max(), 1024 * kKiB) << "no limit";
  EXPECT_GT(Make({}, {}).data().pages, 0U);
  EXPECT_EQ(Make({}, {}, {.pages_max = 127}).data().pages, 127U);
}

TEST(Limits, CommandsThatADriveHasNot) {
  EXPECT_EQ(Make({}, {}).write_zeroes_bytes_max(), 0U);
  EXPECT_EQ(Make({}, {}).discard_bytes_max(), 0U);
  ControllerInfo controller;
  controller.write_zeroes = true;
  controller.dataset_management = true;
  EXPECT_EQ(Make(controller, {}).write_zeroes_bytes_max(), uint64_t{kBlocksMax} * 512)
      << "what the field holds";
  EXPECT_EQ(Make(controller, {}).discard_bytes_max(), uint64_t{UINT32_MAX} * 512);
  controller.transfer_bytes_max = 256 * kKiB;
  EXPECT_EQ(Make(controller, {}).write_zeroes_bytes_max(), 256 * kKiB);
  EXPECT_EQ(Make(controller, {}, {.write_zeroes = false}).write_zeroes_bytes_max(), 0U)
      << "the kernel knows better";
  NamespaceInfo space;
  space.block_bytes = 4096;
  const Limits limits(controller, space, {.write_zeroes_bytes_max = 64 * kKiB, .discard_blocks_max = 10}, {});
  EXPECT_EQ(limits.write_zeroes_bytes_max(), 64 * kKiB);
  EXPECT_EQ(limits.discard_bytes_max(), 40960U);
}

TEST(Limits, ATransferEndsAtTheBoundaryThatTheDriveNames) {
  NamespaceInfo space;
  space.boundary_blocks = 256;  // 128 KiB
  const Limits limits = Make({}, space);
  EXPECT_EQ(limits.TransferBytes(0, 4096), 4096U);
  EXPECT_EQ(limits.TransferBytes(0, 1024 * kKiB), 128 * kKiB);
  EXPECT_EQ(limits.TransferBytes(124 * kKiB, 8 * kKiB), 4 * kKiB);
  EXPECT_EQ(limits.TransferBytes(128 * kKiB, 8 * kKiB), 8 * kKiB);
}

// ---- The memory of one command

// Memory of which only the addresses count; it begins with a page.
std::shared_ptr<block::MemoryRegion> AnyRegion(uint64_t bytes) {
  static std::vector<uint8_t> memory(64 << 20);
  return block::MemoryRegion::Borrow(
      memory.data() + (kPageBytes - std::bit_cast<uintptr_t>(memory.data()) % kPageBytes), bytes);
}

uint64_t PagesOf(const iovec& piece) {
  const auto begin = std::bit_cast<uintptr_t>(piece.iov_base);
  return (begin + piece.iov_len - 1) / kPageBytes - begin / kPageBytes + 1;
}

constexpr DataLimits kLimits{.pages = 128, .block_bytes = 512, .memory_align = 4};

TEST(DataPiece, TakesWhatOneCommandMayTouch) {
  const auto region = AnyRegion(1 << 20);
  const std::vector<block::Segment> segments{{region.get(), 512, 1 << 19}};
  std::vector<iovec> iovecs(8);
  // 512 KiB that begin within a page touch 129 of them.
  DataPiece piece = TakeData(segments, 0, 1 << 19, kLimits, iovecs);
  EXPECT_EQ(piece.iovecs, 1U);
  EXPECT_EQ(piece.bytes, (1U << 19) - 512);
  piece = TakeData(segments, piece.bytes, 512, kLimits, iovecs);
  EXPECT_EQ(piece.bytes, 512U);
  EXPECT_EQ(iovecs[0].iov_base, segments[0].data() + (1 << 19) - 512);
}

TEST(DataPiece, EndsAtAGapThatNoListOfPagesHas) {
  const auto region = AnyRegion(1 << 20);
  std::vector<iovec> iovecs(8);
  // Whole pages but at the ends: one command.
  const std::vector<block::Segment> whole{
      {region.get(), 3584, 512}, {region.get(), 8192, 4096}, {region.get(), 40960, 512}};
  EXPECT_FALSE(NeedsCopy(whole, kLimits));
  DataPiece piece = TakeData(whole, 0, 5120, kLimits, iovecs);
  EXPECT_EQ(piece.bytes, 5120U);
  EXPECT_EQ(piece.iovecs, 3U);
  // A gap: two.
  const std::vector<block::Segment> gap{{region.get(), 0, 1024}, {region.get(), 8192, 1024}};
  EXPECT_FALSE(NeedsCopy(gap, kLimits));
  EXPECT_EQ(TakeData(gap, 0, 2048, kLimits, iovecs).bytes, 1024U);
  EXPECT_EQ(TakeData(gap, 1024, 1024, kLimits, iovecs).bytes, 1024U);
  // What goes on where the last one ended is no gap, and no page more.
  const std::vector<block::Segment> joined{
      {region.get(), 0, 1024}, {region.get(), 1024, 1024}, {region.get(), 2048, 4096}};
  piece = TakeData(joined, 0, 6144, {.pages = 2, .block_bytes = 512, .memory_align = 4}, iovecs);
  EXPECT_EQ(piece.iovecs, 1U);
  EXPECT_EQ(piece.bytes, 6144U);
}

TEST(DataPiece, WhatADriveCantBeGivenIsCopied) {
  const auto region = AnyRegion(1 << 20);
  const auto needs = [&](std::vector<block::Segment> segments) {
    for (block::Segment& segment : segments) segment.region = region.get();
    return NeedsCopy(segments, kLimits);
  };
  EXPECT_FALSE(needs({{nullptr, 4, 512}}));
  EXPECT_TRUE(needs({{nullptr, 2, 512}})) << "an address that is no multiple of 4";
  EXPECT_TRUE(needs({{nullptr, 0, 510}, {nullptr, 510, 2}})) << "a length";
  EXPECT_TRUE(needs({{nullptr, 0, 256}, {nullptr, 8192, 256}})) << "a gap within a block";
  EXPECT_FALSE(needs({{nullptr, 3840, 256}, {nullptr, 8192, 256}}))
      << "a page's end and another one's beginning";
  EXPECT_FALSE(needs({{nullptr, 0, 256}, {nullptr, 256, 256}}));
}

// Whatever the memory is cut into, if it needs no copy: commands cover it once, in order, in whole blocks, within their limits.
TEST(DataPiece, CommandsCoverARequestOnce) {
  Random random(7);
  int covered = 0;
  for (int round = 0; round < 20000; ++round) {
    const uint32_t block_bytes = random.Chance(1, 2) ? 512 : 4096;
    const DataLimits limits{.pages = static_cast<uint32_t>(random.Between(2, 128)),
                            .block_bytes = block_bytes,
                            .memory_align = 4};
    const uint64_t total = block_bytes * random.Between(1, 100);
    const auto region = AnyRegion(32 << 20);
    const uint64_t kind = random.Below(3);  // gaps between blocks; whole pages; pieces that go on
    std::vector<block::Segment> segments;
    uint64_t at = 4 * random.Below(1024);
    for (uint64_t left = total; left > 0;) {
      uint64_t bytes = 4 * random.Between(1, 1 << random.Between(1, 14));
      if (kind == 0) bytes = block_bytes * random.Between(1, 8);
      if (kind == 1) bytes = kPageBytes * random.Between(1, 8) - at % kPageBytes;
      bytes = std::min(bytes, left);
      segments.push_back({region.get(), at, static_cast<uint32_t>(bytes)});
      at += bytes;
      if (kind == 0) at += 4 * random.Below(2000);
      if (kind == 1) at = (at + kPageBytes - 1) / kPageBytes * kPageBytes + kPageBytes * random.Below(3);
      left -= bytes;
    }
    if (NeedsCopy(segments, limits)) continue;
    ++covered;
    std::vector<iovec> iovecs(random.Between(2, 64));
    uint64_t segment = 0;
    uint64_t within = 0;
    for (uint64_t done = 0; done < total;) {
      const DataPiece piece = TakeData(segments, done, total - done, limits, iovecs);
      ASSERT_GT(piece.bytes, 0U);
      ASSERT_EQ(piece.bytes % block_bytes, 0U);
      uint64_t bytes = 0;
      uint64_t pages = 0;
      const uint8_t* end = nullptr;
      for (uint32_t i = 0; i < piece.iovecs; ++i) {
        const auto* base = static_cast<uint8_t*>(iovecs[i].iov_base);
        ASSERT_TRUE(end == nullptr || Joins(end, base));
        // One iovec may be several segments that go on.
        for (uint64_t taken = 0; taken < iovecs[i].iov_len;) {
          if (within == segments[segment].length_bytes) within = 0, ++segment;
          ASSERT_EQ(base + taken, segments[segment].data() + within);
          const uint64_t part =
              std::min<uint64_t>(iovecs[i].iov_len - taken, segments[segment].length_bytes - within);
          taken += part;
          within += part;
        }
        end = base + iovecs[i].iov_len;
        bytes += iovecs[i].iov_len;
        pages += PagesOf(iovecs[i]);
      }
      ASSERT_EQ(bytes, piece.bytes);
      ASSERT_LE(pages, limits.pages);
      done += bytes;
    }
  }
  EXPECT_GT(covered, 5000);
}

}  // namespace
}  // namespace cleat::nvme::limits_test
