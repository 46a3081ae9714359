// SPDX-License-Identifier: Apache-2.0
// Commands that reach the disk, and those that must not.
#include <gtest/gtest.h>

#include "unit_rig.h"

namespace cleat::scsi::commands_test {
namespace {

using Bytes = std::vector<uint8_t>;
using block::IoStatus;
using block::Op;
using Seen = TestDisk::Seen;

// READ and WRITE of every length of CDB, for both block sizes.
TEST(TransferTest, EveryReadAndWriteMovesItsBlocks) {
  for (const uint32_t block : {512U, 4096U}) {
    UnitRig rig(TestGeometry(block));
    const auto cdb12 = [](uint8_t opcode) { return Bytes{opcode, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0}; };
    const std::pair<Bytes, Bytes> pairs[] = {
        {{kWrite6, 0, 0, 5, 2, 0}, {kRead6, 0, 0, 5, 2, 0}},
        {Cdb10(kWrite10, 5, 2), Cdb10(kRead10, 5, 2)},
        {cdb12(kWrite12), cdb12(kRead12)},
        {Cdb16(kWrite16, 5, 2), Cdb16(kRead16, 5, 2)},
    };
    uint8_t value = 1;
    for (const auto& [write, read] : pairs) {
      ASSERT_EQ(rig.Run(write, Filled(2 * block, value)), "good");
      EXPECT_EQ(rig.disk.seen.back(), (Seen{Op::kWrite, 5 * block, 2 * block, false, false}));
      EXPECT_EQ(rig.At(4), 0);
      EXPECT_EQ(rig.At(5), value);
      EXPECT_EQ(rig.At(6), value);
      EXPECT_EQ(rig.At(7), 0);
      EXPECT_EQ(rig.Read(read, 2 * block), Filled(2 * block, value));
      ++value;
    }
  }
}

TEST(TransferTest, DpoIsAcceptedAndFuaIsDurable) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kWrite10, 0, 1, 0x18), Filled(512, 1)), "good");
  EXPECT_TRUE(rig.disk.seen.back().fua);
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 1, 0x18), {}, 512), "good");
}

TEST(TransferTest, LengthZeroIsNothingButSixBytesMean256) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 0)), "good");
  EXPECT_EQ(rig.Run(Cdb16(kWrite16, 4096, 0)), "good");
  EXPECT_EQ(rig.Run(Cdb16(kWrite16, 4097, 0)), "5/21/00");
  EXPECT_TRUE(rig.disk.seen.empty());
  TestCommand command({kRead6, 0, 0, 0, 0, 0}, {}, 256 * 512);
  EXPECT_TRUE(rig.Run(command).good());
  EXPECT_EQ(command.transferred_bytes, 256U * 512);
}

TEST(TransferTest, BeyondTheEndIsOutOfRange) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 4095, 1), {}, 512), "good");
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 4095, 2), {}, 1024), "5/21/00");
  EXPECT_EQ(rig.Run(Cdb10(kWrite10, 4096, 1), Filled(512, 0)), "5/21/00");
  EXPECT_EQ(rig.Run(Cdb16(kRead16, ~uint64_t{0}, 1), {}, 512), "5/21/00");
  EXPECT_EQ(rig.Run(Cdb16(kVerify16, ~uint64_t{0} - 3, 8)), "5/21/00");
  EXPECT_EQ(rig.Run(Cdb16(kSynchronizeCache16, 5000, 0)), "5/21/00");
}

