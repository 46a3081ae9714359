// SPDX-License-Identifier: Apache-2.0
// Queues of a target over RDMA with hosts of all kinds, over an adapter that does everything as late as it may. CLEAT_RDMA_SEEDS: so many seeds, from
// CLEAT_RDMA_SEED on.
#include <gtest/gtest.h>

#include <iostream>

#include "tests/environment.h"
#include "tests/sim/rdma/target_run.h"

namespace cleat::sim::rdma::target_queue_sim_test {
namespace {

TEST(RdmaTargetSeeds, AnySeed) {
  const uint64_t first = test::FromEnvironment("CLEAT_RDMA_SEED", 1);
  const uint64_t seeds = test::FromEnvironment("CLEAT_RDMA_SEEDS", 3'000);
  TargetOutcome sum;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const TargetOutcome outcome = RunTarget(seed, AdapterDefect::kNone, TargetDefect::kNone);
    ASSERT_EQ(outcome.wrong, "") << "again: CLEAT_RDMA_SEED=" << seed << " CLEAT_RDMA_SEEDS=1";
    sum.answered += outcome.answered;
    sum.connections += outcome.connections;
    sum.ended += outcome.ended;
  }
  std::cout << sum.answered << " commands answered on " << sum.connections << " connections, of which "
            << sum.ended << " ended before\n";
  EXPECT_GT(sum.answered, seeds * 10);
}

// A run with the defect goes wrong within so many seeds, and in that way.
void ExpectNoticed(AdapterDefect adapter_defect, TargetDefect target_defect, const char* how) {
  constexpr uint64_t kSeeds = 300;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const TargetOutcome outcome = RunTarget(seed, adapter_defect, target_defect);
    if (outcome.wrong.find(how) != std::string::npos) return;
  }
  FAIL() << "nobody notices within " << kSeeds << " seeds: " << how;
}

TEST(RdmaTargetControls, OneCreditTooManyIsNoticed) {
  ExpectNoticed(AdapterDefect::kOneCreditTooMany, TargetDefect::kNone, "more READs than there are credits");
}

TEST(RdmaTargetControls, DataThatIsSaidToHaveComeBeforeItHasIsNoticed) {
  ExpectNoticed(AdapterDefect::kReadCompletesBeforeItsData, TargetDefect::kNone,
                "data is said to have come that has not");
}

TEST(RdmaTargetControls, AnAnswerBeforeItsDataIsNoticed) {
  ExpectNoticed(AdapterDefect::kSendOvertakesData, TargetDefect::kNone, "an answer without its data");
}

TEST(RdmaTargetControls, AKeyThatStaysValidIsNoticed) {
  ExpectNoticed(AdapterDefect::kKeyNotInvalidated, TargetDefect::kNone, "a key is not invalidated");
}

TEST(RdmaTargetControls, MemoryThatIsUsedAgainBeforeTheFlushIsNoticed) {
  ExpectNoticed(AdapterDefect::kNone, TargetDefect::kReusesMemoryAtTheEnd,
                "memory changes while the adapter may send it again");
  ExpectNoticed(AdapterDefect::kNone, TargetDefect::kReusesMemoryAtTheEnd,
                "somebody has written to memory that was given back");
}

TEST(RdmaTargetControls, CapsulesThatAreLostWithTheirQueuePairAreNoticed) {
  ExpectNoticed(AdapterDefect::kNone, TargetDefect::kDestroysWithoutPolling, "memory for capsules is lost");
}

}  // namespace
}  // namespace cleat::sim::rdma::target_queue_sim_test
