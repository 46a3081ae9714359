// SPDX-License-Identifier: Apache-2.0
// Which reactor an I/O queue gets: the one whose core has its packets, in turn where nobody knows, and never one that has far more than others.
#include "nvmf_target/placement.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace cleat::nvmf_target::placement_test {
namespace {

TEST(PlacementTest, TheReactorOnTheConnectionsCoreHasItAsLongAsTheBalanceIsKept) {
  std::array<ReactorLoad, 3> reactors = {{{4, 2}, {5, 2}, {6, 2}}};
  EXPECT_EQ(ChooseReactor(reactors, 5, 0), 1U);
  reactors[1].queues = 3;
  EXPECT_EQ(ChooseReactor(reactors, 5, 0), 1U);
  reactors[1].queues = 4;
  EXPECT_EQ(ChooseReactor(reactors, 5, 0), 0U);
  EXPECT_EQ(ChooseReactor(reactors, 5, 1), 0U) << "nor in its turn";
}

TEST(PlacementTest, ReactorsHaveQueuesInTurnWhereTheCoreIsNobodysOrNotKnown) {
  const std::array<ReactorLoad, 2> bound = {{{4, 1}, {5, 1}}};
  EXPECT_EQ(ChooseReactor(bound, 9, 1), 1U);
  EXPECT_EQ(ChooseReactor(bound, kAnyCpu, 1), 1U);
  const std::array<ReactorLoad, 2> free = {{{kAnyCpu, 1}, {kAnyCpu, 1}}};
  EXPECT_EQ(ChooseReactor(free, 4, 1), 1U);
  EXPECT_EQ(ChooseReactor(free, kAnyCpu, 0), 0U);
}

// A network card with one queue has all packets on one core.
TEST(PlacementTest, AllPacketsOnOneCoreDoNotBringAllQueuesThere) {
  std::vector<ReactorLoad> reactors = {{0, 0}, {1, 0}, {2, 0}, {3, 0}};
  for (size_t queue = 0; queue < 64; ++queue) ++reactors[ChooseReactor(reactors, 2, queue % 4)].queues;
  for (const ReactorLoad& reactor : reactors) {
    EXPECT_GE(reactor.queues, 15U);
    EXPECT_LE(reactor.queues, 17U);
  }
}

}  // namespace
}  // namespace cleat::nvmf_target::placement_test
