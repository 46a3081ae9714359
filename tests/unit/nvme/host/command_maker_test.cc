// SPDX-License-Identifier: Apache-2.0
// How a request is cut into commands.
#include "nvme/host/requests/command_maker.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/nvme/host/request_queue_fixture.h"

namespace cleat::nvme::host::command_maker_test {
namespace {

using requests_test::FormatOptions;
using requests_test::Io;
using requests_test::kBlockBytes;
using requests_test::MakeFormat;
using requests_test::OpcodeOf;
using requests_test::RangeOf;

class CommandMakerTest : public testing::Test {
 protected:
  // All commands of the request, of which each is over before the next is made.
  std::vector<CommandMaker::Made> MakeAll(const Io& io, const PathFormat& format) {
    std::vector<CommandMaker::Made> all;
    uint64_t begun_bytes = 0;
    segments_.clear();
    while (begun_bytes < io.request.length_bytes) {
      CommandMaker::Made made;
      EXPECT_TRUE(maker_.Make(io.request, begun_bytes, format, made));
      EXPECT_GT(made.bytes, 0U);
      if (made.bytes == 0) break;
      const auto data = made.command.to_target.empty() ? made.command.from_target : made.command.to_target;
      segments_.emplace_back(data.begin(), data.end());
      begun_bytes += made.bytes;
      maker_.GiveBack(made.list);
      all.push_back(made);
    }
    EXPECT_EQ(begun_bytes, io.request.length_bytes);
    return all;
  }
  // That the commands' data, one after the other, is the request's memory from its beginning to its end.
  void ExpectWholeMemory(const Io& io) const {
    uint64_t at = 0;
    for (const auto& segments : segments_) {
      for (const block::Segment& segment : segments) {
        EXPECT_EQ(segment.region, io.region.get());
        EXPECT_EQ(segment.offset_bytes, at);
        EXPECT_GT(segment.length_bytes, 0U);
        at += segment.length_bytes;
      }
    }
    EXPECT_EQ(at, io.memory.size());
  }
  static std::vector<std::string> RangesOf(const std::vector<CommandMaker::Made>& all) {
    std::vector<std::string> ranges;
    for (const CommandMaker::Made& made : all) ranges.push_back(RangeOf(made.command));
    return ranges;
  }

