// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/memory/data_buffers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "base/unique_fd.h"

namespace cleat::nvme::fabrics::data_buffers_test {
namespace {

TEST(DataBuffersTest, PiecesOfAllSizesNeverOverlapAndAllComeBack) {
  constexpr uint32_t kSlabs = 5;
  DataBuffers buffers(kSlabs);
  std::mt19937 random(1);
  std::vector<block::Segment> taken;
  std::map<uint64_t, uint64_t> ranges;  // begin and end
  uint32_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      ranges.erase(taken.back().offset_bytes);
      buffers.Give(taken.back());
      taken.pop_back();
      continue;
    }
    const uint32_t bytes = 1 + static_cast<uint32_t>(random() % (uint32_t{1} << (random() % 20)));
    block::Segment piece;
    if (!buffers.Take(bytes, piece)) {
      ++refused;
      continue;
    }
    ASSERT_EQ(piece.length_bytes, bytes);
    ASSERT_EQ(piece.offset_bytes % DataBuffers::kPieceMinBytes, 0U);
    ASSERT_LE(piece.offset_bytes + bytes, uint64_t{kSlabs} * DataBuffers::kSlabBytes);
    const auto after = ranges.lower_bound(piece.offset_bytes);
    ASSERT_TRUE(after == ranges.end() || after->first >= piece.offset_bytes + bytes);
    ASSERT_TRUE(after == ranges.begin() || std::prev(after)->second <= piece.offset_bytes);
    ranges[piece.offset_bytes] = piece.offset_bytes + bytes;
    taken.push_back(piece);
  }
  EXPECT_GT(refused, 0U);
  for (const block::Segment& piece : taken) buffers.Give(piece);
  EXPECT_EQ(buffers.slabs_in_use(), 0U);
}

TEST(DataBuffersTest, WhatNobodyNeedsGoesBackToTheKernelAndTheRestStays) {
  constexpr uint32_t kSlabs = DataBuffers::kSlabsKept + 4;
  DataBuffers buffers(kSlabs);
  std::vector<block::Segment> taken(kSlabs);
  for (block::Segment& piece : taken) {
    ASSERT_TRUE(buffers.Take(DataBuffers::kSlabBytes, piece));
    piece.data()[0] = 1;
  }
  block::Segment none;
  EXPECT_FALSE(buffers.Take(1, none));
  for (const block::Segment& piece : taken) buffers.Give(piece);
  const auto kept = [&taken] {
    uint32_t count = 0;
    for (const block::Segment& piece : taken) count += piece.data()[0];
    return count;
  };
  buffers.Trim();  // they were needed since the one before
  EXPECT_EQ(kept(), kSlabs);
  buffers.Trim();
  EXPECT_EQ(kept(), DataBuffers::kSlabsKept);
}

TEST(DataBuffersTest, APieceWithOtherPagesLeavesItsOldOnesAndItsNeighboursAsTheyAre) {
  DataBuffers buffers(1);
  std::vector<block::Segment> taken(64);
  for (block::Segment& piece : taken) {
    ASSERT_TRUE(buffers.Take(16 * 1024, piece));
    std::fill_n(piece.data(), piece.length_bytes, uint8_t{7});
  }
  // A pipe keeps pages that it was given as the kernel's send queue does.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  iovec given{taken[3].data(), taken[3].length_bytes};
  ASSERT_EQ(vmsplice(writing.get(), &given, 1, 0), 16 * 1024);
  buffers.ReplacePages(taken[3]);
  std::fill_n(taken[3].data(), taken[3].length_bytes, uint8_t{9});
  std::vector<uint8_t> read_back(16 * 1024);
  ASSERT_EQ(read(reading.get(), read_back.data(), read_back.size()), 16 * 1024);
  EXPECT_EQ(read_back, std::vector<uint8_t>(16 * 1024, 7));
  for (const block::Segment& piece : taken) {
    const uint8_t content = &piece == &taken[3] ? 9 : 7;
    EXPECT_EQ(piece.data()[0], content);
    EXPECT_EQ(piece.data()[piece.length_bytes - 1], content);
    buffers.Give(piece);
  }
}

}  // namespace
}  // namespace cleat::nvme::fabrics::data_buffers_test
