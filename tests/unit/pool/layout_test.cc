// SPDX-License-Identifier: Apache-2.0
#include "pool/layout.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>

#include "base/random.h"

namespace cleat::pool::layout_test {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

Label ALabel() {
  Label label;
  label.pool = *UidOf("00112233445566778899aabbccddeeff");
  label.host = *UidOf("0f0e0d0c0b0a09080706050403020100");
  label.extent_bytes = kExtentBytesDefault;
  label.extents = 100;
  label.name = "nvme0";
  return label;
}

Map AMap() {
  Map map;
  map.pool = ALabel().pool;
  map.generation = 7;
  map.disks = {
      {.identity = 0x0102030405060708,
       .deleted = false,
       .extents = {{3, 2}, {0, 1}},
       .description = "disks/a"},
      {.identity = 9, .deleted = true, .extents = {{99, 1}}, .description = std::string("\0\xff", 2)},
      {.identity = 10, .deleted = false, .extents = {}, .description = ""}};
  return map;
}

std::span<const uint8_t, kBlockBytes> Block(const Bytes& bytes) {
  return std::span(bytes).first<kBlockBytes>();
}

Bytes LabelBytes(const Label& label, size_t copy = 0) {
  const auto block = Encode(label, copy);
  return {block.begin(), block.end()};
}

void Put(Bytes& bytes, size_t at, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) bytes[at + i] = static_cast<uint8_t>(value >> 8 * i);
}

uint64_t Get(const Bytes& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{bytes[at + i]} << 8 * i;
  return value;
}

// Gives the bytes a right checksum, as somebody who knows the format would, so that the content alone is wrong.
void Seal(Bytes& bytes) {
  uLong crc = crc32_z(0, bytes.data(), 12);
  crc = crc32_z(crc, bytes.data() + 16, bytes.size() - 16);
  Put(bytes, 12, crc, 4);
}

ErrorCode CodeOf(const Result<std::optional<Label>>& result) {
  return result.ok() ? ErrorCode::kInternal : result.error().code;
}

ErrorCode MapCode(const Bytes& bytes, const Label& label = ALabel()) {
  const auto map = DecodeMap(bytes, label);
  return map.ok() ? ErrorCode::kInternal : map.error().code;
}

TEST(Uid, ComesThroughAsText) {
  const std::string text = "00112233445566778899aabbccddeeff";
  ASSERT_TRUE(UidOf(text));
  EXPECT_EQ(TextOf(*UidOf(text)), text);
  EXPECT_EQ(UidOf("00112233445566778899AABBCCDDEEFF"), UidOf(text));
  for (const char* wrong : {"", "00112233445566778899aabbccddeef", "00112233445566778899aabbccddeefff",
                            "0011223344556677 899aabbccddeeff", "0x112233445566778899aabbccddeeff"}) {
    EXPECT_FALSE(UidOf(wrong)) << wrong;
  }
}

TEST(Geometry, HowManyExtentsADriveHasRoomFor) {
  EXPECT_EQ(ExtentsOn(0, kExtentBytesMin), 0U);
  EXPECT_EQ(ExtentsOn(kDataOffset + kExtentBytesMin - 1, kExtentBytesMin), 0U);
  EXPECT_EQ(ExtentsOn(kDataOffset + kExtentBytesMin, kExtentBytesMin), 1U);
  EXPECT_EQ(ExtentsOn(960197124096, kExtentBytesDefault), 3576U) << "a drive of 960 GB";
  EXPECT_EQ(ExtentsOn(UINT64_MAX, kExtentBytesMin), kExtentsMax);
  for (const uint64_t wrong : {uint64_t{0}, kExtentBytesMin / 2, kExtentBytesMin + 1, kExtentBytesMax * 2})
    EXPECT_EQ(ExtentsOn(kGiB * 1000, wrong), 0U) << wrong;
}

TEST(Geometry, ExtentsGrowWithTheDrive) {
  const uint64_t largest = kDataOffset + kExtentsMax * kExtentBytesDefault + kExtentBytesDefault - 1;
  EXPECT_EQ(DefaultExtentBytes(kDataOffset + kExtentBytesDefault - 1), 0U) << "too small";
  EXPECT_EQ(DefaultExtentBytes(kDataOffset + kExtentBytesDefault), kExtentBytesDefault);
  EXPECT_EQ(DefaultExtentBytes(largest), kExtentBytesDefault);
  EXPECT_EQ(DefaultExtentBytes(largest + 1), kExtentBytesDefault * 2);
  EXPECT_EQ(DefaultExtentBytes(kDataOffset + kExtentsMax * kExtentBytesMax), kExtentBytesMax);
  EXPECT_EQ(DefaultExtentBytes(kDataOffset + (kExtentsMax + 1) * kExtentBytesMax), 0U) << "too large";
  EXPECT_EQ(DefaultExtentBytes(UINT64_MAX), 0U);
}

