// SPDX-License-Identifier: Apache-2.0
#include "perf/workload/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace cleat::perf::verify_test {
namespace {

constexpr uint32_t kBlock = 4096;
constexpr uint64_t kDisk = 64 * kBlock;

struct VerifyTest : ::testing::Test {
  std::vector<uint8_t> Write(uint64_t offset, bool acknowledge = true) {
    std::vector<uint8_t> data(kBlock);
    blocks.BeginWrite(offset, data);
    if (acknowledge) blocks.Acknowledge(offset, kBlock);
    return data;
  }
  BlockFault Fault(uint64_t offset, const std::vector<uint8_t>& data) {
    return blocks.Check(offset, data).fault;
  }

  StampedBlocks blocks{kDisk, kBlock, 1};
  const std::vector<uint8_t> zeroes = std::vector<uint8_t>(kBlock);
};

TEST_F(VerifyTest, WhatWasWrittenIsFound) {
  EXPECT_EQ(Fault(0, zeroes), BlockFault::kNone) << "never written";
  const auto first = Write(0);
  EXPECT_EQ(Fault(0, first), BlockFault::kNone);
  const auto second = Write(0);
  EXPECT_NE(first, second);
  EXPECT_EQ(Fault(0, second), BlockFault::kNone);
  std::vector<uint8_t> both(2 * kBlock);
  blocks.BeginWrite(kBlock, both);
  blocks.Acknowledge(kBlock, both.size());
  EXPECT_EQ(Fault(kBlock, both), BlockFault::kNone);
}

TEST_F(VerifyTest, LostWrite) {
  const auto first = Write(0);
  EXPECT_EQ(Fault(0, zeroes), BlockFault::kLost) << "the first write left no trace";
  EXPECT_EQ(Fault(0, first), BlockFault::kNone);
  Write(0);
  const BlockFinding finding = blocks.Check(0, first);
  EXPECT_EQ(finding.fault, BlockFault::kLost) << "the second one didn't";
  EXPECT_EQ(finding.generation, 1U);
  EXPECT_EQ(finding.generation_expected, 2U);
}

TEST_F(VerifyTest, StaleAfterTheNewerOneWasSeen) {
  const auto first = Write(0);
  const auto second = Write(0);
  EXPECT_EQ(Fault(0, second), BlockFault::kNone);
  EXPECT_EQ(Fault(0, first), BlockFault::kStale);
  EXPECT_EQ(Fault(0, zeroes), BlockFault::kStale);
}

TEST_F(VerifyTest, AbandonedWriteMayBeThereOrNot) {
  const auto first = Write(0);
  const auto abandoned = Write(0, false);
  EXPECT_EQ(Fault(0, first), BlockFault::kNone);
  EXPECT_EQ(Fault(0, abandoned), BlockFault::kNone);
  EXPECT_EQ(Fault(0, first), BlockFault::kStale) << "once seen it has to stay";
  const auto third = Write(0);
  EXPECT_EQ(Fault(0, third), BlockFault::kNone);
  EXPECT_EQ(Fault(0, abandoned), BlockFault::kStale) << "it came late, over an acknowledged write";
}

TEST_F(VerifyTest, TornBetweenSectors) {
  const auto first = Write(0);
  auto torn = Write(0, false);
  std::copy(first.begin() + 1024, first.end(), torn.begin() + 1024);
  EXPECT_EQ(Fault(0, torn), BlockFault::kTorn);
  std::fill(torn.begin() + 1024, torn.end(), uint8_t{0});
  EXPECT_EQ(Fault(0, torn), BlockFault::kTorn) << "the rest is zeroes";
}

TEST_F(VerifyTest, TornInsideASector) {
  const auto first = Write(0);
  const auto second = Write(0);
  for (const size_t cut : {8U, 32U, 64U, 256U, 500U, 511U}) {
    auto torn = second;
    std::copy(first.begin() + static_cast<ptrdiff_t>(cut), first.begin() + 512,
              torn.begin() + static_cast<ptrdiff_t>(cut));
    EXPECT_EQ(Fault(0, torn), BlockFault::kTorn) << "cut at " << cut;
  }
}

TEST_F(VerifyTest, MemoryMayTearWhatWasAbandonedAndNothingElse) {
  blocks.MayTear();
  const auto torn_of = [](const std::vector<uint8_t>& head, const std::vector<uint8_t>& tail) {
    auto torn = head;
    std::copy(tail.begin() + 1300, tail.end(), torn.begin() + 1300);
    return torn;
  };
  const auto first = Write(0);
  const auto second = Write(0);
  EXPECT_EQ(Fault(0, torn_of(second, first)), BlockFault::kTorn) << "both were acknowledged";
  const auto abandoned = Write(0, false);
  EXPECT_EQ(Fault(0, torn_of(abandoned, first)), BlockFault::kTorn) << "a part is too old";
  EXPECT_EQ(Fault(0, torn_of(abandoned, zeroes)), BlockFault::kTorn) << "nobody wrote zeroes";
  EXPECT_EQ(Fault(0, torn_of(abandoned, second)), BlockFault::kNone);
  EXPECT_EQ(Fault(0, torn_of(second, abandoned)), BlockFault::kNone) << "copied from the end";
  EXPECT_EQ(Fault(0, second), BlockFault::kNone);
  blocks.BeginZero(0, kBlock);
  EXPECT_EQ(Fault(0, torn_of(zeroes, second)), BlockFault::kNone);
  const auto last = Write(0);
  EXPECT_EQ(Fault(0, torn_of(last, second)), BlockFault::kTorn) << "acknowledged since";
}

TEST_F(VerifyTest, MisplacedBlockSaysWhereItBelongs) {
  const auto there = Write(8 * kBlock);
  Write(0);
  const BlockFinding finding = blocks.Check(0, there);
  EXPECT_EQ(finding.fault, BlockFault::kMisplaced);
  EXPECT_EQ(finding.offset_found_bytes, 8 * kBlock);
  StampedBlocks other(kDisk, kBlock, 2);
  std::vector<uint8_t> data(kBlock);
  other.BeginWrite(0, data);
  EXPECT_EQ(Fault(0, data), BlockFault::kMisplaced) << "of another disk";
}

TEST_F(VerifyTest, CorruptBits) {
  const auto good = Write(0);
  for (const size_t byte : {0U, 9U, 16U, 24U, 300U, 511U, 4095U}) {
    auto bad = good;
    bad[byte] ^= 0x10;
    EXPECT_EQ(Fault(0, bad), BlockFault::kCorrupt) << "byte " << byte;
  }
  std::vector<uint8_t> noise(kBlock, 0xa5);
  EXPECT_EQ(Fault(0, noise), BlockFault::kCorrupt);
}

TEST_F(VerifyTest, WriteThatWasNeverMadeIsCorrupt) {
  StampedBlocks twin(kDisk, kBlock, 1);
  std::vector<uint8_t> data(kBlock);
  twin.BeginWrite(0, data);
  twin.BeginWrite(0, data);
  Write(0);
  EXPECT_EQ(Fault(0, data), BlockFault::kCorrupt) << "generation 2 of a block that was written once";
}

TEST_F(VerifyTest, ZeroedBlocks) {
  const auto first = Write(0);
  blocks.BeginZero(0, kBlock);
  EXPECT_EQ(Fault(0, first), BlockFault::kNone) << "not acknowledged yet";
  blocks.Acknowledge(0, kBlock);
  EXPECT_EQ(Fault(0, first), BlockFault::kLost);
  EXPECT_EQ(Fault(0, zeroes), BlockFault::kNone);
  EXPECT_EQ(Fault(0, first), BlockFault::kStale);
  Write(0);
  EXPECT_EQ(Fault(0, zeroes), BlockFault::kLost);
}

TEST_F(VerifyTest, ADiskWithOldContentIsNotToBlameForIt) {
  StampedBlocks used(kDisk, kBlock, 1, false);
  const std::vector<uint8_t> noise(kBlock, 0xa5);
  EXPECT_TRUE(used.Check(0, noise).ok());
  std::vector<uint8_t> data(kBlock);
  used.BeginWrite(0, data);
  used.Acknowledge(0, kBlock);
  EXPECT_EQ(used.Check(0, noise).fault, BlockFault::kCorrupt);
  EXPECT_EQ(used.Check(0, zeroes).fault, BlockFault::kLost);
  EXPECT_TRUE(used.Check(0, data).ok());
}

TEST_F(VerifyTest, FindingNamesThePlaceAndTheGenerations) {
  Write(3 * kBlock);
  const std::string text = blocks.Check(3 * kBlock, zeroes).ToString();
  EXPECT_NE(text.find("lost at byte 12288"), std::string::npos) << text;
}

}  // namespace
}  // namespace cleat::perf::verify_test
