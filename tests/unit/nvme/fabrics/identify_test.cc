// SPDX-License-Identifier: Apache-2.0
#include "nvme/fabrics/identify.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "tests/unit/nvme/fabrics/target_pages.h"

namespace cleat::nvme::fabrics {
namespace {

template <typename Number>
void ExpectRefused(size_t offset, Number number, std::string_view part) {
  Page page = ControllerPage();
  page.Put<Number>(offset, number);
  const auto parsed = ParseFabrics(page.data(), "subsystems/a");
  ASSERT_FALSE(parsed.ok()) << part;
  EXPECT_NE(parsed.error().message.find(part), std::string::npos) << parsed.error().message;
}

TEST(FabricsIdentify, AControllerSaysWhatAHostNeeds) {
  const FabricsInfo info = ParseFabrics(ControllerPage().data(), "a").value();
  EXPECT_EQ(info.controller_id, 7);
  EXPECT_EQ(info.subsystem_nqn, kTestSubsystem);
  EXPECT_EQ(info.in_capsule_bytes, 8192U);
  EXPECT_EQ(info.response_bytes, 16U);
  EXPECT_EQ(info.keep_alive_granularity_ms, 1000U);
  EXPECT_EQ(info.command_quiesce_ms, 250U);
  EXPECT_EQ(info.events_max, 4U);
  EXPECT_TRUE(info.log_offsets && info.ana);
  EXPECT_EQ(info.ana_groups_max, 4U);
  EXPECT_EQ(info.ana_transition_ns, 10'000'000'000U);
}

TEST(FabricsIdentify, WhatCannotBeUsedIsRefusedByName) {
  ExpectRefused<uint32_t>(1792, 3, "IOCCSZ");
  ExpectRefused<uint32_t>(1792, UINT32_MAX, "IOCCSZ");
  ExpectRefused<uint32_t>(1796, 0, "IORCSZ");
  ExpectRefused<uint16_t>(1800, 1, "ICDOFF");
  ExpectRefused<uint16_t>(320, 0, "KAS");
  ExpectRefused<uint32_t>(536, 0, "SGLS");
  ExpectRefused<uint8_t>(512, 0x55, "SQES");
  ExpectRefused<uint8_t>(513, 0x00, "CQES");
  ExpectRefused<uint32_t>(348, 0, "NANAGRPID");
  ExpectRefused<uint8_t>(768, '\n', "SUBNQN");
}

TEST(FabricsIdentify, ADiscoveryControllerNeedsNoStorage) {
  Page page;
  page.Put<uint8_t>(111, 2);
  EXPECT_TRUE(ParseFabrics(page.data(), "a")->discovery);
}

TEST(Descriptors, EachKindOfIdentifierIsRead) {
  Page page;
  const uint8_t list[] = {1, 8,  0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2, 16, 0, 0, 9,  9, 9, 9, 9,
                          9, 9,  9, 9, 9, 9, 9, 9, 9, 9, 9, 4, 1, 0,  0, 0, 77, 1, 0, 0, 42,
                          3, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  0, 0, 0,  0, 0, 0};
  std::memcpy(page.bytes.data(), list, sizeof(list));
  const NamespaceIds ids = ParseDescriptors(page.data(), "a").value();
  EXPECT_EQ(TextOfIds(ids), "NGUID 09090909090909090909090909090909, EUI64 0102030405060708");
  EXPECT_FALSE(ids.uuid) << "zeroes are none";
  EXPECT_EQ(TextOfIds({}), "no identifier");
}

TEST(Descriptors, DamageIsRefused) {
  Page page = DescriptorsPage();
  page.Put<uint8_t>(1, 15);
  EXPECT_FALSE(ParseDescriptors(page.data(), "a").ok());
  page = DescriptorsPage();
  std::memcpy(page.bytes.data() + 20, page.bytes.data(), 20);
  EXPECT_FALSE(ParseDescriptors(page.data(), "a").ok()) << "one kind twice";
  page = Page();
  page.Put<uint32_t>(0, 0x0104);
  page.Put<uint8_t>(4, 2);
  EXPECT_EQ(ParseDescriptors(page.data(), "a").error().code, ErrorCode::kUnimplemented) << "zoned";
  page = Page();
  for (size_t at = 0; at < kIdentifyBytes; at += 4) page.Put<uint32_t>(at, 77);
  EXPECT_FALSE(ParseDescriptors(page.data(), "a").ok()) << "lengths of zero";
}

TEST(ActiveNamespaces, AreInOrder) {
  Page page;
  std::array<uint32_t, kListedMax> ids{};
  EXPECT_EQ(ParseActiveNamespaces(page.data(), 0, ids, "a").value(), 0U);
  page.Put<uint32_t>(0, 3);
  page.Put<uint32_t>(4, 9);
  EXPECT_EQ(ParseActiveNamespaces(page.data(), 0, ids, "a").value(), 2U);
  EXPECT_EQ(ids[1], 9U);
  EXPECT_FALSE(ParseActiveNamespaces(page.data(), 3, ids, "a").ok()) << "not after 3: no end to such a list";
  page.Put<uint32_t>(4, 3);
  EXPECT_FALSE(ParseActiveNamespaces(page.data(), 0, ids, "a").ok());
}

TEST(FabricsIdentify, AnyBytesAreReadOrRefused) {
  Random random(5);
  std::array<uint32_t, kListedMax> ids{};
  uint64_t taken = 0;
  for (int i = 0; i < 5000; ++i) {
    Page page = random.Chance(1, 2) ? ControllerPage() : DescriptorsPage();
    for (int j = 0; j < 8; ++j)
      page.bytes[random.Chance(1, 2) ? random.Below(64) : random.Below(2048)] =
          static_cast<uint8_t>(random.Next());
    if (auto info = ParseFabrics(page.data(), "a"); info && !info->discovery) {
      ++taken;
      ASSERT_GT(info->keep_alive_granularity_ms, 0U);
    }
    (void)ParseDescriptors(page.data(), "a");
    (void)ParseActiveNamespaces(page.data(), 0, ids, "a");
  }
  EXPECT_GT(taken, 0U);
}

}  // namespace
}  // namespace cleat::nvme::fabrics