TEST(PoolLabel, ComesThroughWhole) {
  Label longest = ALabel();
  longest.name = std::string(kNameBytesMax, '~');
  longest.extents = kExtentsMax;
  longest.extent_bytes = kExtentBytesMax;
  for (const Label& label : {ALabel(), longest}) {
    for (size_t copy = 0; copy < kLabelCopies; ++copy) {
      const auto decoded = DecodeLabel(Encode(label, copy), copy);
      ASSERT_TRUE(decoded.ok()) << decoded.error().message;
      EXPECT_EQ(*decoded, label);
    }
  }
}

// Drives outlive programs: a field that moves is a new version.
TEST(PoolLabel, LiesOnTheDriveAsDocumented) {
  const Bytes bytes = LabelBytes(ALabel(), 1);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), std::string("CLEATPL\0", 8));
  EXPECT_EQ(Get(bytes, 8, 4), 1U);
  EXPECT_EQ(Get(bytes, 16, 8), kMiB) << "where this copy lies";
  EXPECT_EQ(Get(bytes, 24, 4), 0x33221100U) << "pool";
  EXPECT_EQ(Get(bytes, 40, 4), 0x0c0d0e0fU) << "host";
  EXPECT_EQ(Get(bytes, 56, 8), kExtentBytesDefault);
  EXPECT_EQ(Get(bytes, 64, 4), 100U);
  EXPECT_EQ(Get(bytes, 68, 4), 5U);
  EXPECT_EQ(std::string(bytes.begin() + 72, bytes.begin() + 77), "nvme0");
  EXPECT_TRUE(std::all_of(bytes.begin() + 77, bytes.end(), [](uint8_t byte) { return byte == 0; }));
  Bytes sealed = bytes;
  Seal(sealed);
  EXPECT_EQ(sealed, bytes);
}

TEST(PoolLabel, EveryBitCounts) {
  const Bytes whole = LabelBytes(ALabel());
  for (size_t bit = 0; bit < kBlockBytes * 8; ++bit) {
    Bytes bytes = whole;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    const auto label = DecodeLabel(Block(bytes), 0);
    if (bit < 64) {
      ASSERT_TRUE(label.ok() && !*label) << "another magic, bit " << bit;
    } else {
      ASSERT_EQ(CodeOf(label), ErrorCode::kDataLoss) << "bit " << bit;
    }
  }
}

TEST(PoolLabel, OtherBytesAreNone) {
  EXPECT_TRUE(DecodeLabel(Block(Bytes(kBlockBytes)), 0).ok());
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    Bytes bytes(kBlockBytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
    const auto label = DecodeLabel(Block(bytes), 0);
    EXPECT_TRUE(label.ok() && !*label);
  }
}

TEST(PoolLabel, WhatMakesNoSenseIsRefusedWithARightChecksum) {
  struct Case {
    size_t at;
    uint64_t value;
    size_t bytes;
    const char* what;
  };
  for (const Case& wrong :
       {Case{8, 0, 4, "version 0"}, Case{56, 0, 8, "extents of 0 bytes"},
        Case{56, kExtentBytesMin / 2, 8, "too small"}, Case{56, kExtentBytesMax * 2, 8, "too large"},
        Case{56, kExtentBytesMin + 1, 8, "no power of two"}, Case{56, UINT64_MAX, 8, "absurd"},
        Case{64, 0, 4, "no extents"}, Case{64, kExtentsMax + 1, 4, "too many"},
        Case{64, UINT32_MAX, 4, "absurd"}, Case{68, kNameBytesMax + 1, 4, "a long name"},
        Case{68, UINT32_MAX, 4, "a name beyond the block"}, Case{72, 0x1b, 1, "a terminal's escape"}}) {
    Bytes bytes = LabelBytes(ALabel());
    Put(bytes, wrong.at, wrong.value, wrong.bytes);
    Seal(bytes);
    EXPECT_EQ(CodeOf(DecodeLabel(Block(bytes), 0)), ErrorCode::kDataLoss) << wrong.what;
  }
}

TEST(PoolLabel, ANewerVersionIsSaidToBeOneUnlessItIsDamaged) {
  Bytes bytes = LabelBytes(ALabel());
  Put(bytes, 8, 2, 4);
  EXPECT_EQ(CodeOf(DecodeLabel(Block(bytes), 0)), ErrorCode::kDataLoss);
  Put(bytes, 300, 1, 1);  // a field that is not known here
  Seal(bytes);
  EXPECT_EQ(CodeOf(DecodeLabel(Block(bytes), 0)), ErrorCode::kUnimplemented);
}