// Too little data, no data, or data the other way: nothing is carried out. Too much: the rest is residual.
TEST(TransferTest, DataThatDoesNotGoWithTheCommand) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 2), {}, 1023), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 1), Filled(512, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kWrite10, 0, 2), Filled(1023, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kWrite10, 0, 1), {}, 512), "overrun");
  EXPECT_EQ(rig.Run(Cdb16(kWrite16, 0, 0xffffffff), Filled(512, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb16(kCompareAndWrite, 0, 1), Filled(1023, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 0, 2, 0x02), Filled(1023, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 0, 2, 0x06), Filled(511, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kWriteSame10, 0, 2), Filled(511, 1)), "overrun");
  EXPECT_EQ(rig.Run(Cdb10(kUnmap, 0, 24), Filled(23, 0)), "overrun");
  EXPECT_EQ(rig.Run({kInquiry, 0, 0, 0, 37, 0}, {}, 36), "overrun");
  EXPECT_EQ(rig.Run({kReadCapacity10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {}, 7), "overrun");
  EXPECT_TRUE(rig.disk.seen.empty());

  TestCommand read(Cdb10(kRead10, 0, 1), {}, 1000);
  EXPECT_TRUE(rig.Run(read).good());
  EXPECT_EQ(read.transferred_bytes, 512U);
  EXPECT_EQ(read.in()[512], 0xee);
  TestCommand write(Cdb10(kWrite10, 0, 1), Filled(1000, 3));
  EXPECT_TRUE(rig.Run(write).good());
  EXPECT_EQ(write.transferred_bytes, 512U);
  EXPECT_EQ(rig.At(1), 0);
  TestCommand ready({kTestUnitReady, 0, 0, 0, 0, 0}, Filled(10, 1));
  EXPECT_TRUE(rig.Run(ready).good());
  EXPECT_EQ(ready.transferred_bytes, 0U);
}

TEST(TransferTest, ErrorsOfTheStorageHaveTheirSense) {
  const std::pair<IoStatus, std::pair<std::string, std::string>> cases[] = {
      {IoStatus::kIoError, {"3/11/00", "3/0c/00"}},
      {IoStatus::kHardwareError, {"4/44/00", "4/44/00"}},
      {IoStatus::kNoSpace, {"7/27/07", "7/27/07"}},
      {IoStatus::kReadOnly, {"7/27/00", "7/27/00"}},
      {IoStatus::kInvalid, {"5/21/00", "5/21/00"}},
      {IoStatus::kAborted, {"b/00/00", "b/00/00"}},
      {IoStatus::kReservationConflict, {"conflict", "conflict"}},
      {IoStatus::kFenced, {"conflict", "conflict"}},
      {IoStatus::kUnsupported, {"5/20/00", "5/20/00"}},
  };
  for (const auto& [status, outcome] : cases) {
    UnitRig rig;
    rig.disk.result = status;
    EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 1), {}, 512), outcome.first);
    EXPECT_EQ(rig.Run(Cdb10(kWrite10, 0, 1), Filled(512, 1)), outcome.second);
    EXPECT_EQ(rig.Run(Cdb10(kVerify10, 0, 1)), outcome.first);
    EXPECT_EQ(rig.Run(Cdb10(kWriteSame10, 0, 1), Filled(512, 1)), outcome.second);
    TestCommand failed(Cdb10(kWriteSame10, 0, 1), Filled(512, 0));
    EXPECT_EQ(rig.Run(failed).Outcome(), outcome.second);
    EXPECT_EQ(failed.transferred_bytes, 0U);
    EXPECT_EQ(rig.Run(Cdb10(kSynchronizeCache10, 0, 0)), outcome.second);
  }
}

TEST(ReadOnlyTest, NothingIsWritten) {
  UnitRig rig(TestGeometry(), block::AccessMode::kReadOnly);
  const Bytes data = Filled(4096, 1);
  for (const CommandInfo& info : AllCommands()) {
    if (!info.writes_medium) continue;
    Bytes cdb(info.cdb_bytes);
    cdb[0] = info.opcode;
    cdb[info.length.at + info.length.bytes - 1] = 1;
    EXPECT_EQ(rig.Run(cdb, data), "7/27/00") << int{info.opcode};
  }
  EXPECT_TRUE(rig.disk.seen.empty());
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 0, 1), {}, 512), "good");
  EXPECT_EQ(rig.Run(Cdb10(kSynchronizeCache10, 0, 0)), "good");
}

