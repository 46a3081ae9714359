// SPDX-License-Identifier: Apache-2.0
#include "nvme/identify.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "base/random.h"

namespace cleat::nvme::identify_test {
namespace {

struct Page {
  std::array<uint8_t, kIdentifyBytes> bytes{};

  IdentifyData data() const { return IdentifyData(bytes); }
  template <typename Number>
  void Put(size_t offset, Number number) {
    std::memcpy(bytes.data() + offset, &number, sizeof(number));
  }
  void PutText(size_t offset, size_t field_bytes, const std::string& text) {
    std::memset(bytes.data() + offset, ' ', field_bytes);
    std::memcpy(bytes.data() + offset, text.data(), text.size());
  }
};

// What QEMU's controller says of itself.
Page Controller() {
  Page page;
  page.PutText(4, 20, "S3R1AL");
  page.PutText(24, 40, "QEMU NVMe Ctrl");
  page.PutText(64, 8, "10.0");
  page.Put<uint8_t>(77, 7);            // MDTS: 512 KiB
  page.Put<uint32_t>(80, 0x00010400);  // 1.4
  page.Put<uint16_t>(520, 0x075d);     // ONCS
  page.Put<uint8_t>(525, 7);           // VWC
  page.Put<uint16_t>(528, 7);          // AWUPF: 8 blocks
  return page;
}

// 1 GiB in blocks of 512 bytes, the first of two formats.
Page Namespace() {
  Page page;
  page.Put<uint64_t>(0, 1 << 21);
  page.Put<uint8_t>(25, 1);
  page.Put<uint8_t>(33, 0x09);         // DLFEAT: zeroes, and Write Zeroes may deallocate
  page.Put<uint16_t>(46, 256);         // NOIOB
  page.Put<uint32_t>(128, 9U << 16);   // format 0: 512
  page.Put<uint32_t>(132, 12U << 16);  // format 1: 4096
  return page;
}

ControllerInfo ParsedController() {
  return ParseController(Controller().data(), "ng0n1").value();
}

void ExpectRefused(const Page& page, const std::string& part) {
  const auto parsed = ParseNamespace(page.data(), ParsedController(), "ng0n1");
  ASSERT_FALSE(parsed.ok()) << part;
  EXPECT_NE(parsed.error().message.find(part), std::string::npos) << parsed.error().message;
  EXPECT_TRUE(parsed.error().message.starts_with("ng0n1 ")) << parsed.error().message;
}

TEST(Identify, AControllerSaysWhatItIs) {
  const ControllerInfo info = ParsedController();
  EXPECT_EQ(info.serial, "S3R1AL");
  EXPECT_EQ(info.model, "QEMU NVMe Ctrl");
  EXPECT_EQ(info.firmware, "10.0");
  EXPECT_EQ(info.version, 0x00010400U);
  EXPECT_EQ(info.transfer_bytes_max, 512U << 10);
  EXPECT_TRUE(info.write_cache && info.write_zeroes && info.dataset_management);
  EXPECT_EQ(info.write_unit_power_fail, 8U);
}

TEST(Identify, AControllerOfFewWords) {
  Page page;
  const ControllerInfo info = ParseController(page.data(), "ng0n1").value();
  EXPECT_EQ(info.transfer_bytes_max, 0U) << "no limit";
  EXPECT_FALSE(info.write_cache || info.write_zeroes || info.dataset_management);
  EXPECT_EQ(info.model, "");
  page.Put<uint8_t>(77, 255);
  EXPECT_EQ(ParseController(page.data(), "ng0n1").value().transfer_bytes_max, 0U)
      << "2^255 pages are no limit";
  page.Put<uint8_t>(111, 2);
  EXPECT_NE(ParseController(page.data(), "ng0n1").error().message.find("discovery"), std::string::npos);
}

TEST(Identify, WhatADriveCallsItselfIsPrintable) {
  Page page = Controller();
  page.PutText(24, 40, "a\x1b[31mb\n\xff drive");
  EXPECT_EQ(ParseController(page.data(), "ng0n1").value().model, "a [31mb   drive");
}

TEST(Identify, ANamespaceSaysWhatItIs) {
  Page page = Namespace();
  const NamespaceInfo info = ParseNamespace(page.data(), ParsedController(), "ng0n1").value();
  EXPECT_EQ(info.blocks, 1U << 21);
  EXPECT_EQ(info.block_bytes, 512U);
  EXPECT_EQ(info.boundary_blocks, 256U);
  EXPECT_EQ(info.write_unit_power_fail, 8U) << "the controller's";
  EXPECT_EQ(info.discard_granularity_blocks, 0U);
  EXPECT_TRUE(info.deallocated_reads_zero && info.write_zeroes_deallocates);
  EXPECT_FALSE(info.shared || info.write_protected);
  page.Put<uint8_t>(24, 0x12);  // NSFEAT: NAWUPF and NPDG are there
  page.Put<uint16_t>(36, 0);
  page.Put<uint16_t>(68, 7);
  page.Put<uint8_t>(26, 1);
  page.Put<uint8_t>(30, 1);
  page.Put<uint8_t>(33, 2);  // deallocated blocks read as ones
  page.Put<uint8_t>(99, 1);
  const NamespaceInfo other = ParseNamespace(page.data(), ParsedController(), "ng0n1").value();
  EXPECT_EQ(other.block_bytes, 4096U);
  EXPECT_EQ(other.write_unit_power_fail, 1U);
  EXPECT_EQ(other.discard_granularity_blocks, 8U);
  EXPECT_FALSE(other.deallocated_reads_zero || other.write_zeroes_deallocates);
  EXPECT_TRUE(other.shared && other.write_protected);
}

TEST(Identify, WhatNoDiskCanLieOnIsRefusedByName) {
  ExpectRefused(Page(), "no active namespace");
  Page page = Namespace();
  page.Put<uint32_t>(128, 9U << 16 | 8);
  ExpectRefused(page, "8 bytes of metadata");
  page.Put<uint8_t>(29, 1);
  ExpectRefused(page, "protection information of type 1");
  page = Namespace();
  page.Put<uint8_t>(26, 5);
  ExpectRefused(page, "format 5");
  page = Namespace();
  page.Put<uint32_t>(128, 16U << 16);
  ExpectRefused(page, "2^16");
  page.Put<uint32_t>(128, 8U << 16);
  ExpectRefused(page, "2^8");
  page = Namespace();
  page.Put<uint64_t>(0, UINT64_MAX);
  ExpectRefused(page, "blocks");
}

// The drive may be anybody's.
TEST(Identify, AnyBytesAreReadOrRefused) {
  Random random(1);
  uint64_t taken = 0;
  for (int i = 0; i < 20000; ++i) {
    Page page = random.Chance(1, 2) ? Namespace() : Page();
    for (int j = 0; j < 40; ++j) page.bytes[random.Below(160)] = static_cast<uint8_t>(random.Next());
    const auto parsed = ParseNamespace(page.data(), ParsedController(), "ng0n1");
    if (!parsed) continue;
    ++taken;
    ASSERT_GE(parsed.value().block_bytes, 512U);
    ASSERT_LE(parsed.value().block_bytes, 4096U);
    ASSERT_LE(parsed.value().blocks, UINT64_MAX / parsed.value().block_bytes);
  }
  EXPECT_GT(taken, 0U);
}

}  // namespace
}  // namespace cleat::nvme::identify_test
