// SPDX-License-Identifier: Apache-2.0
// What virtio-scsi's queues do with what a predecessor left in flight.
#include <gtest/gtest.h>

#include "scsi_rig.h"
#include "virtio/inflight_log.h"
#include "virtio/scsi_control.h"

namespace cleat::virtio::scsi_replay_test {
namespace {

using Events = std::vector<std::string>;

Bytes CompareAndWriteCdb(uint8_t lba) {
  return {0x89, 0, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, 1, 0, 0};
}

class ScsiReplayTest : public ::testing::Test {
 protected:
  ScsiReplayTest() {
    for (uint32_t i = 0; i < rig.sides.size(); ++i) rig.Stop(i);
    rig.Turn();
    for (uint32_t i = 0; i < rig.sides.size(); ++i) {
      rig.sides[i].logging = true;
      rig.Start(i);
    }
    rig.clock.AdvanceBy(kNsPerSecond);
    rig.Add(0);
    disk().hold = true;
  }
  scsi::TestDisk& disk() { return rig.disks[0].storage; }
  void Serve(uint32_t side) {
    rig.io[side % 2]->Activate(*rig.sides[side].queue);
    rig.Turn();
  }
  void StartAll() {
    for (uint32_t i = 0; i < rig.sides.size(); ++i) rig.Start(i);
    rig.Turn();
  }
  std::vector<block::Op> Seen() {
    std::vector<block::Op> ops;
    for (const auto& seen : disk().seen) ops.push_back(seen.op);
    return ops;
  }
  bool SawBlock(uint64_t lba) {
    return std::ranges::any_of(disk().seen, [lba](const auto& seen) { return seen.offset == lba * 512; });
  }
  bool Managed() { return rig.management().guest.TakeUsed().has_value(); }