// Every opcode that is not in the table, and the service actions of those that have some.
TEST(RefusalTest, WhatIsNotKnownHasItsSense) {
  UnitRig rig;
  for (unsigned opcode = 0; opcode < 256; ++opcode) {
    for (unsigned action = 0; action < 32; ++action) {
      Cdb cdb{};
      cdb[0] = static_cast<uint8_t>(opcode);
      cdb[1] = static_cast<uint8_t>(action);
      if (FindCommand(cdb) != nullptr) continue;
      ASSERT_EQ(rig.Run(Bytes(cdb.begin(), cdb.end())), HasServiceActions(cdb[0]) ? "5/24/00" : "5/20/00");
    }
  }
  EXPECT_EQ(rig.Run({0x5e, 0, 0, 0, 0, 0, 0, 0, 8, 0}, {}, 8), "5/20/00");  // PERSISTENT RESERVE IN
  EXPECT_EQ(rig.Run({0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0}, Filled(24, 0)), "5/20/00");
  EXPECT_EQ(rig.Run({0x16, 0, 0, 0, 0, 0}), "5/20/00");  // RESERVE(6)
  EXPECT_EQ(rig.Run({0xa3, 0x05, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0}, {}, 8), "5/24/00");
}

TEST(FlushTest, SynchronizeCacheAndStopFlush) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kSynchronizeCache10, 5, 7, 0x02)), "good");
  EXPECT_EQ(rig.Run(Cdb16(kSynchronizeCache16, 0, 0)), "good");
  EXPECT_EQ(rig.Run({kStartStopUnit, 0, 0, 0, 0, 0}), "good");
  EXPECT_EQ(rig.disk.seen.size(), 3U);
  EXPECT_EQ(rig.disk.seen.back().op, Op::kFlush);
  EXPECT_EQ(rig.Run({kStartStopUnit, 0, 0, 0, 1, 0}), "good");        // start
  EXPECT_EQ(rig.Run({kStartStopUnit, 0, 0, 0, 4, 0}), "good");        // NO_FLUSH
  EXPECT_EQ(rig.Run({kStartStopUnit, 0, 0, 0, 2, 0}), "5/24/00");     // eject
  EXPECT_EQ(rig.Run({kStartStopUnit, 0, 0, 0, 0x10, 0}), "5/24/00");  // power condition
  EXPECT_EQ(rig.disk.seen.size(), 3U);
  EXPECT_EQ(rig.Run(Cdb10(kPreFetch10, 5, 7)), "good");
  EXPECT_EQ(rig.Run(Cdb10(kPreFetch10, 4090, 7)), "5/21/00");
}

TEST(SendDiagnosticTest, TheDefaultSelfTestPassesAndThereIsNoOther) {
  UnitRig rig;
  EXPECT_EQ(rig.Run({kSendDiagnostic, 0x04, 0, 0, 0, 0}), "good");
  EXPECT_EQ(rig.Run({kSendDiagnostic, 0, 0, 0, 0, 0}), "good");  // no parameters: nothing to do, and no error
  const Bytes refused[] = {
      {kSendDiagnostic, 0x05, 0, 0, 0, 0},                                          // UNITOFFL
      {kSendDiagnostic, 0x06, 0, 0, 0, 0},                                          // DEVOFFL
      {kSendDiagnostic, 0x10, 0, 0, 0, 0},                                          // PF
      {kSendDiagnostic, 0x20, 0, 0, 0, 0},                                          // background short
      {kSendDiagnostic, 0xc0, 0, 0, 0, 0},                                          // foreground extended
      {kSendDiagnostic, 0x04, 1, 0, 0, 0}, {kSendDiagnostic, 0x04, 0, 0, 0, 0x04},  // reserved; NACA
      {kSendDiagnostic, 0x04, 0, 0, 4, 0}, {kSendDiagnostic, 0x10, 0, 1, 0, 0},     // parameter lists
  };
  for (const Bytes& cdb : refused) EXPECT_EQ(rig.Run(cdb, Filled(256, 0)), "5/24/00") << int{cdb[1]};
  EXPECT_EQ(rig.Run({kSendDiagnostic, 0x04, 0, 0, 0, 0}), "good");
  EXPECT_TRUE(rig.disk.seen.empty());

  UnitRig read_only(TestGeometry(), block::AccessMode::kReadOnly);
  EXPECT_EQ(read_only.Run({kSendDiagnostic, 0x04, 0, 0, 0, 0}), "good");
}

TEST(FormatUnitTest, IsRefusedAndTouchesNothing) {
  UnitRig rig;
  EXPECT_EQ(rig.Run({0x04, 0, 0, 0, 0, 0}), "5/20/00");
  EXPECT_EQ(rig.Run({0x04, 0x10, 0, 0, 0, 0}, Filled(4, 0)), "5/20/00");
  EXPECT_TRUE(rig.disk.seen.empty());
}

