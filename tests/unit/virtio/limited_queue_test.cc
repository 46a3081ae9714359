// SPDX-License-Identifier: Apache-2.0
// What waits for a limit keeps nobody waiting: queues that stop, disks that go, and task management.
#include <gtest/gtest.h>

#include "limited_rig.h"

namespace cleat::virtio::limited_queue_test {
namespace {

// ---- blk

class LimitedBlkTest : public ::testing::Test {
 protected:
  LimitedBlk limited{{1, false}};
  BlkRig& rig = limited.rig;
};

TEST_F(LimitedBlkTest, AQueueThatStopsLetsWhatWaitsPass) {
  for (uint32_t slot = 0; slot < 10; ++slot) rig.Write(slot, slot, 512, 7);
  rig.Turn();
  EXPECT_EQ(rig.queue->in_flight(), 9U);
  rig.Stop();
  EXPECT_EQ(rig.drained, 1U);
  EXPECT_EQ(rig.TakeAllUsed().size(), 10U);
  for (uint32_t slot = 0; slot < 10; ++slot) EXPECT_EQ(rig.StatusOf(slot), VIRTIO_BLK_S_OK);
  EXPECT_EQ(rig.storage->seen.size(), 10U);
  // And is under its limits again, with nine seconds to pay, when it is started.
  limited.Continue();
  rig.Read(0, 0, 512);
  rig.clock.AdvanceBy(8 * kNsPerSecond);
  rig.Turn();
  EXPECT_TRUE(rig.TakeAllUsed().empty());
  rig.clock.AdvanceBy(2 * kNsPerSecond);
  EXPECT_EQ(rig.Answer(0, 513), VIRTIO_BLK_S_OK);
  rig.Stop();
}

TEST_F(LimitedBlkTest, AlsoAllStepsOfARequestOfSeveral) {
  rig.Read(1, 0, 512);
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}, {8, 8, 0}, {16, 8, 0}, {24, 8, 0}});
  rig.Turn();
  EXPECT_EQ(rig.queue->in_flight(), 1U);
  rig.Stop();
  EXPECT_EQ(rig.drained, 1U);
  EXPECT_EQ(rig.storage->seen.size(), 5U);
}

// The ring breaks while requests wait.
TEST_F(LimitedBlkTest, AlsoWhenItIsStoppedFromWithin) {
  rig.Stop();
  rig.drained = 0;
  rig.queue->Start(rig.Setup(), [this](const std::string&) { rig.Stop(); });
  rig.running = true;
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Read(slot, 0, 512);
  rig.guest.SetChain(BlkRig::HeadOf(5), {{BlkRig::HeaderAt(5), 16}});
  rig.guest.Offer(BlkRig::HeadOf(5));
  rig.Turn();
  EXPECT_EQ(rig.drained, 1U);
  EXPECT_EQ(rig.TakeAllUsed().size(), 3U);
}

// ---- scsi

class LimitedScsiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t slot = 1; slot <= 5; ++slot) {
      rig.requests(0).Command(slot, LunOf(0), WriteCdb(0, 1), Bytes(512, 1));
    }
    rig.io[0]->Activate(*rig.requests(0).queue);
    rig.Turn();
    ASSERT_EQ(rig.requests(0).queue->in_flight(), 4U);
    ASSERT_EQ(rig.requests(0).guest.TakeAllUsed().size(), 1U);
  }
  void Manage(uint32_t function, uint64_t tag = 0) {
    rig.management().Manage(9, function, LunOf(0), tag);
    rig.io[0]->Activate(*rig.management().queue);
    rig.Turn();
  }
  uint8_t Response(uint32_t slot) { return rig.requests(0).Response(slot).response; }
  size_t Seen() { return rig.disks[0].storage.seen.size(); }

  LimitedScsi limited{{1, false}};
  ScsiRig& rig = limited.rig;
};

TEST_F(LimitedScsiTest, ADiskThatGoesAbortsWhatWaits) {
  EXPECT_TRUE(rig.Remove(0));
  EXPECT_EQ(rig.requests(0).guest.TakeAllUsed().size(), 4U);
  for (uint32_t slot = 2; slot <= 5; ++slot) EXPECT_EQ(Response(slot), VIRTIO_SCSI_S_BAD_TARGET);
  EXPECT_EQ(Seen(), 1U);
}

TEST_F(LimitedScsiTest, AResetAbortsWhatWaits) {
  Manage(VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET);
  EXPECT_EQ(rig.management().Result(9), 0);
  EXPECT_EQ(rig.requests(0).guest.TakeAllUsed().size(), 4U);
  for (uint32_t slot = 2; slot <= 5; ++slot) EXPECT_EQ(Response(slot), VIRTIO_SCSI_S_RESET);
  EXPECT_EQ(Seen(), 1U);
}

TEST_F(LimitedScsiTest, AnAbortedTaskDoesNotWait) {
  Manage(VIRTIO_SCSI_T_TMF_ABORT_TASK, 4);
  EXPECT_EQ(rig.management().Result(9), 0);
  EXPECT_EQ(rig.requests(0).guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(Response(4), VIRTIO_SCSI_S_ABORTED);
  Manage(VIRTIO_SCSI_T_TMF_ABORT_TASK, 2);  // the first in line
  EXPECT_EQ(Response(2), VIRTIO_SCSI_S_ABORTED);
  rig.clock.AdvanceBy(kNsPerSecond + kNsPerMs);
  rig.Turn();
  EXPECT_EQ(Response(3), VIRTIO_SCSI_S_OK);
  EXPECT_EQ(rig.requests(0).queue->in_flight(), 1U);
  rig.clock.AdvanceBy(kNsPerSecond + kNsPerMs);
  rig.Turn();
  EXPECT_EQ(Response(5), VIRTIO_SCSI_S_OK);
}

TEST_F(LimitedScsiTest, AQueueThatStopsLetsWhatWaitsPass) {
  rig.Stop(2);
  EXPECT_EQ(rig.drained, 1U);
  for (uint32_t slot = 1; slot <= 5; ++slot) EXPECT_EQ(Response(slot), VIRTIO_SCSI_S_OK);
}

}  // namespace
}  // namespace cleat::virtio::limited_queue_test