  ScsiRig rig;
};

TEST_F(ScsiReplayTest, CompareAndWriteIsNotTriedAgain) {
  ScsiSide& side = rig.requests();
  side.Command(1, LunOf(0), CompareAndWriteCdb(2), Bytes(1024, 2));
  Serve(2);
  rig.Turn(16);  // it takes some until the storage is asked
  side.Command(0, LunOf(0), WriteCdb(1, 1), Bytes(512, 1));
  side.Command(2, LunOf(0), ReadCdb(3, 1), {}, 512);
  Serve(2);
  ASSERT_TRUE(SawBlock(1) && SawBlock(2) && SawBlock(3));
  rig.Die();
  disk().hold = true;
  StartAll();
  rig.Turn(16);
  EXPECT_TRUE(SawBlock(1) && !SawBlock(2) && SawBlock(3));
  auto used = side.guest.TakeAllUsed();
  ASSERT_EQ(used.size(), 1U);  // at once
  EXPECT_EQ(used[0].id, ScsiSide::HeadOf(1));
  EXPECT_EQ(ScsiRig::Outcome(side.Response(1)), "b/2f/02");
  EXPECT_EQ(side.Response(1).resid, 1024U);
  rig.ReleaseAll();
  rig.Turn();
  EXPECT_EQ(side.guest.TakeAllUsed().size(), 2U);
  EXPECT_EQ(ScsiRig::Outcome(side.Response(0)), "good");
  EXPECT_EQ(ScsiRig::Outcome(side.Response(2)), "good");

  // The initiator's own second try is one.
  side.Command(1, LunOf(0), CompareAndWriteCdb(2), Bytes(1024, 2));
  Serve(2);
  rig.Turn(16);
  EXPECT_TRUE(SawBlock(2));
}

TEST_F(ScsiReplayTest, AnAttentionThatWaitsDoesNotHideIt) {
  ScsiSide& side = rig.requests();
  side.Command(0, LunOf(0), CompareAndWriteCdb(2), Bytes(1024, 2));
  Serve(2);
  rig.Die();
  disk().hold = true;
  rig.SetGeometry(0, rig.disks[0].geometry);
  StartAll();
  ASSERT_EQ(side.guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(ScsiRig::Outcome(side.Response(0)), "b/2f/02");
  EXPECT_EQ(rig.Run(0, LunOf(0), kReadyCdb), "6/2a/09");  // and is told next
}

TEST_F(ScsiReplayTest, CompareAndWriteToATargetThatIsGone) {
  ScsiSide& side = rig.requests();
  side.Command(0, LunOf(0), CompareAndWriteCdb(2), Bytes(1024, 2));
  Serve(2);
  rig.Die();
  rig.Remove(0);
  StartAll();
  ASSERT_EQ(side.guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(ScsiRig::Outcome(side.Response(0)), "response 3");
}

// A queue that is stopped for a successor: what the storage had no space for is its to carry out.
TEST_F(ScsiReplayTest, WhatTheStorageHadNoSpaceForIsLeftToTheSuccessor) {
  ScsiSide& side = rig.requests();
  side.Command(0, LunOf(0), WriteCdb(1, 1), Bytes(512, 1));
  Serve(2);
  side.queue->LeaveToSuccessor();
  rig.Stop(2);
  disk().result = block::IoStatus::kNoSpace;
  rig.ReleaseAll();
  rig.Turn();
  EXPECT_TRUE(side.guest.TakeAllUsed().empty());
  EXPECT_EQ(side.queue->in_flight(), 0U);
  disk().result = block::IoStatus::kOk;
  disk().seen.clear();
  rig.Start(2);
  rig.Turn();
  EXPECT_TRUE(SawBlock(1));
  EXPECT_EQ(side.guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(ScsiRig::Outcome(side.Response(0)), "good");
}

// More than one turn takes: the second batch follows without anybody asking, and what is new comes after it.
TEST_F(ScsiReplayTest, ManyAreRunAgainInBatches) {
  ScsiSide& side = rig.requests();
  constexpr uint32_t kMany = 100;
  const auto flush = [&](uint32_t i) {
    ScsiRequestHeader header{};
    const auto lun = LunOf(0);
    std::copy(lun.begin(), lun.end(), header.lun);
    header.cdb[0] = 0x35;
    side.memory.Put(ScsiSide::RequestAt(i), header);
    side.guest.SetChain(static_cast<uint16_t>(2 * i),
                        {{ScsiSide::RequestAt(i), sizeof(header)},
                         {ScsiSide::ResponseAt(i), sizeof(ScsiResponse), kDescWrite}});
    side.guest.Offer(static_cast<uint16_t>(2 * i));
  };
  for (uint32_t i = 0; i < kMany; ++i) flush(i);
  Serve(2);
  ASSERT_EQ(disk().seen.size(), kMany);
  rig.Die();
  disk().hold = true;
  flush(kMany);
  rig.Start(2);
  for (const size_t seen : {size_t{RingQueue::kFetchBatchMax}, size_t{kMany}, size_t{kMany + 1}}) {
    rig.Turn(1);
    EXPECT_EQ(disk().seen.size(), seen);
  }
  EXPECT_EQ(side.queue->in_flight(), kMany + 1);
  rig.ReleaseAll();
  rig.Turn();
  EXPECT_EQ(side.guest.TakeAllUsed().size(), kMany + 1);
}

// A buffer that was taken for an event and not given back: one event more or less is lost, and the guest hears that it
// has to look for itself. No buffer is lost.
TEST_F(ScsiReplayTest, EventBuffersComeBack) {
  ScsiSide& events = rig.events();
  for (uint32_t slot = 0; slot < 3; ++slot) events.OfferEventBuffer(slot);
  const Moment before(events.memory, events.log);
  rig.Add(1);
  rig.Turn();
  // Killed when the log had the buffer, and the guest not yet its event: as it was before, but for that.
  Moment moment = before;
  rig.Stop(1);
  rig.Turn();
  moment.Restore();
  InflightLog log;
  ASSERT_TRUE(log.Attach(events.log.memory(), ScsiSide::kSize, events.guest.used_index()).ok());
  log.Fetched(ScsiSide::HeadOf(0));
  events.queue.reset();
  events.queue = rig.model->OpenQueue(*rig.io[1], 1).value();
  events.logging = true;
  rig.Start(1);
  rig.Turn();
  EXPECT_EQ(events.TakeEvents(), (Events{"80000000 0 0"}));
  EXPECT_EQ(events.queue->in_flight(), 0U);
  rig.Remove(1);
  rig.Add(1);
  EXPECT_EQ(events.TakeEvents(), (Events{"1 1 2", "1 1 1"}));  // into the other two
}

TEST_F(ScsiReplayTest, AnAbortThatWasAcceptedIsCarriedOutWhenItsCommandHasEnded) {
  ScsiSide& side = rig.requests();
  side.Command(5, LunOf(0), WriteCdb(1, 1), Bytes(512, 1));
  Serve(2);
  rig.management().Manage(0, VIRTIO_SCSI_T_TMF_ABORT_TASK, LunOf(0), 5);
  Serve(0);
  EXPECT_FALSE(Managed());
  rig.Die();
  disk().hold = true;
  StartAll();
  rig.clock.AdvanceBy(kNsPerSecond);
  rig.Turn();
  EXPECT_EQ(Seen(), (std::vector{block::Op::kWrite}));
  EXPECT_FALSE(Managed());
  EXPECT_TRUE(disk().CompleteOne());
  rig.Turn(16);
  EXPECT_TRUE(Managed());
  EXPECT_EQ(rig.management().Result(0), kScsiFunctionComplete);
  EXPECT_EQ(side.guest.TakeAllUsed().size(), 1U);
}

// The guest's error handler was at work while nobody served the device. The control queue starts first, and must not
// say that a command is gone which another queue is about to carry out (again).
TEST_F(ScsiReplayTest, TaskManagementWaitsForTheOtherRingsToStart) {
  ScsiSide& side = rig.requests();
  side.Command(5, LunOf(0), WriteCdb(1, 1), Bytes(512, 1));
  Serve(2);
  rig.Die();
  disk().hold = true;
  rig.management().Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(0));
  rig.Start(0);
  rig.Turn();
  EXPECT_FALSE(Managed());
  for (uint32_t i = 1; i < rig.sides.size(); ++i) rig.Start(i);
  rig.clock.AdvanceBy(2 * ScsiControlQueue::kSettleNs);
  rig.Turn(16);
  EXPECT_EQ(Seen(), (std::vector{block::Op::kWrite}));
  EXPECT_FALSE(Managed());
  EXPECT_TRUE(disk().CompleteOne());
  rig.Turn(16);
  EXPECT_TRUE(Managed());
  EXPECT_EQ(rig.management().Result(0), kScsiFunctionComplete);
}

// ... and when it is stopped again before they have: one that was accepted before fails, and a new one stays in the ring.
TEST_F(ScsiReplayTest, TaskManagementIsNotDoneWithoutTheOtherRings) {
  rig.requests().Command(5, LunOf(0), WriteCdb(1, 1), Bytes(512, 1));
  Serve(2);
  rig.management().Manage(0, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(0));
  Serve(0);
  rig.Die();
  rig.Start(0);
  rig.management().Manage(1, VIRTIO_SCSI_T_TMF_LOGICAL_UNIT_RESET, LunOf(0));
  rig.Turn();
  const uint32_t drained = rig.drained;
  rig.Stop(0);
  rig.Turn();
  EXPECT_EQ(rig.drained, drained + 1);
  EXPECT_TRUE(Managed());
  EXPECT_EQ(rig.management().Result(0), VIRTIO_SCSI_S_FAILURE);
  EXPECT_FALSE(Managed());
}

}  // namespace
}  // namespace cleat::virtio::scsi_replay_test
