// SPDX-License-Identifier: Apache-2.0
// Sizes, times, tables, names: what is read from and written for people.
#include <gtest/gtest.h>

#include <chrono>
#include <limits>

#include "ctl/client.h"
#include "ctl/limits.h"
#include "ctl/nearest.h"
#include "ctl/size.h"
#include "ctl/table.h"

namespace cleat::ctl::values_test {
namespace {

TEST(SizeTest, UnitsArePowersOf1024) {
  EXPECT_EQ(ParseSize("0").value(), 0U);
  EXPECT_EQ(ParseSize("4096").value(), 4096U);
  EXPECT_EQ(ParseSize("4096B").value(), 4096U);
  EXPECT_EQ(ParseSize("64k").value(), 64U << 10);
  EXPECT_EQ(ParseSize("64KiB").value(), 64U << 10);
  EXPECT_EQ(ParseSize("512M").value(), 512U << 20);
  EXPECT_EQ(ParseSize("10Gi").value(), 10ULL << 30);
  EXPECT_EQ(ParseSize("1.5T").value(), 3ULL << 39);
  EXPECT_EQ(ParseSize("1P").value(), 1ULL << 50);
  EXPECT_EQ(ParseSize("18446744073709551615").value(), std::numeric_limits<uint64_t>::max());
}

TEST(LimitTest, LimitsAreReadAsTheyAreWritten) {
  const auto limits =
      ParseLimits({"iops=6k,burst=12000/30s", "write-bytes=100M", "read_bytes=1G,burst=2G/1500ms"});
  ASSERT_TRUE(limits.ok()) << limits.error().message;
  EXPECT_EQ(limits->iops().per_second(), 6000U);
  EXPECT_EQ(limits->iops().burst_per_second(), 12'000U);
  EXPECT_EQ(limits->iops().burst_duration().seconds(), 30);
  EXPECT_EQ(limits->write_bytes().per_second(), 100ULL << 20);
  EXPECT_FALSE(limits->write_bytes().has_burst_duration());
  EXPECT_EQ(limits->read_bytes().burst_duration().nanos(), 500'000'000);
  EXPECT_FALSE(limits->has_bytes());
  EXPECT_EQ(
      ShowLimits(*limits),
      "iops 6000, burst 12000 for 30 s; read_bytes 1 GiB, burst 2 GiB for 1500 ms; write_bytes 100 MiB");
  EXPECT_EQ(ParseLimits({"none"})->ByteSizeLong(), 0U);
  EXPECT_EQ(ShowLimits({}), "");
}

TEST(LimitTest, ABadLimitIsNamedWithTheCauseAndWhatToWrite) {
  const std::pair<const char*, const char*> cases[] = {
      {"iops", "no '='"},
      {"oips=5", "Did you mean iops"},
      {"iops=five", "whole number"},
      {"iops=0", "lets nothing pass"},
      {"bytes=10GB", "powers of 1000"},
      {"iops=5,12000/30s", "comes a burst"},
      {"iops=5,burst=12000", "comes a burst"},
      {"iops=5,burst=12000/30", "is not a time"},
  };
  for (const auto& [text, why] : cases) {
    const auto limits = ParseLimits({text});
    ASSERT_FALSE(limits.ok()) << text;
    EXPECT_NE(limits.error().message.find(why), std::string::npos) << limits.error().message;
  }
  EXPECT_FALSE(ParseLimits({"iops=5", "iops=6"}).ok());
  EXPECT_FALSE(ParseLimits({"none", "iops=6"}).ok());
}

TEST(SizeTest, ABadSizeIsNamedWithTheCauseAndWhatToWrite) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "does not begin with a digit"},
      {"G", "does not begin with a digit"},
      {"-1", "does not begin with a digit"},
      {"10GB", "powers of 1000"},
      {"10Q", "'Q' is no unit"},
      {"10 G", "is no unit"},
      {"10GiBs", "is no unit"},
      {"1.25G", "one digit"},
      {"1.G", "one digit"},
      {"1.5", "whole number of bytes"},
      {"0.1K", "whole number of bytes"},
      {"16384P", "too large"},
      {"99999999999999999999", "too large"},
  };
  for (const auto& [text, cause] : cases) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.error().message.find(std::string("'") + text + "' is not a size"), std::string::npos);
    EXPECT_NE(size.error().message.find(cause), std::string::npos) << size.error().message;
    EXPECT_NE(size.error().message.find("10G"), std::string::npos);
  }
}

