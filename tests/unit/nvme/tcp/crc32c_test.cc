// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/crc32c.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
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

TEST(Crc32c, IsTheSameByTableAndByProcessorForEachLengthAndPlace) {
  std::mt19937 random(1);
  std::vector<uint8_t> bytes(20'000);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  for (size_t length = 0; length < bytes.size() - 16; length += length < 800 ? 1 : 97) {
    const uint8_t* const at = bytes.data() + length % 9;
    const uint32_t right = ~test::SlowCrc(at, length);
    ASSERT_EQ(Crc32cByTable(0xffffffff, at, length), right) << length;
    if (ProcessorHasCrc32c()) {
      ASSERT_EQ(Crc32cByProcessor(0xffffffff, at, length), right) << length;
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

}  // namespace
}  // namespace cleat::nvme::tcp