// ---- Commands of several steps

TEST(VerifyTest, ComparesAndSaysWhere) {
  UnitRig rig;
  std::fill_n(rig.disk.bytes.begin() + 10 * 512, 600 * 512, 7);
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 10, 600)), "good");  // read in pieces of 256 KiB
  EXPECT_EQ(rig.disk.seen,
            (std::vector<Seen>{{Op::kRead, 5120, 512 * 512}, {Op::kRead, 5120 + 512 * 512, 88 * 512}}));
  TestCommand same(Cdb10(kVerify10, 10, 600, 0x02), Filled(600 * 512, 7));
  EXPECT_EQ(rig.Run(same).Outcome(), "good");
  EXPECT_EQ(same.transferred_bytes, 600U * 512);
  rig.At(10 + 555) = 8;
  TestCommand differs(Cdb16(kVerify16, 10, 600, 0x02), Filled(600 * 512, 7));
  EXPECT_EQ(rig.Run(differs).Outcome(), "e/1d/00");
  EXPECT_TRUE(differs.sense.has_information);
  EXPECT_EQ(differs.sense.information, 565U);
  TestCommand one(Cdb16(kVerify16, 10, 600, 0x06), Filled(512, 7));
  EXPECT_EQ(rig.Run(one).Outcome(), "e/1d/00");
  EXPECT_EQ(one.sense.information, 565U);
  EXPECT_EQ(rig.Run(Cdb16(kVerify16, 10, 555, 0x06), Filled(512, 7)), "good");
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 10, 1, 0x04), Filled(512, 7)), "5/24/00");  // BYTCHK 10b
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 10, 0)), "good");
}

TEST(VerifyTest, WriteAndVerifyWritesDurablyThenReads) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kWriteAndVerify10, 3, 2, 0x02), Filled(1024, 9)), "good");
  EXPECT_EQ(rig.disk.seen, (std::vector<Seen>{{Op::kWrite, 1536, 1024, true}, {Op::kRead, 1536, 1024}}));
  EXPECT_EQ(rig.At(4), 9);
  EXPECT_EQ(rig.Run(Cdb16(kWriteAndVerify16, 3, 2), Filled(1024, 5)), "good");
  EXPECT_EQ(rig.Run(Cdb10(kWriteAndVerify10, 3, 2, 0x06), Filled(1024, 9)), "5/24/00");
  // A disk that loses the write is found out.
  rig.disk.hold = true;
  TestCommand lost(Cdb10(kWriteAndVerify10, 8, 1, 0x02), Filled(512, 9));
  rig.unit->Execute(lost);
  ASSERT_TRUE(rig.disk.CompleteOne());
  rig.At(8) = 1;
  ASSERT_TRUE(rig.disk.CompleteOne());
  EXPECT_EQ(lost.Outcome(), "e/1d/00");
  EXPECT_EQ(lost.sense.information, 8U);
}

TEST(WriteSameTest, ZeroesArePassedOnInTheStoragesPieces) {
  UnitRig rig;
  std::ranges::fill(rig.disk.bytes, 1);
  EXPECT_EQ(rig.Run(Cdb16(kWriteSame16, 8, 200, 0x08), Filled(512, 0)), "good");
  EXPECT_EQ(rig.disk.seen,
            (std::vector<Seen>{{Op::kWriteZeroes, 4096, 65536, false, true},
                               {Op::kWriteZeroes, 4096 + 65536, 200 * 512 - 65536, false, true}}));
  EXPECT_EQ(rig.At(7), 1);
  EXPECT_EQ(rig.At(207), 0);
  EXPECT_EQ(rig.At(208), 1);
  rig.disk.seen.clear();
  TestCommand no_data(Cdb16(kWriteSame16, 0, 4, 0x01));  // NDOB
  EXPECT_TRUE(rig.Run(no_data).good());
  EXPECT_EQ(rig.disk.seen, (std::vector<Seen>{{Op::kWriteZeroes, 0, 2048}}));
}

