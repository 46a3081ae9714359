// SPDX-License-Identifier: Apache-2.0
// Task management: answered when, and only when, nothing that it concerns is in the storage any more.
#include <gtest/gtest.h>

#include "scsi_rig.h"
#include "virtio/scsi_control.h"

namespace cleat::virtio::scsi_control_test {
namespace {

constexpr uint8_t kComplete = kScsiFunctionComplete;
constexpr uint8_t kSucceeded = VIRTIO_SCSI_S_FUNCTION_SUCCEEDED;

class ScsiControlTest : public ::testing::Test {
 protected:
  ScsiControlTest() {
    rig.Add(0);
    rig.Add(1);
    rig.disks[0].storage.hold = true;
  }
  // A write in the storage, on either reactor.
  void Write(uint32_t index, uint32_t slot, uint8_t target = 0) {
    rig.requests(index).Command(slot, LunOf(target), WriteCdb(0, 1), Bytes(512, 1));
    rig.io[index]->Activate(*rig.requests(index).queue);
    rig.Turn();
  }
  void Manage(uint32_t slot, uint32_t function, const std::array<uint8_t, 8>& lun = LunOf(0),
              uint64_t tag = 0) {
    rig.management().Manage(slot, function, lun, tag);
    rig.io[0]->Activate(*rig.management().queue);
    rig.Turn();
  }
  bool Answered() { return rig.management().guest.TakeUsed().has_value(); }
  uint8_t Result(uint32_t slot = 0) { return rig.management().Result(slot); }

  ScsiRig rig;
};

TEST_F(ScsiControlTest, AResetWaitsForTheWritesOfAllReactors) {
  for (const uint32_t function : {VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, VIRTIO_SCSI_T_TMF_ABORT_TASK_SET,
                                  VIRTIO_SCSI_T_TMF_CLEAR_TASK_SET, VIRTIO_SCSI_T_TMF_I_T_NEXUS_RESET}) {
    Write(0, 1);
    Write(1, 1);
    Write(1, 2);
    Manage(0, function);
    for (int left = 3; left > 0; --left) {
      ASSERT_FALSE(Answered()) << function << ", " << left << " in the storage";
      ASSERT_TRUE(rig.disks[0].storage.CompleteOne());
      if (left > 1) rig.Turn();
    }
    // All are in the used rings when the answer is.
    for (int turn = 0; turn < 10 && !Answered(); ++turn) rig.Turn(1);
    EXPECT_EQ(Result(), kComplete);
    EXPECT_EQ(rig.requests(0).guest.TakeAllUsed().size(), 1U);
    EXPECT_EQ(rig.requests(1).guest.TakeAllUsed().size(), 2U);
    EXPECT_EQ(ScsiRig::Outcome(rig.requests(1).Response(2)), "good");
    rig.disks[0].storage.hold = false;
    rig.Run(0, LunOf(0), {3, 0, 0, 0, 18, 0}, {}, 18);  // takes the attention away
    rig.disks[0].storage.hold = true;
  }
}

TEST_F(ScsiControlTest, OtherTargetsAndOtherFunctionsDoNotWait) {
  Write(0, 1);
  Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET);
  EXPECT_FALSE(Answered());
  Manage(1, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(1));
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(1), kComplete);
  Manage(2, VIRTIO_SCSI_T_TMF_QUERY_TASK_SET);
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(2), kSucceeded);
  EXPECT_EQ(Result(0), 0xff);
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(0), kComplete);
}

TEST_F(ScsiControlTest, AbortTaskWaitsForTheOne) {
  Write(1, 1);
  Write(1, 2);
  Manage(0, VIRTIO_SCSI_T_TMF_ABORT_TASK, LunOf(0), 1);
  Manage(1, VIRTIO_SCSI_T_TMF_ABORT_TASK, LunOf(0), 77);  // nobody knows it: done already
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(1), kComplete);
  EXPECT_FALSE(Answered());
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(0), kComplete);
  EXPECT_EQ(rig.requests(1).guest.TakeAllUsed().size(), 1U);
}

// A command that was offered before the abort, and not looked at yet, may not write after the answer.
TEST_F(ScsiControlTest, WhatIsStillInTheRingIsWaitedForToo) {
  rig.clock.AdvanceBy(kNsPerMs);  // the queues fall asleep
  rig.Turn();
  rig.clock.AdvanceBy(kNsPerMs);
  rig.Turn();
  rig.requests(1).Command(5, LunOf(0), WriteCdb(0, 1), Bytes(512, 1));  // no kick
  rig.Turn();
  ASSERT_EQ(rig.requests(1).queue->in_flight(), 0U);
  Manage(0, VIRTIO_SCSI_T_TMF_ABORT_TASK, LunOf(0), 5);
  EXPECT_FALSE(Answered());
  EXPECT_EQ(rig.requests(1).queue->in_flight(), 1U);
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(0), kComplete);
}