TEST(PoolLabel, ACopyIsNoneWhereTheOtherOneBelongs) {
  const auto label = DecodeLabel(Encode(ALabel(), 1), 0);
  ASSERT_EQ(CodeOf(label), ErrorCode::kDataLoss);
  EXPECT_NE(label.error().message.find("Name the whole drive"), std::string::npos) << label.error().message;
}

TEST(PoolMap, ComesThroughWhole) {
  Map large = AMap();
  for (uint32_t i = 20; i < 90; ++i) {
    large.disks.push_back(
        {.identity = i, .deleted = i % 2 == 0, .extents = {{i, 1}}, .description = std::string(i * 11, 'x')});
  }
  Map none = AMap();
  none.disks.clear();
  none.generation = kGenerationMax;
  for (const Map& map : {AMap(), none, large}) {
    const auto bytes = Encode(map);
    ASSERT_TRUE(bytes.ok());
    EXPECT_EQ(bytes->size() % kBlockBytes, 0U);
    EXPECT_EQ(MapBytes(Block(*bytes)), bytes->size());
    const auto decoded = DecodeMap(*bytes, ALabel());
    ASSERT_TRUE(decoded.ok()) << decoded.error().message;
    EXPECT_EQ(*decoded, map);
  }
}

TEST(PoolMap, LiesOnTheDriveAsDocumented) {
  const Bytes bytes = *Encode(AMap());
  ASSERT_EQ(bytes.size(), kBlockBytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + 8), std::string("CLEATPM\0", 8));
  EXPECT_EQ(Get(bytes, 8, 4), 1U);
  EXPECT_EQ(Get(bytes, 16, 8), kBlockBytes);
  EXPECT_EQ(Get(bytes, 24, 4), 0x33221100U) << "pool";
  EXPECT_EQ(Get(bytes, 40, 8), 7U);
  EXPECT_EQ(Get(bytes, 48, 4), 3U);
  EXPECT_EQ(Get(bytes, 64, 8), 0x0102030405060708U) << "the first disk";
  EXPECT_EQ(Get(bytes, 72, 4), 0U) << "not deleted";
  EXPECT_EQ(Get(bytes, 76, 4), 2U) << "runs";
  EXPECT_EQ(Get(bytes, 80, 4), 7U) << "bytes of its description";
  EXPECT_EQ(Get(bytes, 88, 8), 0x0000000200000003U) << "3 and 4";
  EXPECT_EQ(std::string(bytes.begin() + 104, bytes.begin() + 111), "disks/a");
  EXPECT_EQ(Get(bytes, 111, 8), 9U) << "the second disk";
  EXPECT_EQ(Get(bytes, 119, 4), 1U) << "deleted";
  Bytes sealed = bytes;
  Seal(sealed);
  EXPECT_EQ(sealed, bytes);
}

TEST(PoolMap, EveryBitCounts) {
  const Bytes whole = *Encode(AMap());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes bytes = whole;
    bytes[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    ASSERT_EQ(MapCode(bytes), ErrorCode::kDataLoss) << "bit " << bit;
  }
}

TEST(PoolMap, NoPartOfItIsOne) {
  Map map = AMap();
  for (MapDisk& disk : map.disks) disk.description = std::string(kDescriptionBytesMax, 'x');
  map.disks.push_back(
      {.identity = 11, .deleted = false, .extents = {}, .description = map.disks[0].description});
  const Bytes whole = *Encode(map);
  ASSERT_GT(whole.size(), kBlockBytes);
  for (size_t size = 0; size < whole.size(); size += 97)
    EXPECT_EQ(MapCode(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size))),
              ErrorCode::kDataLoss);
  Bytes longer = whole;
  longer.resize(whole.size() + kBlockBytes);
  EXPECT_EQ(MapCode(longer), ErrorCode::kDataLoss);
  // Blocks of two maps.
  map.generation += 2;
  map.disks[0].description.back() = 'y';
  map.disks[3].description.back() = 'y';
  const Bytes next = *Encode(map);
  ASSERT_EQ(next.size(), whole.size());
  for (size_t i = 0; i < whole.size(); i += kBlockBytes) {
    Bytes torn = next;
    std::copy_n(whole.begin() + static_cast<ptrdiff_t>(i), kBlockBytes,
                torn.begin() + static_cast<ptrdiff_t>(i));
    EXPECT_EQ(MapCode(torn), ErrorCode::kDataLoss);
  }
}