TEST(WriteSameTest, APatternIsWritten) {
  UnitRig rig;
  Bytes pattern(512);
  for (size_t i = 0; i < 512; ++i) pattern[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(rig.Run(Cdb10(kWriteSame10, 100, 700, 0x08), pattern), "good");
  EXPECT_EQ(rig.disk.seen,
            (std::vector<Seen>{{Op::kWrite, 51200, 262144}, {Op::kWrite, 51200 + 262144, 188 * 512}}));
  for (const uint64_t lba : {100U, 612U, 799U}) {
    EXPECT_EQ(Bytes(rig.disk.bytes.begin() + lba * 512, rig.disk.bytes.begin() + lba * 512 + 512), pattern);
  }
  EXPECT_EQ(rig.At(800) + rig.disk.bytes[800 * 512 + 1], 0);
}

TEST(WriteSameTest, WithoutWriteZeroesZeroesAreWritten) {
  block::Geometry geometry = TestGeometry();
  geometry.discard = geometry.write_zeroes = false;
  UnitRig rig(geometry);
  rig.At(1) = 5;
  EXPECT_EQ(rig.Run(Cdb16(kWriteSame16, 0, 4, 0x01)), "good");
  EXPECT_EQ(rig.disk.seen, (std::vector<Seen>{{Op::kWrite, 0, 2048}}));
  EXPECT_EQ(rig.At(1), 0);
  EXPECT_EQ(rig.Run(Cdb16(kWriteSame16, 0, 4, 0x09)), "5/24/00");  // UNMAP of a disk that can't
}

TEST(WriteSameTest, Refusals) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb16(kWriteSame16, 0, 0), Filled(512, 0)), "5/24/00");        // 0 blocks: WSNZ
  EXPECT_EQ(rig.Run(Cdb16(kWriteSame16, 0, 4, 0x10), Filled(512, 0)), "5/24/00");  // ANCHOR
  EXPECT_EQ(rig.Run(Cdb10(kWriteSame10, 0, 4, 0x01), Filled(512, 0)), "5/24/00");  // no NDOB in 10 bytes
  EXPECT_EQ(rig.Run(Cdb16(kWriteSame16, 4090, 7), Filled(512, 0)), "5/21/00");
  EXPECT_TRUE(rig.disk.seen.empty());
}

Bytes UnmapList(std::vector<std::pair<uint64_t, uint32_t>> ranges) {
  Bytes list(8 + 16 * ranges.size());
  StoreBig(list.data(), list.size() - 2, 2);
  StoreBig(&list[2], list.size() - 8, 2);
  for (size_t i = 0; i < ranges.size(); ++i) {
    StoreBig(&list[8 + 16 * i], ranges[i].first, 8);
    StoreBig(&list[16 + 16 * i], ranges[i].second, 4);
  }
  return list;
}

TEST(UnmapTest, SeveralRangesInTheStoragesPieces) {
  UnitRig rig;
  const Bytes list = UnmapList({{8, 200}, {1000, 0}, {4095, 1}});
  TestCommand command(Cdb10(kUnmap, 0, static_cast<uint16_t>(list.size())), list);
  EXPECT_EQ(rig.Run(command).Outcome(), "good");
  EXPECT_EQ(command.transferred_bytes, list.size());
  EXPECT_EQ(rig.disk.seen, (std::vector<Seen>{{Op::kDiscard, 4096, 65536},
                                              {Op::kDiscard, 4096 + 65536, 200 * 512 - 65536},
                                              {Op::kDiscard, 4095 * 512, 512}}));
}

TEST(UnmapTest, AListThatMakesNoSenseUnmapsNothing) {
  struct Case {
    const char* what;
    Bytes list;
    std::string outcome;
  };
  Bytes cut = UnmapList({{0, 8}});
  cut.pop_back();
  Bytes odd = UnmapList({{0, 8}, {16, 8}});
  StoreBig(&odd[2], 17, 2);  // the second is incomplete: ignored
  const Case cases[] = {
      {"nothing", {}, "good"},
      {"header alone", UnmapList({}), "good"},
      {"less than a header", Filled(7, 0), "5/1a/00"},
      {"cut", cut, "5/1a/00"},
      {"the second range outside", UnmapList({{0, 8}, {4095, 2}}), "5/21/00"},
      {"wrapping", UnmapList({{~uint64_t{0}, 2}}), "5/21/00"},
      {"too many", UnmapList(std::vector<std::pair<uint64_t, uint32_t>>(33, {0, 8})), "5/26/00"},
  };
  for (const Case& test : cases) {
    UnitRig rig;
    EXPECT_EQ(rig.Run(Cdb10(kUnmap, 0, static_cast<uint16_t>(test.list.size())), test.list), test.outcome)
        << test.what;
    EXPECT_TRUE(rig.disk.seen.empty()) << test.what;
  }
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kUnmap, 0, static_cast<uint16_t>(odd.size())), odd), "good");
  EXPECT_EQ(rig.disk.seen.size(), 1U);
  EXPECT_EQ(rig.Run(Cdb10(kUnmap, 0, 24, 0x01), UnmapList({{0, 8}})), "5/24/00");  // ANCHOR
}