// ... and if its queue is stopped before it was looked at, the guest is not told that it is gone.
TEST_F(ScsiControlTest, AQueueThatWasStoppedWithCommandsFailsTheAbort) {
  rig.clock.AdvanceBy(kNsPerMs);
  rig.Turn();
  rig.clock.AdvanceBy(kNsPerMs);
  rig.Turn();
  rig.requests(1).Command(5, LunOf(0), WriteCdb(0, 1), Bytes(512, 1));
  rig.Stop(3);
  Manage(0, VIRTIO_SCSI_T_TMF_ABORT_TASK, LunOf(0), 5);
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_FAILURE);
}

TEST_F(ScsiControlTest, QueryTask) {
  Write(1, 3);
  Manage(0, VIRTIO_SCSI_T_TMF_QUERY_TASK, LunOf(0), 3);
  EXPECT_EQ(Result(0), kSucceeded);
  Manage(0, VIRTIO_SCSI_T_TMF_QUERY_TASK, LunOf(0), 4);
  EXPECT_EQ(Result(0), kComplete);
  Manage(0, VIRTIO_SCSI_T_TMF_QUERY_TASK_SET, LunOf(1));
  EXPECT_EQ(Result(0), kComplete);
}

TEST_F(ScsiControlTest, AddressesAndFunctionsThatAreNotThere) {
  Write(0, 1);
  Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(4));
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_BAD_TARGET);
  Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(9));
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_BAD_TARGET);
  Manage(0, VIRTIO_SCSI_T_TMF_ABORT_TASK_SET, LunOf(0, 1));
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_INCORRECT_LUN);
  Manage(0, VIRTIO_SCSI_T_TMF_CLEAR_ACA);
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_FUNCTION_REJECTED);
  Manage(0, 99);
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_FUNCTION_REJECTED);
}

TEST_F(ScsiControlTest, ResetsLeaveAnAttention) {
  rig.disks[0].storage.hold = false;
  Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET);
  EXPECT_EQ(rig.Run(1, LunOf(0), kReadyCdb), "6/29/03");
  EXPECT_EQ(rig.Run(0, LunOf(0), kReadyCdb), "good");
  Manage(0, VIRTIO_SCSI_T_TMF_I_T_NEXUS_RESET);
  EXPECT_EQ(rig.Run(0, LunOf(0), kReadyCdb), "6/29/07");
  EXPECT_EQ(rig.Run(1, LunOf(0), kReadyCdb), "good");
  EXPECT_EQ(rig.Run(1, LunOf(1), kReadyCdb), "good");
}

TEST_F(ScsiControlTest, DrainingWaitsAsLongAsTheStorageDoes) {
  Write(1, 1);
  Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET);
  rig.Stop(0);
  rig.Stop(3);
  rig.Turn();
  EXPECT_EQ(rig.drained, 0U);
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_EQ(rig.drained, 2U);
  EXPECT_EQ(Result(0), kComplete);
}

TEST_F(ScsiControlTest, TooManyThatWaitAreRejected) {
  Write(0, 1);
  for (uint32_t i = 0; i < ScsiControlQueue::kFunctionsMax; ++i)
    Manage(i, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET);
  EXPECT_FALSE(Answered());
  Manage(ScsiControlQueue::kFunctionsMax, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET);
  EXPECT_TRUE(Answered());
  EXPECT_EQ(Result(ScsiControlQueue::kFunctionsMax), VIRTIO_SCSI_S_FUNCTION_REJECTED);
  rig.disks[0].storage.CompleteOne();
  rig.Turn();
  EXPECT_EQ(rig.management().guest.TakeAllUsed().size(), ScsiControlQueue::kFunctionsMax);
}

TEST_F(ScsiControlTest, NotificationsAreAnsweredThatThereAreNone) {
  for (const uint32_t type : {VIRTIO_SCSI_T_AN_QUERY, VIRTIO_SCSI_T_AN_SUBSCRIBE}) {
    ScsiNotificationRequest request{};
    request.type = type;
    request.lun[0] = 1;
    request.event_requested = 0x7e;
    rig.management().Control(0, &request, sizeof(request), sizeof(ScsiNotificationResponse));
    rig.Turn();
    const auto used = rig.management().guest.TakeUsed();
    ASSERT_TRUE(used);
    EXPECT_EQ(used->length, 5U);
    const auto reply = rig.management().memory.Get<ScsiNotificationResponse>(ScsiSide::ResponseAt(0));
    EXPECT_EQ(reply.event_actual, 0U);
    EXPECT_EQ(reply.response, 0);
  }
}

TEST_F(ScsiControlTest, RequestsThatAreNone) {
  const uint32_t type = 77;
  rig.management().Control(0, &type, sizeof(type), 1);
  rig.Turn();
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_FAILURE);
  const uint32_t cut = VIRTIO_SCSI_T_TMF;
  rig.management().Control(0, &cut, sizeof(cut), 1);
  rig.Turn();
  EXPECT_EQ(Result(0), VIRTIO_SCSI_S_FAILURE);
  EXPECT_TRUE(rig.management().broken.empty());
  rig.management().Control(0, &type, 3, 1);
  rig.Turn();
  EXPECT_EQ(rig.management().broken.size(), 1U);
}

}  // namespace
}  // namespace cleat::virtio::scsi_control_test
