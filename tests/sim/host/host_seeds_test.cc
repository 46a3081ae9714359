// SPDX-License-Identifier: Apache-2.0
// The simulated host with many seeds. Costs 15 min.
#include <gtest/gtest.h>

#include "host_seeds.h"

namespace cleat::sim::host_seeds_test {
namespace {

TEST(HostSeedsTest, TwentyThousand) {
  constexpr uint64_t kFirst = 1001;  // behind those of HostTest.AnySeed
  constexpr uint64_t kSeeds = 20'000;
  HostResult sum;
  EXPECT_EQ(RunHostSeeds(kFirst, kSeeds, sum), "");
  PrintSum(sum);
}

}  // namespace
}  // namespace cleat::sim::host_seeds_test
