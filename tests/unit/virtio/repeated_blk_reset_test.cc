// SPDX-License-Identifier: Apache-2.0
// A blk queue that starts before what it was let pass has been paid for.
#include <deque>
#include <vector>

#include "kill.h"
#include "repeated_reset.h"
#include "virtio/ring_queue.h"

namespace cleat::virtio::repeated_blk_reset_test {
namespace {

class BlkReset : public RepeatedReset {};
INSTANTIATE_TEST_SUITE_P(Blk, BlkReset, ::testing::Bool(),
                         [](const auto& how) { return how.param ? "OfAGroup" : "OfTheDisk"; });

// A guest that always has all its slots in the ring, each for a sector of its own, counted up.
class BlkGuest {
 public:
  explicit BlkGuest(BlkRig& rig) : rig_(rig) { Reset(); }

  void Reset() {
    rig_.TakeAllUsed();
    rig_.guest.StartAt(0);
    free_.clear();
    for (uint32_t slot = 0; slot < BlkRig::kSlots; ++slot) free_.push_back(slot);
  }
  void Fill() {
    for (; !free_.empty(); free_.pop_front()) {
      rig_.Write(free_.front(), written_++ % BlkRig::kSectors, 512, 1);
    }
  }
  // What was answered may be used anew.
  void Take() {
    for (const Used& used : rig_.TakeAllUsed()) {
      const auto slot = static_cast<uint32_t>(used.id / 3);
      ok_ &= rig_.StatusOf(slot) == VIRTIO_BLK_S_OK;
      free_.push_back(slot);
      ++answered_;
    }
  }
  uint64_t written() const { return written_; }
  uint64_t answered() const { return answered_; }
  bool ok() const { return ok_; }

