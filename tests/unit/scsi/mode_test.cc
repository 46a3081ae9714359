// SPDX-License-Identifier: Apache-2.0
// Mode parameters, sense formats, unit attentions.
#include <gtest/gtest.h>

#include "unit_rig.h"

namespace cleat::scsi::mode_test {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes Sense6(UnitRig& rig, uint8_t page, uint8_t byte1 = 0) {
  return rig.Read({kModeSense6, byte1, page, 0, 255, 0}, 255);
}

TEST(ModeTest, HeaderDescriptorAndBothPages) {
  UnitRig rig;
  const Bytes all = Sense6(rig, 0x3f);
  ASSERT_EQ(all.size(), 4U + 8 + 20 + 12);
  EXPECT_EQ(all[0] + 1U, all.size());
  EXPECT_EQ(all[2], 0x10);  // DPOFUA
  EXPECT_EQ(all[3], 8);
  EXPECT_EQ(LoadBigExact(&all[4], 4), 4096U);
  EXPECT_EQ(LoadBigExact(&all[9], 3), 512U);
  EXPECT_EQ(all[12], 0x08);
  EXPECT_EQ(all[14], 0x04);  // WCE
  EXPECT_EQ(all[32], 0x0a);
  EXPECT_EQ(Sense6(rig, 0x08, 0x08).size(), 4U + 20);  // DBD
  const Bytes ten = rig.Read({kModeSense10, 0x10, 0x0a, 0, 0, 0, 0, 0, 255, 0}, 255);
  ASSERT_EQ(ten.size(), 8U + 16 + 12);
  EXPECT_EQ(LoadBigExact(ten.data(), 2) + 2, ten.size());
  EXPECT_EQ(ten[4], 1);  // LONGLBA
  EXPECT_EQ(LoadBigExact(&ten[8], 8), 4096U);
}

TEST(ModeTest, PageControls) {
  UnitRig rig;
  rig.logical_unit->SetMode({.descriptor_sense = true});
  EXPECT_EQ(Sense6(rig, 0x08, 8)[6], 0x04);         // WCE
  EXPECT_EQ(Sense6(rig, 0x48, 8)[6], 0x00);         // is not changeable
  EXPECT_EQ(Sense6(rig, 0x88, 8)[6], 0x04);         // default
  EXPECT_EQ(Sense6(rig, 0x0a, 8)[6] & 0x04, 0x04);  // D_SENSE
  EXPECT_EQ(Sense6(rig, 0x4a, 8)[6], 0x04);         // is changeable
  EXPECT_EQ(Sense6(rig, 0x8a, 8)[6] & 0x04, 0x00);  // off by default
  EXPECT_EQ(rig.Run({kModeSense6, 0, 0xc8, 0, 255, 0}, {}, 255), "5/39/00");
  EXPECT_EQ(rig.Run({kModeSense6, 0, 0x01, 0, 255, 0}, {}, 255), "5/24/00");
  EXPECT_EQ(rig.Run({kModeSense6, 0, 0x08, 1, 255, 0}, {}, 255), "5/24/00");
}

TEST(ModeTest, ReadOnlyAndCachelessDisks) {
  UnitRig read_only(TestGeometry(), block::AccessMode::kReadOnly);
  EXPECT_EQ(Sense6(read_only, 0x08)[2], 0x90);  // WP
  block::Geometry geometry = TestGeometry();
  geometry.write_cache = false;
  UnitRig cacheless(geometry);
  EXPECT_EQ(Sense6(cacheless, 0x08, 8)[6], 0);
  EXPECT_EQ(Sense6(cacheless, 0x48, 8)[6], 0);
}

Bytes CachingList(uint8_t wce_bits) {
  Bytes list(4 + 20);
  list[4] = 0x08;
  list[5] = 18;
  list[6] = wce_bits;
  return list;
}

// The next engine would not know of it: no guest may rely on a cache that is switched off.
TEST(ModeTest, TheWriteCacheStaysOn) {
  UnitRig rig;
  TestCommand off({kModeSelect6, 0x10, 0, 0, 24, 0}, CachingList(0));
  EXPECT_EQ(rig.Run(off).Outcome(), "5/26/00");
  EXPECT_EQ(off.sense.pointer_byte, 6);
  EXPECT_EQ(rig.Run({kModeSelect6, 0x10, 0, 0, 24, 0}, CachingList(4)), "good");
}

TEST(ModeTest, TheSenseFormatIsSelected) {
  UnitRig rig;
  const Bytes list = {0, 0, 0, 0, 0x0a, 0x0a, 0x06, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0};
  ASSERT_EQ(rig.Run({kModeSelect6, 0x10, 0, 0, static_cast<uint8_t>(list.size()), 0}, list), "good");
  EXPECT_TRUE(rig.logical_unit->mode().descriptor_sense);
}

TEST(ModeTest, ASelectThatMakesNoSenseChangesNothing) {
  struct Case {
    const char* what;
    Bytes list;
    std::string outcome;
    int pointer;
  };
  Bytes with_descriptor = {0, 0, 0, 8, 0, 0, 0x10, 0, 0, 0, 2, 0};
  Bytes wrong_block = {0, 0, 0, 8, 0, 0, 0x10, 0, 0, 0, 16, 0};
  Bytes wrong_count = {0, 0, 0, 8, 0, 0, 0x11, 0, 0, 0, 2, 0};
  Bytes both = CachingList(4);
  both.insert(both.end(), {0x0a, 0x0a, 0x02, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0});  // QAM differs
  const Case cases[] = {
      {"nothing", {}, "good", -1},
      {"a cut header", {0, 0, 0}, "5/1a/00", -1},
      {"header alone", {0, 0, 0, 0}, "good", -1},
      {"what is true", with_descriptor, "good", -1},
      {"another block size", wrong_block, "5/26/00", 9},
      {"another capacity", wrong_count, "5/26/00", 4},
      {"a descriptor of 4 bytes", {0, 0, 0, 4, 0, 0, 0, 0}, "5/26/00", 3},
      {"a cut descriptor", {0, 0, 0, 8, 0, 0}, "5/1a/00", -1},
      {"an unknown page", {0, 0, 0, 0, 0x1c, 0}, "5/26/00", 4},
      {"a subpage", {0, 0, 0, 0, 0x48, 0}, "5/26/00", 4},
      {"a page of the wrong length", {0, 0, 0, 0, 0x08, 10}, "5/26/00", 5},
      {"a cut page", {0, 0, 0, 0, 0x08, 18, 0}, "5/1a/00", -1},
      {"RCD, which is not changeable", CachingList(0x05), "5/26/00", 6},
      {"a good page and a bad one", both, "5/26/00", 27},
  };
  for (const Case& test : cases) {
    UnitRig rig;
    TestCommand command({kModeSelect6, 0x10, 0, 0, static_cast<uint8_t>(test.list.size()), 0}, test.list);
    EXPECT_EQ(rig.Run(command).Outcome(), test.outcome) << test.what;
    if (test.pointer >= 0) {
      EXPECT_EQ(command.sense.pointer_byte, test.pointer) << test.what;
    }
    EXPECT_EQ(rig.logical_unit->mode(), ModeParameters{}) << test.what;
  }
  UnitRig rig;
  EXPECT_EQ(rig.Run({kModeSelect6, 0x00, 0, 0, 24, 0}, CachingList(0)), "5/24/00");  // PF
  EXPECT_EQ(rig.Run({kModeSelect6, 0x11, 0, 0, 24, 0}, CachingList(0)), "5/24/00");  // SP
  Bytes long_list = CachingList(0);
  long_list.resize(200);
  EXPECT_NE(rig.Run({kModeSelect6, 0x10, 0, 0, 200, 0}, long_list), "good");
}

TEST(SenseTest, BothFormats) {
  Sense sense;
  sense.key = SenseKey::kMiscompare;
  sense.code = SenseCode::kMiscompareDuringVerify;
  sense.has_information = true;
  sense.information = 0x1234;
  std::array<uint8_t, kSenseBytesMax> out;
  ASSERT_EQ(WriteSense(sense, false, out), 18U);
  EXPECT_EQ(Bytes(out.begin(), out.begin() + 14),
            (Bytes{0xf0, 0, 0x0e, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x1d, 0}));
  ASSERT_EQ(WriteSense(sense, true, out), 20U);
  EXPECT_EQ(Bytes(out.begin(), out.begin() + 20),
            (Bytes{0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12, 0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34}));
  sense.information = uint64_t{1} << 32;  // does not fit the fixed format
  WriteSense(sense, false, out);
  EXPECT_EQ(out[0], 0x70);
  sense.pointer = Sense::Pointer::kCdb;
  sense.pointer_byte = 2;
  sense.pointer_bit = 5;
  WriteSense(sense, false, out);
  EXPECT_EQ(Bytes(out.begin() + 15, out.begin() + 18), (Bytes{0xcd, 0, 2}));
  EXPECT_EQ(WriteSense(sense, true, out), 28U);
}

TEST(AttentionTest, EachIsReportedOnceAndInquiryIsNotRefused) {
  UnitRig rig;
  rig.logical_unit->Raise(Attention::kCapacityChanged);
  rig.logical_unit->Reset();
  EXPECT_EQ(rig.Run({kInquiry, 0, 0, 0, 36, 0}, {}, 36), "good");
  EXPECT_EQ(rig.Run({kReportLuns, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0}, {}, 16), "good");
  EXPECT_EQ(rig.Run({kTestUnitReady, 0, 0, 0, 0, 0}), "6/29/03");
  const Bytes sense = rig.Read({kRequestSense, 0, 0, 0, 252, 0}, 252);
  ASSERT_EQ(sense.size(), 18U);
  EXPECT_EQ(sense[2], 6);
  EXPECT_EQ(sense[12], 0x2a);
  EXPECT_EQ(sense[13], 0x09);
  EXPECT_EQ(rig.Run({kTestUnitReady, 0, 0, 0, 0, 0}), "good");
  EXPECT_EQ(rig.Read({kRequestSense, 1, 0, 0, 252, 0}, 252), (Bytes{0x72, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(AttentionTest, AWriteThatIsRefusedForAnAttentionWritesNothing) {
  UnitRig rig;
  rig.logical_unit->Raise(Attention::kNexusLoss);
  EXPECT_EQ(rig.Run(Cdb10(kWrite10, 1, 1), Filled(512, 7)), "6/29/07");
  EXPECT_TRUE(rig.disk.seen.empty());
}

TEST(AttentionTest, AResetTakesTheModeBack) {
  UnitRig rig;
  rig.logical_unit->SetMode({.descriptor_sense = true});
  rig.logical_unit->Reset();
  EXPECT_EQ(rig.logical_unit->mode(), ModeParameters{});
}

TEST(IdentityTest, WhatScsiCannotShowIsRefused) {
  Identity identity = TestIdentity();
  EXPECT_TRUE(CheckIdentity(identity, "disks/a"));
  identity.serial = "twenty-one-characters";
  EXPECT_NE(CheckIdentity(identity, "disks/a").error().message.find("at most 20"), std::string::npos);
  identity.serial = "tab\t";
  EXPECT_FALSE(CheckIdentity(identity, "disks/a"));
}

}  // namespace
}  // namespace cleat::scsi::mode_test