TEST(CompareAndWriteTest, WritesOnlyWhatIsTheSame) {
  UnitRig rig;
  rig.At(3) = 1;
  Bytes data = Filled(2048, 0);
  data[0] = 1;
  std::fill(data.begin() + 1024, data.end(), 5);
  TestCommand command(Cdb16(kCompareAndWrite, 3, 2), data);
  EXPECT_EQ(rig.Run(command).Outcome(), "good");
  EXPECT_EQ(command.transferred_bytes, 2048U);
  EXPECT_EQ(rig.At(3), 5);
  EXPECT_EQ(rig.At(4), 5);
  TestCommand again(Cdb16(kCompareAndWrite, 3, 2), data);
  EXPECT_EQ(rig.Run(again).Outcome(), "e/1d/00");
  EXPECT_TRUE(again.sense.has_information);
  EXPECT_EQ(again.sense.information, 0U);
  data = Filled(2048, 5);
  data[700] = 6;
  TestCommand later(Cdb16(kCompareAndWrite, 3, 2), data);
  EXPECT_EQ(rig.Run(later).Outcome(), "e/1d/00");
  EXPECT_EQ(later.sense.information, 700U);
  EXPECT_EQ(rig.Run(Cdb16(kCompareAndWrite, 3, 0)), "good");
  EXPECT_EQ(rig.Run(Cdb16(kCompareAndWrite, 0, 129), Filled(129 * 1024, 0)), "5/24/00");
}

TEST(LbaStatusTest, AllIsMappedOrUnknown) {
  UnitRig rig;
  Bytes cdb = Cdb16(kServiceActionIn16, 96, 24);
  cdb[1] = kGetLbaStatusAction;
  const Bytes status = rig.Read(cdb, 24);
  ASSERT_EQ(status.size(), 24U);
  EXPECT_EQ(LoadBigExact(&status[0], 4), 20U);
  EXPECT_EQ(LoadBigExact(&status[8], 8), 96U);
  EXPECT_EQ(LoadBigExact(&status[16], 4), 4000U);
  StoreBig(&cdb[2], 4096, 8);
  EXPECT_EQ(rig.Run(cdb, {}, 24), "5/21/00");
}

TEST(TransferMemoryTest, WhenItIsAllOutACommandIsBusy) {
  UnitRig rig;
  rig.disk.hold = true;
  std::vector<std::unique_ptr<TestCommand>> commands;
  for (uint32_t i = 0; i < TransferMemory::kBuffersMax; ++i) {
    commands.push_back(std::make_unique<TestCommand>(Cdb10(kVerify10, 0, 1)));
    rig.unit->Execute(*commands.back());
  }
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 0, 1)), "busy");
  while (rig.disk.CompleteOne()) {
  }
  for (const auto& command : commands) EXPECT_EQ(command->Outcome(), "good");
  rig.disk.hold = false;
  EXPECT_EQ(rig.Run(Cdb10(kVerify10, 0, 1)), "good");
}

TEST(SizeTest, AGrownDiskIsServedToItsNewEnd) {
  UnitRig rig;
  EXPECT_EQ(rig.Run(Cdb10(kRead10, 4096, 1), {}, 512), "5/21/00");
  block::Geometry geometry = rig.geometry;
  geometry.size_bytes *= 2;
  rig.unit->SetGeometry(geometry);
  const Bytes capacity = rig.Read({kReadCapacity10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 8);
  EXPECT_EQ(LoadBigExact(capacity.data(), 4), 8191U);
}

}  // namespace
}  // namespace cleat::scsi::commands_test
