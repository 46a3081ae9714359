// SPDX-License-Identifier: Apache-2.0
#include "pool/extent_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "pool/layout.h"

namespace cleat::pool::extent_map_test {
namespace {

constexpr uint64_t kExtent = kExtentBytesMin;

uint64_t Of(uint64_t extent) {
  return kDataOffset + extent * kExtent;
}

TEST(ExtentMap, OfAWholeDriveHasEachByteWhereItIs) {
  const ExtentMap map;
  EXPECT_TRUE(map.is_whole_drive());
  for (const uint64_t at : {uint64_t{0}, uint64_t{4096}, (uint64_t{1} << 62) + 512}) {
    EXPECT_EQ(map.At(at).first_byte, at);
    EXPECT_EQ(map.At(at).end(), uint64_t{1} << 63);
  }
}

TEST(ExtentMap, GoesOverTheRunsInTheirOrder) {
  const ExtentMap map(kExtent, {{5, 1}, {2, 2}, {9, 1}, {0, 1}});
  EXPECT_FALSE(map.is_whole_drive());
  EXPECT_EQ(map.size_bytes(), 5 * kExtent);
  EXPECT_EQ(map.At(0), (DriveRange{Of(5), kExtent}));
  EXPECT_EQ(map.At(kExtent - 512), (DriveRange{Of(6) - 512, 512}));
  EXPECT_EQ(map.At(kExtent), (DriveRange{Of(2), 2 * kExtent}));
  EXPECT_EQ(map.At(3 * kExtent + 4096), (DriveRange{Of(9) + 4096, kExtent - 4096}));
  EXPECT_EQ(map.At(5 * kExtent - 1), (DriveRange{Of(1) - 1, 1}));
  EXPECT_EQ(map.At(5 * kExtent).bytes, 0U) << "the disk's end";
  EXPECT_EQ(map.Ranges(), (std::vector<DriveRange>{
                              {Of(5), kExtent}, {Of(2), 2 * kExtent}, {Of(9), kExtent}, {Of(0), kExtent}}));
}

// Neighbours are one, however the runs were written down.
TEST(ExtentMap, NeighboursAreOnePiece) {
  const ExtentMap map(kExtent, {{3, 1}, {4, 2}, {6, 1}, {2, 1}});
  EXPECT_EQ(map.At(kExtent / 2), (DriveRange{Of(3) + kExtent / 2, 4 * kExtent - kExtent / 2}));
  EXPECT_EQ(map.At(4 * kExtent), (DriveRange{Of(2), kExtent})) << "backwards is no neighbour";
  EXPECT_EQ(map.Ranges().size(), 2U);
}

TEST(ExtentMap, HasRoomForTheLargestPool) {
  const ExtentMap map(kExtentBytesMax, {{0, kExtentsMax}});
  EXPECT_EQ(map.At(kExtentsMax * kExtentBytesMax - 1).first_byte,
            kDataOffset + kExtentsMax * kExtentBytesMax - 1);
}

}  // namespace
}  // namespace cleat::pool::extent_map_test
