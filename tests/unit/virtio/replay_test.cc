// SPDX-License-Identifier: Apache-2.0
// What a ring does with what its predecessor left in flight: runs it again, in order, before anything else, and stops
// when it makes no sense.
#include <gtest/gtest.h>

#include "blk_rig.h"
#include "kill.h"
#include "virtio/inflight_log.h"
#include "virtio/packed_inflight_log.h"

namespace cleat::virtio::replay_test {
namespace {

constexpr uint8_t kOk = VIRTIO_BLK_S_OK;

class ReplayTest : public ::testing::TestWithParam<bool> {
 protected:
  ReplayTest() { rig.storage->hold = true; }
  ~ReplayTest() override {
    if (rig.running) rig.StopAndDrain();
  }
  bool packed() const { return GetParam(); }

  QueueSetup WithLog() {
    QueueSetup setup = rig.Setup();
    setup.inflight = log.memory();
    return setup;
  }
  // What is a split ring's base after a crash: QEMU names the used index. A packed one's it does not know.
  QueueSetup AfterCrash() {
    QueueSetup setup = WithLog();
    if (!packed()) setup.next_available = rig.guest.used_index();
    return setup;
  }
  void Die() {
    Moment moment(rig.memory, log);
    rig.StopAndDrain();
    moment.Restore();
    rig.queue = rig.model->OpenQueue(*rig.reactor, 0).value();
    rig.storage->seen.clear();
    rig.storage->hold = true;
  }
  std::vector<uint64_t> SectorsSeen() {
    std::vector<uint64_t> sectors;
    for (const auto& seen : rig.storage->seen) sectors.push_back(seen.offset / 512);
    return sectors;
  }
  std::vector<uint16_t> InFlight() {
    LogMemory copy = log;
    if (packed()) {
      PackedInflightLog reader;
      EXPECT_TRUE(reader.Attach(copy.memory(), rig.packed_guest.memory(), {}).ok());
      return reader.InFlight();
    }
    InflightLog reader;
    EXPECT_TRUE(reader.Attach(copy.memory(), BlkRig::kSize, rig.guest.used_index()).ok());
    return reader.InFlight();
  }
  // Everything that is held is answered; the slots, as they were answered.
  std::vector<uint32_t> CompleteAll() {
    rig.storage->CompleteAll();
    rig.Turn();
    std::vector<uint32_t> slots;
    for (const Used& used : rig.TakeAllUsed()) slots.push_back(used.id / 3);
    return slots;
  }
  std::string Broken() { return rig.broken.empty() ? "" : rig.broken.front(); }

  BlkRig rig{BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr, GetParam()};
  LogMemory log{BlkRig::kSize};
};

using Sectors = std::vector<uint64_t>;
using Slots = std::vector<uint32_t>;

TEST_P(ReplayTest, RunsAgainWhatWasInFlightInItsOrderBeforeAnythingNew) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 4; ++slot) rig.Write(slot, 10 + slot, 512, 1);
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{10, 11, 12, 13}));
  rig.storage->held.PushBack(*rig.storage->held.PopFront());
  rig.storage->CompleteOne();  // the second
  rig.Turn();
  EXPECT_EQ(rig.TakeAllUsed(), (std::vector<Used>{{BlkRig::HeadOf(1), 1}}));
  Die();

  rig.Write(1, 20, 512, 2);  // the slot is free again
  rig.Write(4, 21, 512, 2);
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{10, 12, 13, 20, 21}));
  EXPECT_EQ(rig.queue->in_flight(), 5U);
  EXPECT_EQ(CompleteAll(), (Slots{0, 2, 3, 1, 4}));
  for (uint32_t slot = 0; slot < 5; ++slot) EXPECT_EQ(rig.StatusOf(slot), kOk);
  EXPECT_TRUE(InFlight().empty());
  EXPECT_EQ(Broken(), "");
}

TEST_P(ReplayTest, SeveralDeathsInARow) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 6; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  for (uint32_t life = 0; life < 5; ++life) {
    rig.storage->CompleteOne();
    rig.Turn();
    EXPECT_EQ(rig.TakeAllUsed(), (std::vector<Used>{{BlkRig::HeadOf(life), 1}}));
    Die();
    rig.Start(AfterCrash());
    if (life == 2) {  // before it has begun
      Die();
      rig.Start(AfterCrash());
    }
    rig.Turn();
    Sectors expected;
    for (uint64_t sector = life + 1; sector < 6; ++sector) expected.push_back(sector);
    EXPECT_EQ(SectorsSeen(), expected);
  }
  EXPECT_EQ(CompleteAll(), (Slots{5}));
  EXPECT_EQ(Broken(), "");
}