 private:
  BlkRig& rig_;
  std::deque<uint32_t> free_;
  uint64_t written_ = 0;
  uint64_t answered_ = 0;
  bool ok_ = true;
};

// Every write of the guest once, in the order in which it made them.
void ExpectAllInOrder(const std::vector<MemoryChannel::Seen>& seen, uint64_t count) {
  ASSERT_EQ(seen.size(), count);
  for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(seen[i].offset, i % BlkRig::kSectors * 512) << i;
}

TEST_P(BlkReset, OfABlkDeviceGivesNoMoreThanOneQueueBeyondTheLimits) {
  LimitedBlk limited(by(kIops));
  BlkRig& rig = limited.rig;
  BlkGuest guest(rig);
  for (uint64_t ns = 0; ns < kSeconds * kNsPerSecond; ns += kStepNs) {
    guest.Take();
    guest.Fill();
    rig.clock.AdvanceBy(kStepNs);
    rig.reactor->RunOnce();
    if (ns % kResetNs != 0) continue;
    const uint32_t before = rig.drained;
    rig.Stop();
    ASSERT_EQ(rig.drained, before + 1);  // at once
    guest.Reset();
    rig.Start();
  }
  ExpectHeldToLimits(rig.storage->seen.size(), BlkRig::kSlots);
}

TEST_P(BlkReset, ABlkQueueThatIsPausedLosesNothing) {
  LimitedBlk limited(by(kIops));
  BlkRig& rig = limited.rig;
  BlkGuest guest(rig);
  for (uint64_t ns = 0; ns < kSeconds * kNsPerSecond; ns += kStepNs) {
    guest.Take();
    guest.Fill();
    rig.clock.AdvanceBy(kStepNs);
    rig.reactor->RunOnce();
    if (ns % kResetNs != 0) continue;
    rig.Stop();
    limited.Continue();
  }
  ExpectHeldToLimits(rig.storage->seen.size(), BlkRig::kSlots);
  for (uint32_t ms = 0; ms < 1000; ++ms) {
    rig.clock.AdvanceBy(kNsPerMs);
    rig.reactor->RunOnce();
  }
  guest.Take();
  EXPECT_EQ(guest.answered(), guest.written());
  EXPECT_TRUE(guest.ok());
  ExpectAllInOrder(rig.storage->seen, guest.written());
}

// Its queue was full when it was stopped, and is when it goes on.
void StopFullAndContinue(LimitedBlk& limited, BlkGuest& guest) {
  guest.Fill();
  limited.rig.Turn();
  limited.rig.Stop();
  limited.Continue();
  guest.Take();
  guest.Fill();
}

TEST(HeldBlkQueue, GoesOnSoonWhenItsLimitIsLifted) {
  LimitedBlk limited({1, false});
  BlkRig& rig = limited.rig;
  BlkGuest guest(rig);
  StopFullAndContinue(limited, guest);
  rig.clock.AdvanceBy(kNsPerSecond);
  rig.Turn();
  EXPECT_EQ(rig.queue->in_flight(), 0U);
  limited.SetLimits({});
  rig.clock.AdvanceBy(RingQueue::kHoldPollNs);
  rig.Turn();
  EXPECT_EQ(rig.storage->seen.size(), 2 * BlkRig::kSlots);
}

// As it was told: 20 s for what was let pass.
TEST(HeldBlkQueue, GoesOnWhenItIsPaid) {
  LimitedBlk limited({1, false});
  BlkRig& rig = limited.rig;
  BlkGuest guest(rig);
  StopFullAndContinue(limited, guest);
  rig.SleepNow();
  for (uint32_t step = 0; step < 199; ++step) {
    EXPECT_EQ(rig.queue->in_flight(), 0U);
    EXPECT_LE(rig.reactor->NextTimerNs(), rig.clock.NowNs() + RingQueue::kHoldPollNs);
    rig.clock.AdvanceBy(100 * kNsPerMs);
    rig.reactor->RunOnce();
  }
  rig.clock.AdvanceBy(kNsPerSecond + 100 * kNsPerMs);
  rig.Turn();
  EXPECT_GT(rig.queue->in_flight(), 0U);
}

TEST(HeldBlkQueue, SleepsMeanwhile) {
  LimitedBlk limited({1, false});
  BlkRig& rig = limited.rig;
  BlkGuest guest(rig);
  StopFullAndContinue(limited, guest);
  rig.SleepNow();
  EXPECT_TRUE(rig.reactor->CanSleep());
}

TEST(HeldBlkQueue, StoppedMeanwhileStartsAgain) {
  LimitedBlk limited({1, false});
  BlkRig& rig = limited.rig;
  BlkGuest guest(rig);
  StopFullAndContinue(limited, guest);
  rig.Turn();
  rig.Stop();  // nothing is in flight
  EXPECT_EQ(rig.drained, 2U);
  EXPECT_EQ(rig.storage->seen.size(), BlkRig::kSlots);
  limited.Continue();
  for (uint32_t step = 0; step < 450; ++step) {
    rig.clock.AdvanceBy(100 * kNsPerMs);
    rig.reactor->RunOnce();
  }
  guest.Take();
  EXPECT_EQ(guest.answered(), 2 * BlkRig::kSlots);
  ExpectAllInOrder(rig.storage->seen, guest.written());
}

// What a predecessor left in flight is run again at once, what came after it is held.
TEST(HeldBlkQueue, RunsAgainWhatWasInFlight) {
  LimitedBlk limited({1, false});
  BlkRig& rig = limited.rig;
  LogMemory log(BlkRig::kSize);
  rig.Stop();
  QueueSetup setup = rig.Setup();
  setup.inflight = log.memory();
  rig.Start(setup);
  for (uint32_t slot = 0; slot < 5; ++slot) rig.Write(slot, slot, 512, 7);
  rig.Turn();
  ASSERT_EQ(rig.queue->in_flight(), 4U);
  Moment moment(rig.memory, log);
  rig.Stop();
  moment.Restore();
  setup.next_available = rig.queue->next_available();
  rig.Write(5, 5, 512, 7);
  rig.Start(setup);
  rig.Turn();
  EXPECT_EQ(rig.queue->in_flight(), 4U);
  rig.clock.AdvanceBy(10 * kNsPerSecond);
  rig.Turn();
  rig.clock.AdvanceBy(10 * kNsPerSecond);
  rig.Turn();
  rig.Stop();
  EXPECT_EQ(rig.StatusOf(5), VIRTIO_BLK_S_OK);
  EXPECT_EQ(rig.storage->seen.size(), 10U);
}

}  // namespace
}  // namespace cleat::virtio::repeated_blk_reset_test
