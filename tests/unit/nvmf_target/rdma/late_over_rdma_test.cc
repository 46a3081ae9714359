// SPDX-License-Identifier: Apache-2.0
// What comes too late over RDMA, where nobody can keep a host's data from coming: it is not executed. And a host that says of its queue another thing than its
// connection said.
#include <gtest/gtest.h>

#include "tests/unit/nvmf_target/rdma/rdma_host.h"
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

namespace cleat::nvmf_target::late_over_rdma_test {
namespace {

using test::RdmaAssociation;
using test::RdmaData;
using test::RdmaHostQueue;
using test::RdmaRig;

constexpr uint32_t kKatoMs = 1000;
constexpr uint64_t kOverNs = 1100 * kNsPerMs;
constexpr uint16_t kInvalidParameters = 1U << 14 | 1U << 8 | nvme::fabrics::kInvalidParameters;

// The host may have sent the write by another path since, and a newer one.
TEST(LateOverRdmaTest, AWriteWhoseDataComesAfterItsAssociationHasExpiredIsNotExecuted) {
  RdmaRig rig;
  RdmaAssociation host(rig, *rig.machines[0], {}, kKatoMs);
  ASSERT_TRUE(host.queue->Write(0, 8, 1));
  const uint32_t pair = host.queue->target_pair();
  rig.fabric.Hold(pair);
  host.queue->SendWrite(0, 8, 2);
  ASSERT_TRUE(rig.Until([&] { return rig.fabric.waiting(pair) == 1; }));
  // All reactors stand still meanwhile, and the I/O reactors have their turns before the control reactor knows.
  rig.clock.AdvanceBy(kOverNs);
  rig.fabric.Release(pair);
  for (int turn = 0; turn < 50; ++turn) rig.TurnIo();
  EXPECT_EQ(rig.storage->content[0], 1);
  ASSERT_TRUE(rig.Until([&] { return rig.status().controllers == 0 && rig.queue_pairs() == 0; }));
  EXPECT_EQ(rig.storage->content[0], 1);
  EXPECT_TRUE(host.queue->WaitUntilBroken());
}

TEST(LateOverRdmaTest, ACapsuleThatIsPolledAfterItsAssociationHasExpiredIsNotExecuted) {
  RdmaRig rig;
  RdmaAssociation host(rig, *rig.machines[0], {}, kKatoMs);
  ASSERT_TRUE(host.queue->Write(0, 8, 1));
  host.queue->SendWrite(0, 8, 2, RdmaData::kInCapsule);
  rig.clock.AdvanceBy(kOverNs);
  for (int turn = 0; turn < 50; ++turn) rig.TurnIo();
  EXPECT_EQ(rig.storage->content[0], 1);
  ASSERT_TRUE(rig.Until([&] { return rig.status().controllers == 0 && rig.queue_pairs() == 0; }));
  EXPECT_EQ(rig.storage->content[0], 1);
}

// The time of a turn's beginning says nothing of what is found later in it.
TEST(LateOverRdmaTest, ACapsuleThatIsPolledInATurnInWhichItsAssociationExpiresIsNotExecuted) {
  RdmaRig rig;
  RdmaAssociation host(rig, *rig.machines[0], {}, kKatoMs);
  ASSERT_TRUE(host.queue->Write(0, 8, 1));
  host.queue->SendWrite(0, 8, 2, RdmaData::kInCapsule);
  // The second reactor has the queue, as the first has the admin queue.
  rig.io[1]->PostCall([&rig] { rig.clock.AdvanceBy(kOverNs); });
  for (int turn = 0; turn < 50; ++turn) rig.TurnIo();
  EXPECT_EQ(rig.storage->content[0], 1);
}

// What waits for memory was found in an earlier turn, and goes on by mail.
TEST(LateOverRdmaTest, ACommandThatHasWaitedForMemoryWhenItsAssociationExpiresIsNotExecuted) {
  nvmf_target::PortLimits limits = RdmaRig::SmallLimits();
  limits.commands = 2;
  RdmaRig rig(1, limits);
  RdmaAssociation host(rig, *rig.machines[0], {}, kKatoMs);
  for (const uint64_t block : {0, 8, 16}) ASSERT_TRUE(host.queue->Write(block, 8, 1));
  rig.storage->holds = true;
  for (const uint64_t block : {0, 8, 16}) host.queue->SendWrite(block, 8, 2, RdmaData::kInCapsule);
  for (int turn = 0; turn < 50; ++turn) rig.TurnIo();
  ASSERT_EQ(rig.storage->held.size(), limits.commands);
  rig.io[1]->PostCall([&rig] {
    rig.io[1]->PostCall([&rig] { rig.clock.AdvanceBy(kOverNs); });  // ahead of that mail
    rig.storage->LetGo();
  });
  for (int turn = 0; turn < 50; ++turn) rig.TurnIo();
  EXPECT_EQ(rig.storage->content[8 * 512], 2) << "what was executed before";
  EXPECT_EQ(rig.storage->content[16 * 512], 1);
}

TEST(LateOverRdmaTest, AHostThatSendsNoKeepAlivesIsDroppedInTime) {
  RdmaRig rig;
  RdmaAssociation host(rig, *rig.machines[0], {}, kKatoMs);
  rig.Pass(kOverNs);
  EXPECT_EQ(rig.status().controllers, 0U);
  EXPECT_TRUE(host.queue->WaitUntilBroken());
  EXPECT_TRUE(host.admin.WaitUntilBroken());
}

TEST(LateOverRdmaTest, AConnectForAnotherQueueThanItsConnectionWasMadeForIsRefused) {
  RdmaRig rig;
  RdmaHostQueue admin(rig, *rig.machines[0], {});
  const uint16_t controller = admin.BecomeAdmin();
  // As an admin queue's connection says, of which several commands may come at a time.
  RdmaHostQueue as_admin(rig, *rig.machines[0], {.queue_id = 0});
  ASSERT_TRUE(as_admin.WaitUntilConnected());
  auto answer = as_admin.Answer(as_admin.SendConnect({.queue_id = 1, .entries = 32}, controller));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status().field(), kInvalidParameters);
  EXPECT_EQ(answer->result, 42U);
  EXPECT_TRUE(as_admin.WaitUntilBroken());