  CommandMaker maker_;
  std::vector<std::vector<block::Segment>> segments_;  // of each command's data
};

TEST_F(CommandMakerTest, ACommandThatDoesItsWholeRequestHasTheRequestsOwnSegments) {
  const Io io(block::Op::kRead, 5, 64, 100);
  ASSERT_GT(io.segments.size(), CommandMaker::kListSegmentsMax);
  CommandMaker::Made made;
  ASSERT_TRUE(maker_.Make(io.request, 0, MakeFormat(), made));
  EXPECT_EQ(made.list, CommandMaker::kNoList);
  EXPECT_EQ(made.command.from_target.data(), io.segments.data());
  EXPECT_EQ(made.command.from_target.size(), io.segments.size());
  EXPECT_TRUE(made.command.to_target.empty());
  EXPECT_EQ(OpcodeOf(made.command), Opcode::kRead);
  EXPECT_EQ(made.command.entry.nsid, 7U);
  EXPECT_EQ(RangeOf(made.command), "5+64");
}

TEST_F(CommandMakerTest, ALargeTransferIsCutAtTheTransferLimitAndAtBoundaries) {
  const Io io(block::Op::kWrite, 6, 20, 700);
  const auto all = MakeAll(io, MakeFormat({.transfer_bytes_max = 4096, .boundary_blocks = 10}));
  EXPECT_EQ(RangesOf(all), (std::vector<std::string>{"6+4", "10+8", "18+2", "20+6"}));
  ExpectWholeMemory(io);
}

TEST_F(CommandMakerTest, ACommandOfAPartEndsWithAWholeBlockWhereItsListIsFull) {
  const Io io(block::Op::kWrite, 0, 100, 100);
  const auto all = MakeAll(io, MakeFormat({.transfer_bytes_max = 99 * kBlockBytes}));
  EXPECT_EQ(RangeOf(all[0].command), "0+6") << "34 segments of 100 bytes";
  ExpectWholeMemory(io);
}

TEST_F(CommandMakerTest, ListsAreFewAndComeBack) {
  const Io io(block::Op::kWrite, 0, 16);
  const PathFormat format = MakeFormat({.transfer_bytes_max = 4096});
  std::array<CommandMaker::Made, CommandMaker::kListsMax> taken;
  for (CommandMaker::Made& made : taken) ASSERT_TRUE(maker_.Make(io.request, 0, format, made));
  CommandMaker::Made next;
  EXPECT_FALSE(maker_.Make(io.request, 0, format, next));
  const Io whole(block::Op::kWrite, 0, 8);
  EXPECT_TRUE(maker_.Make(whole.request, 0, format, next)) << "needs no list";
  maker_.GiveBack(taken[3].list);
  ASSERT_TRUE(maker_.Make(io.request, 4096, format, next));
  EXPECT_EQ(next.command.to_target.data(), taken[3].command.to_target.data());
  EXPECT_EQ(next.command.to_target[0].offset_bytes, 4096U);
}

// A block of 4096 bytes in segments of 64 is in more of them than a list holds.
TEST_F(CommandMakerTest, ABlockInMoreSegmentsThanAListHoldsIsSentAsWell) {
  const Io io(block::Op::kRead, 0, 32, 64);
  const PathFormat format = MakeFormat({.transfer_bytes_max = 8192, .block_bytes = 4096});
  const auto all = MakeAll(io, format);
  EXPECT_EQ(RangesOf(all), (std::vector<std::string>{"0+2", "2+2"}));
  ExpectWholeMemory(io);
  CommandMaker::Made first;
  CommandMaker::Made second;
  ASSERT_TRUE(maker_.Make(io.request, 0, format, first));
  EXPECT_FALSE(maker_.Make(io.request, 8192, format, second)) << "one at a time";
  maker_.GiveBack(first.list);
  EXPECT_TRUE(maker_.Make(io.request, 8192, format, second));
}

TEST_F(CommandMakerTest, ZeroesAreACommandOfTheirOwn) {
  Io io(block::Op::kWriteZeroes, 3, 20);
  const PathFormat format = MakeFormat({.transfer_bytes_max = 8192});
  const auto all = MakeAll(io, format);
  EXPECT_EQ(RangesOf(all), (std::vector<std::string>{"3+16", "19+4"}));
  EXPECT_EQ(OpcodeOf(all[0].command), Opcode::kWriteZeroes);
  EXPECT_EQ(all[0].command.entry.cdw12 & kDeallocate, 0U);
  EXPECT_TRUE(all[0].command.to_target.empty());
  io.request.may_unmap = true;
  EXPECT_NE(MakeAll(io, format)[0].command.entry.cdw12 & kDeallocate, 0U);
  PathFormat keeps = format;
  keeps.write_zeroes_deallocates = false;
  EXPECT_EQ(MakeAll(io, keeps)[0].command.entry.cdw12 & kDeallocate, 0U);
}

TEST_F(CommandMakerTest, ZeroesAreWrittenWhereTheTargetHasNoSuchCommand) {
  const Io io(block::Op::kWriteZeroes, 0, 200);
  const auto all = MakeAll(io, MakeFormat({.write_zeroes = false}));
  EXPECT_EQ(RangesOf(all), (std::vector<std::string>{"0+128", "128+72"}));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(OpcodeOf(all[i].command), Opcode::kWrite);
    ASSERT_EQ(segments_[i].size(), 1U);
    EXPECT_EQ(segments_[i][0].length_bytes, all[i].bytes);
    const std::vector<uint8_t> zeroes(all[i].bytes);
    EXPECT_EQ(std::memcmp(segments_[i][0].data(), zeroes.data(), zeroes.size()), 0);
  }
}

TEST_F(CommandMakerTest, ADiscardsDataIsItsRange) {
  const Io io(block::Op::kDiscard, 1000, 50);
  const PathFormat format = MakeFormat({.discard_blocks_max = 40});
  CommandMaker::Made made;
  ASSERT_TRUE(maker_.Make(io.request, 40 * kBlockBytes, format, made));
  EXPECT_EQ(OpcodeOf(made.command), Opcode::kDatasetManagement);
  EXPECT_EQ(made.command.entry.cdw11, kDatasetDeallocate);
  ASSERT_EQ(block::SumBytes(made.command.to_target), sizeof(DatasetRange));
  DatasetRange range;
  std::memcpy(&range, made.command.to_target[0].data(), sizeof(range));
  EXPECT_EQ(range.first_block, 1040U);
  EXPECT_EQ(range.blocks, 10U);
  EXPECT_EQ(range.attributes, 0U);
  EXPECT_EQ(MakeAll(io, format).size(), 2U);
  EXPECT_TRUE(CommandMaker::CanMake(io.request, format));
  EXPECT_FALSE(CommandMaker::CanMake(io.request, MakeFormat({.discards = false})));
}

TEST_F(CommandMakerTest, ForcedUnitAccessIsSaidOfWritesAndZeroes) {
  for (const auto op : {block::Op::kWrite, block::Op::kWriteZeroes}) {
    Io io(op, 0, 8);
    EXPECT_EQ(MakeAll(io, MakeFormat())[0].command.entry.cdw12 & kForceUnitAccess, 0U);
    io.request.fua = true;
    EXPECT_NE(MakeAll(io, MakeFormat())[0].command.entry.cdw12 & kForceUnitAccess, 0U);
  }
}

}  // namespace
}  // namespace cleat::nvme::host::command_maker_test
