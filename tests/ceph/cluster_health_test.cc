// SPDX-License-Identifier: Apache-2.0
// What is read out of the monitors' health, as Ceph 16 writes it.
#include "modules/rbd/cluster_health.h"

#include <gtest/gtest.h>

#include <string>

namespace cleat::modules::cluster_health_test {
namespace {

constexpr char kFull[] = R"(HEALTH_ERR pauserd,pausewr flag(s) set; 1 full osd(s); 3 pool(s) full
[WRN] OSDMAP_FLAGS: pauserd,pausewr flag(s) set
[ERR] OSD_FULL: 1 full osd(s)
    osd.0 is full
[WRN] POOL_FULL: 3 pool(s) full
    pool 'vms' is full (no space)
    pool 'o'clock' is full (running out of quota)
    pool 'other' is full (no space)
[WRN] POOL_NEARFULL: 1 pool(s) nearfull
    pool 'near' is nearfull
)";

TEST(ClusterHealth, SaysWhichPoolsAreFullAndThatIoIsPaused) {
  const ClusterHealth health = ParseHealth(kFull);
  EXPECT_TRUE(health.paused);
  const std::vector<FullPool> expected = {
      {"vms", "no space"}, {"o'clock", "running out of quota"}, {"other", "no space"}};
  EXPECT_EQ(health.full, expected);
  EXPECT_EQ(DescribeFull(health, {"vms", "near"}), "pool 'vms' (no space)");
  EXPECT_EQ(DescribeFull(health, {"vms", "o'clock", "other"}),
            "pool 'vms' (no space), pool 'o'clock' (running out of quota) and 1 more");
  EXPECT_EQ(DescribeFull(health, {"near"}), "") << "other people's pools";
  EXPECT_EQ(
      ParseHealth("(MUTED) [WRN] POOL_FULL: 1 pool(s) full\n    pool 'a' is full (no space)").full.size(),
      1U);
}

TEST(ClusterHealth, WhatHoldsUpNothingIsNotTold) {
  for (const char* text :
       {"HEALTH_OK\n", "", "\n\n",
        "HEALTH_WARN noout,norebalance flag(s) set\n[WRN] OSDMAP_FLAGS: noout,norebalance flag(s) set\n",
        "[WRN] POOL_FULL: 1 pool(s) full\n    pool 'a\n", "[WRN] POOL_FULL: 1\n    ' is full (pool '\n",
        "[WRN] OTHER: 1\n    pool 'a' is full (no space)\n"}) {
    EXPECT_EQ(ParseHealth(text), ClusterHealth()) << text;
  }
}

// Names are shown to people and go into messages that must be text.
TEST(ClusterHealth, ANameThatIsNoTextIsShownAsText) {
  const ClusterHealth health = ParseHealth("[WRN] POOL_FULL: 1\n    pool '\xff\x01p' is full (no space)\n");
  EXPECT_EQ(DescribeFull(health, {"\xff\x01p"}), "pool '??p' (no space)");
}

}  // namespace
}  // namespace cleat::modules::cluster_health_test
