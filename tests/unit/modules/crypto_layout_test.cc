// SPDX-License-Identifier: Apache-2.0
// Where the data lies in memory makes no difference to what is on the disk.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/random.h"
#include "block/segments.h"
#include "tests/unit/modules/crypto_rig.h"

namespace cleat::modules::crypto_layout_test {
namespace {

using block::IoStatus;
using block::Op;
using test::Arena;
using test::CryptoRig;
using test::CryptoShape;
using test::Io;

// ThreadSanitizer makes the plain reference many times slower and has little to find in one reactor's thread.
#ifdef CLEAT_TSAN
constexpr int kOneIn = 10;
#else
constexpr int kOneIn = 1;
#endif

// Pieces of these lengths, with some bytes between them, from `at` on.
std::vector<block::Segment> Pieces(const Arena& arena, uint64_t at, const std::vector<uint32_t>& lengths) {
  std::vector<block::Segment> segments;
  for (const uint32_t length : lengths) {
    segments.push_back({&arena.region(), at, length});
    at += length + 3;
  }
  return segments;
}

// Writes random bytes from such pieces and reads them back into others; the disk must hold what the reference computes, the
// memory that was written from must be as it was, and nothing beside the pieces may change on reading.
void RoundTrip(CryptoRig& rig, uint64_t offset, const std::vector<uint32_t>& out,
               const std::vector<uint32_t>& in, uint64_t seed) {
  uint64_t bytes = 0;
  for (const uint32_t length : out) bytes += length;
  const uint64_t room = bytes + 4096;
  Arena source(room);
  Arena target(room);
  const std::vector<uint8_t> noise = test::RandomBytes(room, seed);
  std::memcpy(source.data(), noise.data(), room);
  std::memcpy(target.data(), noise.data(), room);

  Io write;
  write.segments = Pieces(source, 7, out);
  std::vector<uint8_t> plain(bytes);
  block::Gather(write.segments, 0, plain.data(), bytes);
  rig.disk->Start(write, Op::kWrite, offset, bytes);
  ASSERT_EQ(rig.disk->Wait(write), IoStatus::kOk);
  ASSERT_EQ(std::memcmp(source.data(), noise.data(), room), 0) << "a write changed the guest's memory";
  const auto expected = rig.reference.Encrypt(plain, offset);
  ASSERT_EQ(std::memcmp(rig.storage.content.data() + offset, expected.data(), bytes), 0);
  ASSERT_EQ(write.request.op, Op::kWrite);
  ASSERT_EQ(write.request.offset_bytes, offset);
  ASSERT_EQ(write.request.length_bytes, bytes);
  ASSERT_EQ(write.request.segments.data(), write.segments.data());

  Io read;
  read.segments = Pieces(target, 11, in);
  rig.disk->Start(read, Op::kRead, offset, bytes);
  ASSERT_EQ(rig.disk->Wait(read), IoStatus::kOk);
  std::vector<uint8_t> back(bytes);
  block::Gather(read.segments, 0, back.data(), bytes);
  ASSERT_EQ(back, plain);
  std::vector<uint8_t> untouched(noise);
  for (const block::Segment& segment : read.segments)
    std::memcpy(untouched.data() + segment.offset_bytes, segment.data(), segment.length_bytes);
  ASSERT_EQ(std::memcmp(target.data(), untouched.data(), room), 0) << "beside the pieces";
}

TEST(CryptoLayout, ADataUnitMayBeCutAnywhere) {
  for (const CryptoShape& shape : test::kCryptoShapes) {
    CryptoRig rig(shape);
    const uint32_t bytes = std::max(shape.unit_bytes, shape.block_bytes);
    const uint32_t step = shape.unit_bytes == 512 ? 1 : 7;
    for (uint32_t cut = 1; cut < bytes && !testing::Test::HasFatalFailure(); cut += step * kOneIn) {
      RoundTrip(rig, uint64_t{bytes} * 3, {cut, bytes - cut}, {bytes - cut, cut}, cut);
    }
    // Every byte by itself.
    RoundTrip(rig, 0, std::vector<uint32_t>(512, bytes / 512), std::vector<uint32_t>(512, bytes / 512), 1);
  }
}

TEST(CryptoLayout, AnyLayoutAtAnyPlaceAlsoAtTheVeryEnd) {
  Random random(11);
  for (const CryptoShape& shape : test::kCryptoShapes) {
    const uint64_t disk_bytes = uint64_t{shape.block_bytes} * 2501;
    CryptoRig rig(shape, disk_bytes);
    const auto cut = [&](uint64_t bytes) {
      std::vector<uint32_t> lengths;
      for (uint64_t left = bytes; left > 0; left -= lengths.back())
        lengths.push_back(static_cast<uint32_t>(
            lengths.size() > 40 ? left : random.Between(1, std::min(left, random.Between(1, 70'000)))));
      return lengths;
    };
    for (int round = 0; round < 150 / kOneIn && !testing::Test::HasFatalFailure(); ++round) {
      const uint64_t bytes = shape.block_bytes * random.Between(1, random.Between(1, 100));
      const uint64_t blocks = (disk_bytes - bytes) / shape.block_bytes;
      const uint64_t offset = shape.block_bytes * (round % 4 == 0 ? blocks : random.Below(blocks + 1));
      RoundTrip(rig, offset, cut(bytes), cut(bytes), random.Next());
    }
  }
}

TEST(CryptoLayout, RequestsLargerThanABufferGoInParts) {
  for (const CryptoShape& shape : test::kCryptoShapes) {
    if (kOneIn > 1 && shape.unit_bytes == shape.block_bytes) continue;  // one shape is left
    for (const BouncePool::Limits limits :
         {BouncePool::Limits{}, BouncePool::Limits{1, 1}, BouncePool::Limits{1, 3}}) {
      CryptoRig rig(shape, 8 << 20, limits);
      const uint32_t bytes = (3 << 20) + 4096;
      RoundTrip(rig, 8192, {bytes}, {bytes}, 3);
      RoundTrip(rig, 8192, {100'001, bytes - 100'001}, {bytes - 13, 13}, 4);
    }
  }
}

TEST(CryptoLayout, RandomRequestsAgainstACopyAndTheReference) {
  uint64_t seed = 1;
  for (const CryptoShape& shape : test::kCryptoShapes) {
    for (const BouncePool::Limits limits : {BouncePool::Limits{}, BouncePool::Limits{2, 2}}) {
      constexpr uint64_t kBytes = 4 << 20;
      CryptoRig rig(shape, kBytes, limits);
      for (uint64_t at = 0; at < kBytes; at += kCryptoZeroBytesMax)
        ASSERT_EQ(rig.disk->Do(Op::kWriteZeroes, at, kCryptoZeroBytesMax), IoStatus::kOk);
      test::RandomLoad load(*rig.disk, ++seed, 0, kBytes, test::RandomLoad::Discards::kNone);
      load.Run(1500 / kOneIn);
      EXPECT_EQ(rig.Plain(0, kBytes), load.reference());
    }
  }
}

}  // namespace
}  // namespace cleat::modules::crypto_layout_test