TEST(SizeTest, SizesAreShortOnlyWhenTheyAreExact) {
  EXPECT_EQ(HumanSize(0), "0 B");
  EXPECT_EQ(HumanSize(1023), "1023 B");
  EXPECT_EQ(HumanSize(10ULL << 30), "10 GiB");
  EXPECT_EQ(HumanSize(3ULL << 19), "1.5 MiB");
  EXPECT_EQ(HumanSize((1ULL << 30) + 512), "1073742336 B");
  EXPECT_EQ(HumanSize(1ULL << 50), "1 PiB");
}

TEST(SizeTest, WhatIsCountedIsRoundedDown) {
  EXPECT_EQ(RoundedSize(0), "0 B");
  EXPECT_EQ(RoundedSize(3577ULL << 28), "894.2 GiB");
  EXPECT_EQ(RoundedSize(10ULL << 30), "10 GiB");
  EXPECT_EQ(RoundedSize((1ULL << 40) - 1), "1023.9 GiB");
  EXPECT_EQ(RoundedSize((1ULL << 30) + 1), "1.0 GiB");
  EXPECT_EQ(RoundedSize(std::numeric_limits<uint64_t>::max()), "16383.9 PiB");
}

TEST(SizeTest, TimesHaveUnits) {
  using std::chrono::seconds;
  EXPECT_EQ(ParseSeconds("30").value(), seconds(30));
  EXPECT_EQ(ParseSeconds("30s").value(), seconds(30));
  EXPECT_EQ(ParseSeconds("5m").value(), seconds(300));
  EXPECT_EQ(ParseSeconds("1h").value(), seconds(3600));
  for (const char* text : {"", "s", "5d", "-1", "1.5s", "99999999999999999999"}) {
    EXPECT_FALSE(ParseSeconds(text).ok()) << text;
  }
}

TEST(TableTest, ColumnsAreAlignedAndEmptyOnesLeftOut) {
  Table table({{"A"}, {"EMPTY"}, {"LONG"}, {"ETAG", true}, {"MESSAGE"}});
  table.Add({"first", "", "1", "e1", ""});
  table.Add({"b", "", "2", "e2", ""});
  EXPECT_EQ(table.Rows(), "A      LONG\nfirst  1\nb      2\n");
  table.Add({"c", "", "3", "", "why"});
  EXPECT_EQ(table.Rows(), "A      LONG  MESSAGE\nfirst  1\nb      2\nc      3     why\n");
  EXPECT_EQ(table.Details(),
            "a        first\nlong     1\netag     e1\na        b\nlong     2\netag     e2\n"
            "a        c\nlong     3\nmessage  why\n");
}

TEST(TableTest, AnEmptyTableStillSaysWhatItIsOf) {
  EXPECT_EQ(Table({{"DISK"}, {"SIZE"}}).Rows(), "DISK  SIZE\n");
}

TEST(TableTest, LettersOfSeveralBytesTakeOneColumn) {
  Table table({{"A"}, {"B"}});
  table.Add({"z\xc3\xbcrich", "1"});
  table.Add({"zurich", "2"});
  EXPECT_EQ(table.Rows(), "A       B\nz\xc3\xbcrich  1\nzurich  2\n");
}

TEST(NamesTest, AreTakenWithAndWithoutTheirCollection) {
  EXPECT_EQ(FullName("disks/", "a"), "disks/a");
  EXPECT_EQ(FullName("disks/", "disks/a"), "disks/a");
  EXPECT_EQ(IdOf("controllers/c/attachments/a"), "a");
  EXPECT_EQ(IdOf("a"), "a");
}

TEST(NearestTest, SlipsAndPartsAreNearAndNothingElse) {
  const std::vector<std::string> names = {"DISK_IN_USE", "DISK_LOST", "CONTROLLER_IN_USE", "STOPPING"};
  EXPECT_EQ(Nearest("DISK_INUSE", names), (std::vector<std::string>{"DISK_IN_USE"}));
  EXPECT_EQ(Nearest("IN_USE", names), (std::vector<std::string>{"CONTROLLER_IN_USE", "DISK_IN_USE"}));
  EXPECT_TRUE(Nearest("FLY_ME_TO_THE_MOON", names).empty());
  EXPECT_TRUE(Nearest("", names).empty());
  EXPECT_EQ(DidYouMean("STOPING", names), ". Did you mean STOPPING?");
  EXPECT_EQ(DidYouMean("q", names), "");
}

}  // namespace
}  // namespace cleat::ctl::values_test
