// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/nvme/tcp/peer.h"

namespace cleat::nvme::tcp {
namespace {

std::vector<uint8_t> Counted(int first, int step) {
  std::vector<uint8_t> bytes(32);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(first + step * static_cast<int>(i));
  return bytes;
}

TEST(Crc32c, IsWhatTheExamplesOfRfc3720Say) {
  const auto of = [](const std::vector<uint8_t>& bytes) { return Crc32cOf(bytes.data(), bytes.size()); };
  EXPECT_EQ(of(std::vector<uint8_t>(32, 0)), 0x8a9136aaU);
  EXPECT_EQ(of(std::vector<uint8_t>(32, 0xff)), 0x62a8ab43U);
  EXPECT_EQ(of(Counted(0, 1)), 0x46dd794eU);
  EXPECT_EQ(of(Counted(31, -1)), 0x113fdb5cU);
  EXPECT_EQ(Crc32cOf("123456789", 9), 0xe3069283U);
  EXPECT_EQ(Crc32cOf(nullptr, 0), 0U);
}

struct Way {
  std::string name;
  uint32_t (*state_after)(uint32_t state, const void* data, size_t bytes);
};

// Those that this processor has.
std::vector<Way> Ways() {
  std::vector<Way> ways{{"table", Crc32cByTable}};
  if (ProcessorHasCrc32c()) ways.push_back({"instruction", Crc32cByProcessor});
  if (ProcessorFoldsCrc32c()) ways.push_back({"folded", Crc32cFolded});
  return ways;
}

std::vector<uint8_t> RandomBytes(std::mt19937& random, size_t bytes) {
  std::vector<uint8_t> made(bytes);
  for (uint8_t& byte : made) byte = static_cast<uint8_t>(random());
  return made;
}

uint32_t BitByBit(uint32_t state, uint8_t byte) {
  state ^= byte;
  for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78 : 0);
  return state;
}

TEST(Crc32c, IsWhatTheExamplesSayByEachWay) {
  for (const Way& way : Ways()) {
    EXPECT_EQ(~way.state_after(0xffffffff, "123456789", 9), 0xe3069283U) << way.name;
    EXPECT_EQ(way.state_after(0x12345678, nullptr, 0), 0x12345678U) << way.name;
    // What one bit says of itself: x^0 is the highest bit of the last byte, and x^32 mod P the polynomial.
    std::vector<uint8_t> bytes(4096);
    bytes.back() = 0x80;
    EXPECT_EQ(way.state_after(0, bytes.data(), bytes.size()), 0x82f63b78U) << way.name;
  }
}

TEST(Crc32c, IsTheSameByEachWayForEachLengthPlaceAndState) {
  constexpr size_t kLengths = 2101;
  constexpr size_t kPlaces = 64;
  std::mt19937 random(1);
  const std::vector<uint8_t> bytes = RandomBytes(random, kLengths + kPlaces);
  std::vector<Way> ways = Ways();
  for (size_t place = 0; place < kPlaces; ++place) {
    if (place == sizeof(uint64_t)) ways.erase(ways.begin());  // the table: takes long, loads words at most
    const uint8_t* const at = bytes.data() + place;
    const uint32_t state = place % 2 == 0 ? 0xffffffff : static_cast<uint32_t>(random());
    uint32_t right = state;
    for (size_t length = 0; length < kLengths; ++length) {
      for (const Way& way : ways)
        ASSERT_EQ(way.state_after(state, at, length), right) << way.name << ' ' << length << " at " << place;
      right = BitByBit(right, at[length]);
    }
  }
}

TEST(Crc32c, IsTheSameByEachWayForLongOnes) {
  constexpr size_t kLongest = 1 << 20;
  std::mt19937 random(2);
  const std::vector<uint8_t> bytes = RandomBytes(random, kLongest);
  const std::vector<Way> ways = Ways();
  std::vector<size_t> lengths{4096, 16'384, 131'072, kLongest};
  for (int i = 0; i < 20; ++i) lengths.push_back(random() % kLongest);
  for (const size_t length : lengths) {
    const uint8_t* const at = bytes.data() + random() % (kLongest - length + 1);
    const auto state = static_cast<uint32_t>(random());
    const uint32_t right = Crc32cByTable(state, at, length);  // whose tables the shorter ones have all used
    for (const Way& way : ways)
      ASSERT_EQ(way.state_after(state, at, length), right) << way.name << ' ' << length;
  }
}

TEST(Crc32c, OfTwoPiecesIsThatOfTheWholeWhereverTheCutIs) {
  std::mt19937 random(3);
  const std::vector<uint8_t> bytes = RandomBytes(random, 2100);
  for (const Way& way : Ways()) {
    const uint32_t whole = ~test::SlowCrc(bytes.data(), bytes.size());
    for (size_t cut = 0; cut <= bytes.size(); ++cut) {
      const uint32_t first = way.state_after(0xffffffff, bytes.data(), cut);
      ASSERT_EQ(way.state_after(first, bytes.data() + cut, bytes.size() - cut), whole)
          << way.name << ' ' << cut;
    }
  }
}

TEST(Crc32c, OfPiecesIsThatOfTheWhole) {
  std::vector<uint8_t> bytes(10'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * i);
  for (const size_t piece : {1, 3, 100, 3072, 4096}) {
    Crc32c crc;
    for (size_t at = 0; at < bytes.size(); at += piece)
      crc.Update(bytes.data() + at, std::min(piece, bytes.size() - at));
    EXPECT_EQ(crc.value(), Crc32cOf(bytes.data(), bytes.size())) << piece;
  }
}

TEST(Crc32c, IsTheSameWithoutTheFasterWays) {
  std::mt19937 random(4);
  const std::vector<uint8_t> bytes = RandomBytes(random, 5000);
  const uint32_t right = test::SlowCrc(bytes.data(), bytes.size());
  for (const Crc32cWay fastest : {Crc32cWay::kTable, Crc32cWay::kInstruction, Crc32cWay::kFolded}) {
    SetCrc32cWay(fastest);  // the last one as at the beginning
    EXPECT_EQ(Crc32cOf(bytes.data(), bytes.size()), right) << static_cast<int>(fastest);
  }
}

}  // namespace
}  // namespace cleat::nvme::tcp