  RdmaHostQueue as_other(rig, *rig.machines[0], {.queue_id = 2});
  ASSERT_TRUE(as_other.WaitUntilConnected());
  answer = as_other.Answer(as_other.SendConnect({.queue_id = 1, .entries = 32}, controller));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status().field(), kInvalidParameters);
  EXPECT_TRUE(as_other.WaitUntilBroken());
  EXPECT_EQ(rig.status().io_queues, 0U);
  EXPECT_FALSE(admin.broken());
}

TEST(LateOverRdmaTest, AConnectForMoreEntriesThanItsConnectionHasMemoryForIsRefused) {
  RdmaRig rig;
  RdmaHostQueue admin(rig, *rig.machines[0], {});
  const uint16_t controller = admin.BecomeAdmin();
  RdmaHostQueue queue(rig, *rig.machines[0], {.queue_id = 1, .entries = 16});
  ASSERT_TRUE(queue.WaitUntilConnected());
  const auto answer = queue.Answer(queue.SendConnect({.queue_id = 1, .entries = 17}, controller));
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status().field(), kInvalidParameters);
  EXPECT_EQ(answer->result, 44U);
  EXPECT_TRUE(queue.WaitUntilBroken());
  // Fewer are fine.
  RdmaHostQueue smaller(rig, *rig.machines[0], {.queue_id = 1, .entries = 16});
  ASSERT_TRUE(smaller.WaitUntilConnected());
  const auto taken = smaller.Answer(smaller.SendConnect({.queue_id = 1, .entries = 8}, controller));
  ASSERT_TRUE(taken);
  EXPECT_TRUE(taken->status().ok());
  EXPECT_TRUE(smaller.Write(0, 8, 1));
}

}  // namespace
}  // namespace cleat::nvmf_target::late_over_rdma_test
