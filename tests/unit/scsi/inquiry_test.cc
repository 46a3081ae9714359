// SPDX-License-Identifier: Apache-2.0
// What a disk says about itself: INQUIRY, READ CAPACITY, MODE SENSE, REPORT LUNS, REPORT SUPPORTED OPERATION CODES.
#include <gtest/gtest.h>

#include "unit_rig.h"

namespace cleat::scsi::inquiry_test {
namespace {

using Bytes = std::vector<uint8_t>;

std::string Text(const Bytes& bytes, size_t at, size_t length) {
  return {bytes.begin() + static_cast<std::ptrdiff_t>(at),
          bytes.begin() + static_cast<std::ptrdiff_t>(at + length)};
}
uint64_t Big(const Bytes& bytes, size_t at, uint32_t length) {
  return at + length <= bytes.size() ? LoadBigExact(&bytes[at], length) : ~uint64_t{0};
}
Bytes Page(UnitRig& rig, uint8_t page) {
  return rig.Read({kInquiry, 1, page, 0, 255, 0}, 255);
}

TEST(InquiryTest, StandardDataNamesTheDisk) {
  UnitRig rig;
  const Bytes data = rig.Read({kInquiry, 0, 0, 0, 255, 0}, 255);
  ASSERT_EQ(data.size(), 96U);
  EXPECT_EQ(data[0], 0x00);
  EXPECT_EQ(data[2], 0x06);
  EXPECT_EQ(data[3] & 0x0f, 2);
  EXPECT_EQ(data[4] + 5U, data.size());
  EXPECT_EQ(data[7] & 0x02, 0x02);
  EXPECT_EQ(Text(data, 8, 28), "CLEAT   CLOUD DISK      1   ");
}

TEST(InquiryTest, AllocationLengthCutsTheReply) {
  UnitRig rig;
  TestCommand command({kInquiry, 0, 0, 0, 36, 0}, {}, 36);
  EXPECT_TRUE(rig.Run(command).good());
  EXPECT_EQ(command.transferred_bytes, 36U);
  TestCommand longer({kInquiry, 0, 0, 0, 5, 0}, {}, 36);
  EXPECT_TRUE(rig.Run(longer).good());
  EXPECT_EQ(longer.transferred_bytes, 5U);
  EXPECT_EQ(longer.in()[5], 0xee);  // untouched
}

TEST(InquiryTest, EveryListedPageIsThereAndNoOther) {
  UnitRig rig;
  const Bytes list = Page(rig, 0);
  EXPECT_EQ(Bytes(list.begin() + 4, list.end()), (Bytes{0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2}));
  for (unsigned page = 0; page < 256; ++page) {
    const Bytes data = Page(rig, static_cast<uint8_t>(page));
    const bool listed = std::find(list.begin() + 4, list.end(), page) != list.end();
    ASSERT_EQ(!data.empty(), listed) << page;
    if (!listed) {
      EXPECT_EQ(rig.Run({kInquiry, 1, static_cast<uint8_t>(page), 0, 255, 0}, {}, 255), "5/24/00");
      continue;
    }
    EXPECT_EQ(data[1], page);
    EXPECT_EQ(Big(data, 2, 2) + 4, data.size());
  }
  EXPECT_EQ(rig.Run({kInquiry, 0, 0x80, 0, 255, 0}, {}, 255), "5/24/00");  // a page without EVPD
}

TEST(InquiryTest, SerialAndNaaAreTheDisks) {
  UnitRig rig;
  const Bytes serial = Page(rig, 0x80);
  EXPECT_EQ(Text(serial, 4, serial.size() - 4), "vol-0123456789");
  const Bytes id = Page(rig, 0x83);
  EXPECT_EQ(Bytes(id.begin() + 4, id.begin() + 8), (Bytes{0x01, 0x03, 0x00, 0x08}));
  EXPECT_EQ(Big(id, 8, 8), 0x3123456789abcdefU);
  EXPECT_EQ(Bytes(id.begin() + 16, id.begin() + 20), (Bytes{0x02, 0x01, 0x00, 24 + 14}));
  EXPECT_EQ(Text(id, 20, 38), "CLEAT   CLOUD DISK      vol-0123456789");
  EXPECT_EQ(id.size(), 58U);
}

TEST(InquiryTest, LimitsFollowTheGeometry) {
  for (const uint32_t block : {512U, 4096U}) {
    UnitRig rig(TestGeometry(block));
    const Bytes limits = Page(rig, 0xb0);
    ASSERT_EQ(limits.size(), 64U);
    EXPECT_EQ(limits[4] & 1, 1);                 // WSNZ
    EXPECT_EQ(limits[5], (64 << 10) / block);    // COMPARE AND WRITE
    EXPECT_EQ(Big(limits, 6, 2), 4096 / block);  // granularity
    EXPECT_EQ(Big(limits, 20, 4), (uint64_t{4} << 30) / block);
    EXPECT_EQ(Big(limits, 24, 4), 32U);
    EXPECT_EQ(Big(limits, 28, 4), 4096 / block);
    EXPECT_EQ(Big(limits, 36, 8), (uint64_t{4} << 30) / block);
    EXPECT_EQ(Big(Page(rig, 0xb1), 4, 2), 1U);  // non-rotating
    EXPECT_EQ(Page(rig, 0xb2)[5], 0xe0);
    EXPECT_EQ(Page(rig, 0xb2)[6], 0x02);
  }
  block::Geometry plain = TestGeometry();
  plain.discard = plain.write_zeroes = false;
  UnitRig rig(plain);
  EXPECT_EQ(Big(Page(rig, 0xb0), 20, 4), 0U);
  EXPECT_EQ(Page(rig, 0xb2)[5], 0);
}

TEST(CapacityTest, SizeBlockAndProvisioning) {
  UnitRig rig(TestGeometry(512));
  const Bytes ten = rig.Read({kReadCapacity10, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 8);
  EXPECT_EQ(Big(ten, 0, 4), 4095U);
  EXPECT_EQ(Big(ten, 4, 4), 512U);
  Bytes cdb(16);
  cdb[0] = kServiceActionIn16;
  cdb[1] = kReadCapacity16Action;
  cdb[13] = 32;
  const Bytes sixteen = rig.Read(cdb, 32);
  ASSERT_EQ(sixteen.size(), 32U);
  EXPECT_EQ(Big(sixteen, 0, 8), 4095U);
  EXPECT_EQ(Big(sixteen, 8, 4), 512U);
  EXPECT_EQ(sixteen[13], 3);     // 8 logical blocks in a physical one
  EXPECT_EQ(sixteen[14], 0x80);  // LBPME
}

TEST(ReportLunsTest, OneUnitAndTheWellKnownOne) {
  UnitRig rig;
  const auto report = [&](uint8_t select) {
    return rig.Read({kReportLuns, 0, select, 0, 0, 0, 0, 0, 0, 64, 0, 0}, 64);
  };
  EXPECT_EQ(report(0), (Bytes{0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(report(1), (Bytes{0, 0, 0, 8, 0, 0, 0, 0, 0xc1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(report(2).size(), 24U);
  EXPECT_EQ(rig.Run({kReportLuns, 0, 3, 0, 0, 0, 0, 0, 0, 64, 0, 0}, {}, 64), "5/24/00");
}

// ---- REPORT SUPPORTED OPERATION CODES

Bytes OneOpcode(UnitRig& rig, uint8_t options, uint8_t opcode, uint8_t action) {
  return rig.Read({kMaintenanceIn, 0x0c, options, opcode, 0, action, 0, 0, 0, 255, 0, 0}, 255);
}

TEST(ReportOpcodesTest, AllOfThemAreTheTable) {
  UnitRig rig;
  for (const bool timeouts : {false, true}) {
    const Bytes all = rig.Read(
        {kMaintenanceIn, 0x0c, static_cast<uint8_t>(timeouts ? 0x80 : 0), 0, 0, 0, 0, 0, 8, 0, 0, 0}, 2048);
    const size_t each = timeouts ? 20 : 8;
    EXPECT_EQ(Big(all, 0, 4) + 4, all.size());
    ASSERT_EQ(all.size(), 4 + each * AllCommands().size());
    size_t at = 4;
    for (const CommandInfo& info : AllCommands()) {
      EXPECT_EQ(all[at], info.opcode);
      EXPECT_EQ(Big(all, at + 6, 2), info.cdb_bytes);
      EXPECT_EQ((all[at + 5] & 1) != 0, info.service_action >= 0);
      at += each;
    }
  }
}

// The decoder's word is the report's word: each bit that the usage data has not is refused, each that it has is not
// refused for being set.
TEST(ReportOpcodesTest, UsageDataIsWhatTheDecoderAccepts) {
  for (const CommandInfo& info : AllCommands()) {
    UnitRig rig;
    const auto action = static_cast<uint8_t>(info.service_action < 0 ? 0 : info.service_action);
    const Bytes one = OneOpcode(rig, info.service_action < 0 ? 1 : 2, info.opcode, action);
    ASSERT_EQ(one.size(), 4U + info.cdb_bytes);
    EXPECT_EQ(one[1] & 7, 3);
    for (size_t byte = 1; byte < info.cdb_bytes; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        if (byte == 1 && info.service_action >= 0 && bit < 5) continue;
        Cdb cdb{};
        cdb[0] = info.opcode;
        cdb[1] = action;
        cdb[byte] |= static_cast<uint8_t>(1 << bit);
        const BadField bad = CheckUsage(info, cdb);
        const bool used = (one[4 + byte] >> bit & 1) != 0;
        EXPECT_EQ(bad.byte < 0, used) << "opcode " << int{info.opcode} << " byte " << byte << " bit " << bit;
        if (!used) {
          const bool in = info.data == DataUse::kAllocation || info.data == DataUse::kBlocksIn ||
                          info.data == DataUse::kEightIn;
          constexpr size_t kEnough = 256 * 512;
          TestCommand command(Bytes(cdb.begin(), cdb.begin() + info.cdb_bytes), Filled(in ? 0 : kEnough, 0),
                              in ? kEnough : 0);
          rig.Run(command);
          EXPECT_EQ(command.Outcome(), "5/24/00") << int{info.opcode};
          EXPECT_EQ(command.sense.pointer_byte, byte);
          EXPECT_EQ(command.sense.pointer_bit, bit);
        }
      }
    }
  }
}

TEST(ReportOpcodesTest, UnknownOpcodesAndOptions) {
  UnitRig rig;
  EXPECT_EQ(OneOpcode(rig, 1, 0x5e, 0), (Bytes{0, 1, 0, 0}));  // PERSISTENT RESERVE IN
  EXPECT_EQ(OneOpcode(rig, 3, kServiceActionIn16, 0x1f), (Bytes{0, 1, 0, 0}));
  EXPECT_EQ(OneOpcode(rig, 0x83, kTestUnitReady, 0).size(), 4U + 6 + 12);
  EXPECT_TRUE(OneOpcode(rig, 1, kServiceActionIn16, 0x10).empty());  // it has service actions
  EXPECT_TRUE(OneOpcode(rig, 2, kTestUnitReady, 0).empty());         // it has none
  EXPECT_TRUE(OneOpcode(rig, 5, kTestUnitReady, 0).empty());
  block::Geometry plain = TestGeometry();
  plain.discard = false;
  UnitRig thick(plain);
  EXPECT_EQ(OneOpcode(thick, 1, kUnmap, 0), (Bytes{0, 1, 0, 0}));
  EXPECT_EQ(thick.Run(Cdb10(kUnmap, 0, 0)), "5/20/00");
}

}  // namespace
}  // namespace cleat::scsi::inquiry_test
