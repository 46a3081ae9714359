// SPDX-License-Identifier: Apache-2.0
// A drive's SMART log as people and alarms get it, whatever the drive fills in.
#include "nvme/smart_log.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "base/random.h"

namespace cleat::nvme::smart_log_test {
namespace {

struct Page {
  std::array<uint8_t, kSmartLogBytes> bytes{};

  SmartLog parsed() const { return ParseSmartLog(SmartLogData(bytes)); }
  template <typename Number>
  void Put(size_t offset, Number number) {
    std::memcpy(bytes.data() + offset, &number, sizeof(number));
  }
};

// The log of a drive that has been used for some years.
Page Used() {
  Page page;
  page.Put<uint8_t>(0, 1U << 3);
  page.Put<uint16_t>(1, 273 + 41);
  page.Put<uint8_t>(3, 97);
  page.Put<uint8_t>(4, 10);
  page.Put<uint8_t>(5, 23);
  page.Put<uint64_t>(32, 999);        // read
  page.Put<uint64_t>(48, 2'000'000);  // written
  page.Put<uint64_t>(112, 7);         // power cycles
  page.Put<uint64_t>(128, 20'000);
  page.Put<uint64_t>(144, 12);
  page.Put<uint64_t>(160, 3);
  page.Put<uint64_t>(176, 99);  // entries of the error log
  return page;
}

TEST(SmartLog, SaysWhatTheDriveSays) {
  const SmartLog log = Used().parsed();
  EXPECT_EQ(log.critical_warning, 8U);
  EXPECT_EQ(log.temperature_celsius, 41);
  EXPECT_EQ(log.spare_percent, 97U);
  EXPECT_EQ(log.spare_threshold_percent, 10U);
  EXPECT_EQ(log.wear_percent, 23U);
  EXPECT_EQ(log.written_bytes, 1'024'000'000'000U);
  EXPECT_EQ(log.power_on_hours, 20'000U);
  EXPECT_EQ(log.unsafe_shutdowns, 12U);
  EXPECT_EQ(log.media_errors, 3U);
}

TEST(SmartLog, WhatIsNotReportedOrCantBeIsLeftOut) {
  const SmartLog nothing = Page().parsed();
  EXPECT_FALSE(nothing.temperature_celsius);
  EXPECT_FALSE(nothing.spare_percent);
  EXPECT_FALSE(nothing.spare_threshold_percent);
  EXPECT_FALSE(nothing.written_bytes);
  EXPECT_EQ(nothing.wear_percent, 0U);

  Page odd = Used();
  odd.Put<uint16_t>(1, 0xffff);
  odd.Put<uint8_t>(3, 101);
  odd.Put<uint8_t>(4, 255);
  EXPECT_FALSE(odd.parsed().temperature_celsius);
  EXPECT_FALSE(odd.parsed().spare_percent);
  EXPECT_FALSE(odd.parsed().spare_threshold_percent);

  // A spare that is used up is no missing one.
  Page spent = Used();
  spent.Put<uint8_t>(3, 0);
  EXPECT_EQ(spent.parsed().spare_percent, 0U);
  EXPECT_EQ(spent.parsed().spare_threshold_percent, 10U);
  // Nor is one of a drive without a threshold.
  Page no_threshold = Used();
  no_threshold.Put<uint8_t>(4, 0);
  EXPECT_EQ(no_threshold.parsed().spare_percent, 97U);
}

TEST(SmartLog, LargeNumbersEndAtTheLargest) {
  Page page = Used();
  page.Put<uint64_t>(48, UINT64_MAX / 512'000);
  EXPECT_EQ(page.parsed().written_bytes, UINT64_MAX / 512'000 * 512'000);
  page.Put<uint64_t>(48, UINT64_MAX / 512'000 + 1);
  EXPECT_EQ(page.parsed().written_bytes, UINT64_MAX);
  page.Put<uint64_t>(48, 0);
  page.Put<uint64_t>(56, 1);  // 2^64 units
  EXPECT_EQ(page.parsed().written_bytes, UINT64_MAX);
  page.Put<uint8_t>(175, 1);
  EXPECT_EQ(page.parsed().media_errors, UINT64_MAX);
  page.Put<uint8_t>(5, 255);
  EXPECT_EQ(page.parsed().wear_percent, 255U);
}

TEST(SmartLog, TemperaturesThatNoDriveHasAreNone) {
  EXPECT_EQ(CelsiusOf(173'000), -100);
  EXPECT_EQ(CelsiusOf(473'000), 200);
  EXPECT_EQ(CelsiusOf(273'999), 0);
  for (const int64_t none :
       {int64_t{0}, int64_t{172'999}, int64_t{474'000}, int64_t{-300'000}, INT64_MAX, INT64_MIN})
    EXPECT_FALSE(CelsiusOf(none)) << none;
}

TEST(SmartLog, EachWarningHasAPhrase) {
  EXPECT_TRUE(WarningsOf(0).empty());
  EXPECT_EQ(WarningsOf(1), std::vector<std::string>{"the spare is below its threshold"});
  EXPECT_EQ(WarningsOf(kTemperatureWarning),
            std::vector<std::string>{"the temperature is beyond a threshold"});
  EXPECT_EQ(WarningsOf(1U << 3), std::vector<std::string>{"the media is read-only"});
  EXPECT_EQ(WarningsOf(1U << 7),
            std::vector<std::string>{"bit 7 of its critical warnings, whose meaning is not known"});
  const auto all = WarningsOf(0xff);
  EXPECT_EQ(all.size(), 8U);
  for (unsigned bit = 0; bit < 8; ++bit)
    EXPECT_EQ(WarningsOf(static_cast<uint8_t>(1U << bit)).front(), all[bit]);
}

TEST(SmartLog, AnyBytesAreRead) {
  Random random(5);
  for (int round = 0; round < 10'000; ++round) {
    Page page;
    for (uint8_t& byte : page.bytes) byte = static_cast<uint8_t>(random.Between(0, 255));
    const SmartLog log = page.parsed();
    EXPECT_EQ(log.wear_percent, page.bytes[5]);
    if (log.temperature_celsius) {
      EXPECT_GE(*log.temperature_celsius, -100);
      EXPECT_LE(*log.temperature_celsius, 200);
    }
    EXPECT_LE(log.spare_percent.value_or(0), 100U);
    EXPECT_LE(log.spare_threshold_percent.value_or(0), 100U);
    EXPECT_EQ(WarningsOf(log.critical_warning).empty(), page.bytes[0] == 0);
  }
}

TEST(SmartLog, IsAskedForAsAWhole) {
  const Command get = GetLogPage(LogPage::kSmart, kAllNamespaces, kSmartLogBytes);
  EXPECT_EQ(get.opcode, 2U);
  EXPECT_EQ(get.nsid, 0xffff'ffffU);
  EXPECT_EQ(get.cdw10, 127U << 16 | 2U);
}

}  // namespace
}  // namespace cleat::nvme::smart_log_test
