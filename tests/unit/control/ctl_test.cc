// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "ctl/client.h"
#include "ctl/table.h"

namespace cleat::ctl {
namespace {

TEST(CtlTest, SizesAreShortOnlyWhenTheyAreExact) {
  EXPECT_EQ(HumanSize(0), "0 B");
  EXPECT_EQ(HumanSize(1023), "1023 B");
  EXPECT_EQ(HumanSize(10ULL << 30), "10 GiB");
  EXPECT_EQ(HumanSize(3ULL << 19), "1.5 MiB");
  EXPECT_EQ(HumanSize((1ULL << 30) + 512), "1073742336 B");
  EXPECT_EQ(HumanSize(1ULL << 50), "1 PiB");
}

TEST(CtlTest, ColumnsAreAlignedAndAnEmptyLastOneIsLeftOut) {
  Table table({"A", "LONG", "MESSAGE"});
  table.Add({"first", "1", ""});
  table.Add({"b", "2", ""});
  EXPECT_EQ(table.Rows(), "A      LONG\nfirst  1\nb      2\n");
  table.Add({"c", "3", "why"});
  EXPECT_EQ(table.Rows(), "A      LONG  MESSAGE\nfirst  1\nb      2\nc      3     why\n");
}

TEST(CtlTest, NamesAreTakenWithAndWithoutTheirCollection) {
  EXPECT_EQ(FullName("disks/", "a"), "disks/a");
  EXPECT_EQ(FullName("disks/", "disks/a"), "disks/a");
  EXPECT_EQ(IdOf("controllers/c/attachments/a"), "a");
  EXPECT_EQ(IdOf("a"), "a");
}

}  // namespace
}  // namespace cleat::ctl