// A log that was new on a ring that was not, and a request in the first place that nobody answered: it looks as if
// that were the batch that was cut short.
TEST_P(ReplayTest, FirstSlotIsNotLostWhenNothingWasAnswered) {
  QueueSetup setup = WithLog();
  if (packed()) {
    rig.packed_guest.StartAt({30, false});
    setup.next_available = PackedPosition{{30, false}, {30, false}}.word();
  } else {
    rig.guest.StartAt(700);
    setup.next_available = 700;
  }
  rig.Start(setup);
  rig.Write(0, 10, 512, 1);
  rig.Write(1, 11, 512, 1);
  rig.Turn();
  Die();
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{10, 11}));
  EXPECT_EQ(CompleteAll(), (Slots{0, 1}));
}

TEST_P(ReplayTest, GoesOnBehindWhatIsRunAgain) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 5; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  Die();
  const QueueSetup setup = AfterCrash();
  rig.Start(setup);
  EXPECT_EQ(rig.queue->next_available(),
            packed() ? (PackedPosition{{15, true}, {0, true}}.word()) : setup.next_available + 5);
  rig.Turn();
  rig.Turn();
  EXPECT_EQ(SectorsSeen().size(), 5U);  // and not again as if they were new
  rig.Write(5, 5, 512, 1);
  rig.Turn();
  EXPECT_EQ(SectorsSeen().back(), 5U);
}

TEST_P(ReplayTest, IndirectTablesToo) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 2; ++slot) {
    rig.PutHeader(slot, VIRTIO_BLK_T_OUT, 30 + slot);
    rig.SetIndirectChain(BlkRig::HeadOf(slot), BlkRig::DataAt(slot) + 8192,
                         {{BlkRig::HeaderAt(slot), 16},
                          {BlkRig::DataAt(slot), 200},
                          {BlkRig::DataAt(slot) + 1000, 312},
                          {BlkRig::StatusAt(slot), 1, kDescWrite}});
    rig.OfferHead(BlkRig::HeadOf(slot));
  }
  rig.Turn();
  Die();
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{30, 31}));
  EXPECT_EQ(CompleteAll(), (Slots{0, 1}));
}

TEST_P(ReplayTest, StopRunsAgainWhatWasNotYetRunAndDrainsIt) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 5; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  Die();
  rig.Start(AfterCrash());
  rig.Write(5, 5, 512, 1);
  rig.Stop();  // before its first turn
  EXPECT_EQ(SectorsSeen(), (Sectors{0, 1, 2, 3, 4}));
  EXPECT_EQ(rig.drained, 1U);  // of the first life
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.drained, 2U);
  EXPECT_EQ(rig.TakeAllUsed().size(), 5U);
  EXPECT_TRUE(InFlight().empty());
  QueueSetup setup = WithLog();
  setup.next_available = rig.queue->next_available();
  rig.storage->hold = false;
  rig.Start(setup);
  EXPECT_EQ(rig.Answer(5, 1), kOk);
}

// However long the storage takes. (Virtual time.)
TEST_P(ReplayTest, NothingIsDroppedWhenDrainingTakesLong) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  rig.Stop();
  for (int second = 0; second < 100; ++second) {
    rig.clock.AdvanceBy(kNsPerSecond);
    rig.reactor->RunOnce();
    ASSERT_EQ(rig.drained, 0U);
    ASSERT_EQ(rig.queue->in_flight(), 3U);
  }
  EXPECT_EQ(InFlight().size(), 3U);  // and if it dies now, its successor knows
  EXPECT_TRUE(rig.TakeAllUsed().empty());
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.drained, 1U);
  EXPECT_EQ(rig.TakeAllUsed().size(), 3U);
  EXPECT_TRUE(InFlight().empty());
}

TEST_P(ReplayTest, TheLogKnowsBetterThanTheFrontEndWhereTheRingStands) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  rig.storage->CompleteOne();
  rig.Turn();
  for (const uint32_t base : {0U, 3U, 1000U}) {
    Die();
    QueueSetup setup = WithLog();
    if (!packed()) setup.next_available = base;
    rig.Start(setup);
    rig.Turn();
    EXPECT_EQ(SectorsSeen(), (Sectors{1, 2}));
  }
}

TEST_P(ReplayTest, AForgottenLogIsNew) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  rig.StopAndDrain();
  ForgetInflight(log.memory());
  // The guest begins anew.
  if (packed()) {
    rig.packed_guest.TakeAllUsed();
    rig.packed_guest.StartAt({});
  } else {
    rig.guest.StartAt(0);
  }
  rig.Start(WithLog());
  rig.storage->hold = false;
  rig.Write(7, 7, 512, 1);
  EXPECT_EQ(rig.Answer(7, 1), kOk);
  EXPECT_TRUE(InFlight().empty());
}