TEST(PoolMap, AbsurdNumbersAreRefusedWithARightChecksum) {
  struct Case {
    size_t at;
    uint64_t value;
    size_t bytes;
    const char* what;
  };
  for (const Case& wrong : {Case{8, 0, 4, "version 0"},
                            Case{16, 0, 8, "no bytes"},
                            Case{16, kBlockBytes * 2, 8, "more than there are"},
                            Case{16, UINT64_MAX, 8, "absurd"},
                            Case{16, uint64_t{1} << 63, 8, "absurd"},
                            Case{24, 1, 8, "another pool's"},
                            Case{40, 0, 8, "generation 0"},
                            Case{40, kGenerationMax + 1, 8, "none could follow"},
                            Case{48, 2, 4, "fewer disks"},
                            Case{48, 4, 4, "a disk of zeroes"},
                            Case{48, kMapDisksMax + 1, 4, "too many disks"},
                            Case{48, UINT32_MAX, 4, "absurd"},
                            Case{64, 0, 8, "no identity"},
                            Case{64, 9, 8, "an identity twice"},
                            Case{72, 2, 4, "a flag"},
                            Case{76, UINT32_MAX, 4, "runs"},
                            Case{76, 0x20000000, 4, "runs whose bytes overflow 32 bits"},
                            Case{80, UINT32_MAX, 4, "a description"},
                            Case{80, kDescriptionBytesMax, 4, "one over the next disk"},
                            Case{84, 1, 4, "reserved"},
                            Case{88, 99, 4, "beyond the drive"},
                            Case{88, UINT32_MAX, 4, "beyond 32 bits"},
                            Case{92, 0, 4, "an empty run"},
                            Case{92, UINT32_MAX, 4, "a run of all"},
                            Case{96, 4, 4, "an extent twice in a disk"},
                            Case{96, 99, 4, "two owners"}}) {
    Bytes bytes = *Encode(AMap());
    Put(bytes, wrong.at, wrong.value, wrong.bytes);
    Seal(bytes);
    EXPECT_EQ(MapCode(bytes), ErrorCode::kDataLoss) << wrong.what;
  }
}

TEST(PoolMap, ANewerVersionIsSaidToBeOne) {
  Bytes bytes = *Encode(AMap());
  Put(bytes, 8, 2, 4);
  EXPECT_EQ(MapCode(bytes), ErrorCode::kDataLoss);
  Seal(bytes);
  EXPECT_EQ(MapCode(bytes), ErrorCode::kUnimplemented);
}

TEST(PoolMap, AnErrorNamesBothOwners) {
  Map map = AMap();
  map.disks[1].extents = {{4, 1}};
  const Status status = CheckMap(map, ALabel());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            "extents 4 to 4 are, in part at least, disk 72623859790382856's and disk 9's");
  Label small = ALabel();
  small.extents = 99;
  EXPECT_EQ(MapCode(*Encode(AMap()), small), ErrorCode::kDataLoss) << "beyond the drive";
  Label other = ALabel();
  other.pool[15] ^= 1;
  EXPECT_EQ(MapCode(*Encode(AMap()), other), ErrorCode::kDataLoss) << "another pool's";
}

TEST(PoolMap, TheLargestFits) {
  Map map = AMap();
  map.disks.clear();
  Label label = ALabel();
  label.extents = kExtentsMax;
  for (uint32_t i = 0; i < kMapDisksMax; ++i) {
    MapDisk disk{.identity = i + 1,
                 .deleted = true,
                 .extents = {},
                 .description = std::string(kDescriptionBytesMax, 'd')};
    for (uint32_t run = 0; run < kExtentsMax / kMapDisksMax; ++run)
      disk.extents.push_back({static_cast<uint32_t>(i + kMapDisksMax * run), 1});
    map.disks.push_back(std::move(disk));
  }
  ASSERT_TRUE(CheckMap(map, label).ok());
  const auto bytes = Encode(map);
  ASSERT_TRUE(bytes.ok());
  EXPECT_LE(bytes->size(), kMapBytesMax);
  const auto decoded = DecodeMap(*bytes, label);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message;
  EXPECT_TRUE(*decoded == map);

  map.disks[5].description += 'd';
  EXPECT_EQ(CheckMap(map, label).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(Encode(map).error().code, ErrorCode::kResourceExhausted);
  map.disks[5].description.clear();
  map.disks.push_back({.identity = kMapDisksMax + 1, .deleted = false, .extents = {}, .description = {}});
  EXPECT_EQ(Encode(map).error().code, ErrorCode::kResourceExhausted);
}

// Somebody who knows the format and writes what he likes gets a map that holds what maps promise, or none.
TEST(PoolMap, AnyBytesAreReadOrRefused) {
  const Bytes whole = *Encode(AMap());
  Random random(3);
  int accepted = 0;
  for (int i = 0; i < 4000; ++i) {
    Bytes bytes = whole;
    for (uint64_t flips = random.Between(1, 4); flips > 0; --flips) {
      bytes[random.Between(16, 160)] =
          static_cast<uint8_t>(random.Chance(1, 2) ? random.Next() : random.Below(4));
    }
    Seal(bytes);
    const auto map = DecodeMap(bytes, ALabel());
    if (!map.ok()) continue;
    ++accepted;
    EXPECT_TRUE(CheckMap(*map, ALabel()).ok());
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace cleat::pool::layout_test
