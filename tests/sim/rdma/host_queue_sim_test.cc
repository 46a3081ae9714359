// SPDX-License-Identifier: Apache-2.0
// Queues of hosts over RDMA with controllers of all kinds, over an adapter that does everything as late as it may. CLEAT_RDMA_SEEDS: so many seeds, from
// CLEAT_RDMA_SEED on.
#include <gtest/gtest.h>

#include <iostream>

#include "tests/environment.h"
#include "tests/sim/rdma/both_ends_run.h"
#include "tests/sim/rdma/host_run.h"

namespace cleat::sim::rdma::host_queue_sim_test {
namespace {

TEST(RdmaHostSeeds, AnySeed) {
  const uint64_t first = test::FromEnvironment("CLEAT_RDMA_SEED", 1);
  const uint64_t seeds = test::FromEnvironment("CLEAT_RDMA_SEEDS", 3'000);
  HostOutcome sum;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const HostOutcome outcome = RunHost(seed, InitiatorDefect::kNone, HostDefect::kNone);
    ASSERT_EQ(outcome.wrong, "") << "again: CLEAT_RDMA_SEED=" << seed << " CLEAT_RDMA_SEEDS=1";
    sum.completed += outcome.completed;
    sum.unanswered += outcome.unanswered;
    sum.connections += outcome.connections;
    sum.ended += outcome.ended;
    sum.refused += outcome.refused;
  }
  std::cout << sum.completed << " commands completed and " << sum.unanswered << " not answered on "
            << sum.connections << " connections, of which " << sum.ended << " ended before; " << sum.refused
            << " accesses of controllers refused\n";
  EXPECT_GT(sum.completed, seeds * 10);
}

TEST(RdmaHostSeeds, AnySeedWithATargetOfOurOwn) {
  const uint64_t first = test::FromEnvironment("CLEAT_RDMA_SEED", 1);
  const uint64_t seeds = test::FromEnvironment("CLEAT_RDMA_SEEDS", 1'000);
  BothEndsOutcome sum;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const BothEndsOutcome outcome = RunBothEnds(seed);
    ASSERT_EQ(outcome.wrong, "") << "again: CLEAT_RDMA_SEED=" << seed << " CLEAT_RDMA_SEEDS=1";
    sum.completed += outcome.completed;
    sum.unanswered += outcome.unanswered;
  }
  std::cout << sum.completed << " commands completed and " << sum.unanswered << " not answered\n";
  EXPECT_GT(sum.completed, seeds * 10);
}

// A run with the defect goes wrong within so many seeds, and in that way.
void ExpectNoticed(InitiatorDefect adapter_defect, HostDefect host_defect, const char* how) {
  constexpr uint64_t kSeeds = 1'000;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const HostOutcome outcome = RunHost(seed, adapter_defect, host_defect);
    if (outcome.wrong.find(how) != std::string::npos) return;
  }
  FAIL() << "nobody notices within " << kSeeds << " seeds: " << how;
}

TEST(RdmaHostControls, AKeyThatStaysValidThoughItIsSaidToBeInvalidIsNoticed) {
  ExpectNoticed(InitiatorDefect::kKeyNotInvalidated, HostDefect::kNone,
                "a controller has read what is not its own");
}

TEST(RdmaHostControls, AWindowThatStaysOpenBehindTheWorkThatShutsItIsNoticed) {
  ExpectNoticed(InitiatorDefect::kWindowNotInvalidated, HostDefect::kNone,
                "a controller has read what is not its own");
}

TEST(RdmaHostControls, AnAnswerBeforeItsDataIsNoticed) {
  ExpectNoticed(InitiatorDefect::kSendOvertakesData, HostDefect::kNone, "a read ends without its data");
}

TEST(RdmaHostControls, OneWorkTooManyIsNoticed) {
  ExpectNoticed(InitiatorDefect::kOneWorkTooMany, HostDefect::kNone,
                "more works than the send queue has room for");
}

TEST(RdmaHostControls, MemoryThatIsUsedAgainBeforeTheQueuePairIsDestroyedIsNoticed) {
  ExpectNoticed(InitiatorDefect::kNone, HostDefect::kGivesMemoryBackAtTheEnd, "memory behind two windows");
  ExpectNoticed(InitiatorDefect::kNone, HostDefect::kGivesMemoryBackAtTheEnd,
                "memory changes while the adapter may send it again");
}

TEST(RdmaHostControls, AnOwnerThatHearsBeforeTheQueuePairIsDestroyedIsNoticed) {
  ExpectNoticed(InitiatorDefect::kNone, HostDefect::kGivesMemoryBackAtTheEnd,
                "somebody has written to memory whose command is over");
}

TEST(RdmaHostControls, WindowsThatAreForgottenAreNoticed) {
  ExpectNoticed(InitiatorDefect::kNone, HostDefect::kForgetsWindows,
                "a queue pair is destroyed to which a window is bound");
}

TEST(RdmaHostControls, MessagesThatAreLostWithTheirQueuePairAreNoticed) {
  ExpectNoticed(InitiatorDefect::kNone, HostDefect::kDestroysWithoutPolling, "memory for messages is lost");
}

}  // namespace
}  // namespace cleat::sim::rdma::host_queue_sim_test