TEST_P(ReplayTest, OneThatMakesNoSenseBreaksTheRing) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  Die();
  if (packed()) {
    // The second chain's data descriptor, fifth in the log.
    const uint64_t nowhere = GuestLayout::kEnd;
    std::memcpy(log.bytes() + PackedInflightLog::kHeaderBytes + 4 * PackedInflightLog::kEntryBytes + 24,
                &nowhere, 8);
  } else {
    rig.guest.SetDescriptor(BlkRig::HeadOf(1) + 1, {GuestLayout::kEnd, 512, kDescNext, 5});
  }
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(
      Broken().rfind("request 2 of 3 that were in flight when this ring was last served can't be run again: "
                     "buffer at 0x200000 of 512 bytes is not in guest memory",
                     0),
      0U)
      << Broken();
  EXPECT_EQ(SectorsSeen(), (Sectors{0}));
  EXPECT_EQ(CompleteAll(), (Slots{0}));  // what is in flight still ends
  EXPECT_EQ(InFlight().size(), 2U);
}

TEST_P(ReplayTest, WithoutALogNothingIsRunAgain) {
  rig.Start();
  rig.Write(0, 0, 512, 1);
  rig.Turn();
  EXPECT_EQ(CompleteAll(), (Slots{0}));
  rig.Write(1, 1, 512, 1);
  rig.Turn();
  Die();
  QueueSetup setup = rig.Setup();
  setup.next_available = packed() ? PackedPosition{{3, true}, {3, true}}.word() : 1;
  rig.Start(setup);
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{1}));  // the base is all there is
}

// ---- What a queue that is stopped for a successor leaves to it: what the storage had no space for

TEST_P(ReplayTest, ASuccessorIsLeftWhatTheStorageHadNoSpaceFor) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, 10 + slot, 512, 1);
  rig.Turn();
  rig.queue->LeaveToSuccessor();
  rig.Stop();
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.storage->CompleteOne();
  rig.storage->CompleteOne();
  rig.storage->result = block::IoStatus::kOk;
  EXPECT_EQ(rig.drained, 0);
  rig.storage->CompleteOne();
  EXPECT_EQ(rig.drained, 1);
  EXPECT_EQ(rig.TakeAllUsed(), (std::vector<Used>{{BlkRig::HeadOf(2), 1}})) << "the others are not answered";
  EXPECT_EQ(InFlight(), (std::vector<uint16_t>{BlkRig::HeadOf(0), BlkRig::HeadOf(1)}));

  rig.storage->seen.clear();
  rig.queue = rig.model->OpenQueue(*rig.reactor, 0).value();
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{10, 11}));
  EXPECT_EQ(CompleteAll(), (Slots{0, 1}));
  EXPECT_EQ(rig.StatusOf(0), kOk);
  EXPECT_TRUE(InFlight().empty());
  EXPECT_EQ(Broken(), "");
}

TEST_P(ReplayTest, AQueueThatGoesOnRunsAgainWhatItHadLeft) {
  rig.Start(WithLog());
  rig.Write(0, 10, 512, 1);
  rig.Write(1, 11, 512, 1);
  rig.Turn();
  rig.queue->LeaveToSuccessor();
  rig.Stop();
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.storage->CompleteOne();
  rig.storage->result = block::IoStatus::kOk;
  rig.queue->Resume();
  rig.running = true;
  EXPECT_EQ(rig.queue->in_flight(), 1U);
  rig.Write(2, 12, 512, 1);
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{10, 11, 10, 12}));
  EXPECT_EQ(CompleteAll(), (Slots{1, 0, 2}));
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.Write(3, 13, 512, 1);
  rig.Turn();
  EXPECT_EQ(CompleteAll(), (Slots{3})) << "there is no successor any more";
  EXPECT_EQ(rig.StatusOf(3), VIRTIO_BLK_S_IOERR);
  EXPECT_TRUE(InFlight().empty());
}

TEST_P(ReplayTest, RangesThatTheStorageHadNoSpaceForAreLeftAsOneRequest) {
  rig.Start(WithLog());
  rig.Ranges(0, VIRTIO_BLK_T_WRITE_ZEROES, {{8, 8, 0}, {16, 8, 0}});
  rig.Turn();
  rig.storage->CompleteOne();  // the first range
  rig.queue->LeaveToSuccessor();
  rig.Stop();
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.drained, 1);
  EXPECT_TRUE(rig.TakeAllUsed().empty());
  EXPECT_EQ(InFlight(), (std::vector<uint16_t>{BlkRig::HeadOf(0)}));
  rig.storage->result = block::IoStatus::kOk;
}

