// SPDX-License-Identifier: Apache-2.0
// cleatd and engines together, whoever dies and whatever takes long.
#include <gtest/gtest.h>

#include "host_run.h"
#include "host_seeds.h"

namespace cleat::sim::host_test {
namespace {

// Costs half a minute, with AddressSanitizer a whole one.
#if defined(CLEAT_ASAN)
constexpr uint64_t kSeeds = 200;
#else
constexpr uint64_t kSeeds = 500;
#endif

TEST(HostTest, AnySeed) {
  HostResult sum;
  EXPECT_EQ(RunHostSeeds(1, kSeeds, sum), "");
  PrintSum(sum);
  // The runs were about something.
  EXPECT_GT(sum.acknowledged, kSeeds * 10);
  EXPECT_GT(sum.syncs, kSeeds * 10);
  EXPECT_GT(sum.cleatd_deaths, kSeeds);
  EXPECT_GT(sum.engine_deaths, kSeeds);
}

TEST(HostTest, TheSameSeedGivesTheSameRun) {
  const HostResult first = RunHost({.seed = 7});
  const HostResult second = RunHost({.seed = 7});
  EXPECT_EQ(first.violated, "");
  EXPECT_EQ(first.digest, second.digest);
  EXPECT_EQ(first.points, second.points);
}

}  // namespace
}  // namespace cleat::sim::host_test