// Storage tells of what it has lost only once: a successor's flush would succeed.
TEST_P(ReplayTest, AFlushThatHadNoSpaceIsAnsweredAndNotLeft) {
  rig.Start(WithLog());
  rig.Flush(0);
  rig.Turn();
  rig.queue->LeaveToSuccessor();
  rig.Stop();
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.TakeAllUsed().size(), 1U);
  EXPECT_EQ(rig.StatusOf(0), VIRTIO_BLK_S_IOERR);
  EXPECT_TRUE(InFlight().empty());
  rig.storage->result = block::IoStatus::kOk;
}

TEST_P(ReplayTest, WithoutALogAllIsAnswered) {
  rig.Start();
  rig.Write(0, 10, 512, 1);
  rig.Turn();
  rig.queue->LeaveToSuccessor();
  rig.Stop();
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.TakeAllUsed().size(), 1U);
  EXPECT_EQ(rig.StatusOf(0), VIRTIO_BLK_S_IOERR);
  rig.storage->result = block::IoStatus::kOk;
}

TEST_P(ReplayTest, AQueueThatIsStoppedForItsGuestAnswersAll) {
  rig.Start(WithLog());
  rig.Write(0, 10, 512, 1);
  rig.Turn();
  rig.Stop();
  rig.storage->result = block::IoStatus::kNoSpace;
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.TakeAllUsed().size(), 1U);
  EXPECT_EQ(rig.StatusOf(0), VIRTIO_BLK_S_IOERR);
  EXPECT_TRUE(InFlight().empty());
  rig.storage->result = block::IoStatus::kOk;
}

INSTANTIATE_TEST_SUITE_P(Rings, ReplayTest, ::testing::Bool(),
                         [](const auto& ring) { return ring.param ? "Packed" : "Split"; });

// ---- A log that contradicts the ring

using SplitReplayTest = ReplayTest;

TEST_P(SplitReplayTest, MoreInFlightThanTheGuestWaitsFor) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  Die();
  rig.guest.SetAvailableIndex(2);
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(
      Broken(),
      "in-flight log: it has 3 requests in flight, the guest waits for 2 (available index 2, used index 0)");
  EXPECT_TRUE(SectorsSeen().empty());
}

TEST_P(SplitReplayTest, WhatIsRunAgainCountsAsInUse) {
  rig.Start(WithLog());
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  Die();
  rig.Start(AfterCrash());
  rig.Turn();
  rig.guest.SetAvailableIndex(BlkRig::kSize + 1);  // one more than there is
  rig.Turn();
  EXPECT_NE(Broken().find("with 3 of the queue's 64 entries in use"), std::string::npos) << Broken();
}

TEST_P(SplitReplayTest, WhatAnotherLifeOfTheRingLeftIsNotRunAgain) {
  rig.guest.StartAt(500);
  QueueSetup setup = WithLog();
  setup.next_available = 500;
  rig.Start(setup);
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Write(slot, slot, 512, 1);
  rig.Turn();
  Die();
  rig.guest.StartAt(0);  // the guest was reset while nobody served it
  rig.Write(4, 4, 512, 1);
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(SectorsSeen(), (Sectors{4}));
  EXPECT_EQ(CompleteAll(), (Slots{4}));
}

INSTANTIATE_TEST_SUITE_P(Rings, SplitReplayTest, ::testing::Values(false));

using PackedReplayTest = ReplayTest;

TEST_P(PackedReplayTest, TwoRequestsWithOneBufferId) {
  rig.Start(WithLog());
  rig.Write(0, 0, 512, 1);
  rig.Write(1, 1, 512, 1);
  rig.Turn();
  Die();
  // The id counts in a chain's last descriptor: entry 5 is the second chain's.
  const uint16_t id = BlkRig::HeadOf(0);
  std::memcpy(log.bytes() + PackedInflightLog::kHeaderBytes + 5 * PackedInflightLog::kEntryBytes + 16, &id,
              2);
  rig.Start(AfterCrash());
  rig.Turn();
  EXPECT_EQ(Broken(), "in-flight log: it has a request with buffer id 0, and another one");
  EXPECT_TRUE(SectorsSeen().empty());
}

INSTANTIATE_TEST_SUITE_P(Rings, PackedReplayTest, ::testing::Values(true));

}  // namespace
}  // namespace cleat::virtio::replay_test
