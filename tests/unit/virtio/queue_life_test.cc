// SPDX-License-Identifier: Apache-2.0
// A queue's life: batches and notifications, sleep and wake-up, stop and drain, memory that changes, a broken
// ring, the in-flight and the dirty log - with storage that answers when it is told to.
#include <gtest/gtest.h>

#include "blk_rig.h"
#include "virtio/inflight_log.h"
#include "virtio/ring_queue.h"

namespace cleat::virtio::queue_life_test {
namespace {

constexpr uint8_t kOk = VIRTIO_BLK_S_OK;

class QueueLifeTest : public ::testing::Test {
 protected:
  // Before the members of a derived fixture go.
  void TearDown() override {
    if (rig.running) rig.StopAndDrain();
  }
  BlkRig rig;
};

// ---- Batches and notifications

TEST_F(QueueLifeTest, OneNotificationForABatch) {
  rig.Start();
  EXPECT_EQ(rig.notifier.calls, 1U);  // for what a predecessor may have left
  for (uint32_t slot = 0; slot < 10; ++slot) rig.Read(slot, slot, 512);
  rig.Turn(1);
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 10U);
  EXPECT_EQ(rig.notifier.calls, 2U);
}

TEST_F(QueueLifeTest, LateCompletionsAreShownInTheNextTurn) {
  rig.storage->hold = true;
  rig.Start();
  for (uint32_t slot = 0; slot < 5; ++slot) rig.Read(slot, slot, 512);
  rig.Turn();
  EXPECT_EQ(rig.queue->in_flight(), 5U);
  const uint32_t calls = rig.notifier.calls;
  EXPECT_EQ(rig.storage->CompleteAll(), 5U);
  rig.Turn(1);
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 5U);
  EXPECT_EQ(rig.notifier.calls, calls + 1);
  EXPECT_EQ(rig.queue->in_flight(), 0U);
}

TEST_F(QueueLifeTest, CompletionOrderIsTheStorages) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.Read(1, 0, 512);
  rig.Turn();
  block::Request* first = rig.storage->held.PopFront();
  rig.storage->CompleteOne();
  first->Complete(block::IoStatus::kOk);
  rig.Turn();
  EXPECT_EQ(rig.guest.TakeAllUsed(), (std::vector<Used>{{BlkRig::HeadOf(1), 513}, {BlkRig::HeadOf(0), 513}}));
}

TEST_F(QueueLifeTest, WithoutANotifierTheGuestPolls) {
  QueueSetup setup = rig.Setup();
  setup.notifier = nullptr;
  rig.Start(setup);
  rig.Read(0, 0, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  CountingNotifier later;
  rig.queue->SetNotifier(&later);
  EXPECT_EQ(later.calls, 1U);  // for what it missed
}

TEST_F(QueueLifeTest, ABatchIsBounded) {
  rig.Start();
  rig.PutHeader(0, VIRTIO_BLK_T_FLUSH, 0);
  for (uint16_t i = 0; i < BlkRig::kSize; ++i) {
    rig.guest.SetIndirectChain(i, GuestLayout::kHigh,
                               {{BlkRig::HeaderAt(0), 16}, {BlkRig::StatusAt(0), 1, kDescWrite}});
    rig.guest.PutAvailable(i);
  }
  rig.guest.Expose();
  rig.Turn(1);
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), RingQueue::kFetchBatchMax);
}

// Descriptors may all be the same page: one of these has more than a batch may have.
TEST_F(QueueLifeTest, ABatchIsBoundedInBytes) {
  constexpr uint32_t kPieceBytes = 32 << 10;
  rig.Start();
  rig.PutHeader(0, VIRTIO_BLK_T_OUT, 0);
  std::vector<Desc> chain{{BlkRig::HeaderAt(0), 16}};
  for (uint64_t bytes = 0; bytes < RingQueue::kFetchBytesMax; bytes += kPieceBytes)
    chain.push_back({GuestLayout::kLow, kPieceBytes});
  chain.push_back({BlkRig::StatusAt(0), 1, kDescWrite});
  for (uint16_t i = 0; i < 8; ++i) {
    rig.guest.SetIndirectChain(i, GuestLayout::kHigh, chain);
    rig.guest.PutAvailable(i);
  }
  rig.guest.Expose();
  for (int turn = 0; turn < 3; ++turn) {
    rig.Turn(1);
    EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);
  }
}

// ---- Sleep and wake-up

TEST_F(QueueLifeTest, IdleQueueIsArmedAndWokenByAKick) {
  rig.Start();
  rig.SleepNow();
  EXPECT_TRUE(rig.reactor->CanSleep());
  EXPECT_EQ(rig.guest.avail_event(), 0);
  rig.Read(0, 0, 512);
  rig.reactor->Activate(*rig.queue);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  rig.SleepNow();
  EXPECT_EQ(rig.guest.avail_event(), 1);
}

TEST_F(QueueLifeTest, NotificationsByFlagsFollowTheSleep) {
  QueueSetup setup = rig.Setup();
  setup.features &= ~(uint64_t{1} << kFeatureEventIdx);
  rig.Start(setup);
  EXPECT_EQ(rig.guest.used_flags(), kUsedNoNotify);
  rig.SleepNow();
  EXPECT_EQ(rig.guest.used_flags(), 0);
  rig.reactor->Activate(*rig.queue);
  EXPECT_EQ(rig.guest.used_flags(), kUsedNoNotify);
}

TEST_F(QueueLifeTest, WorkThatCameWhileArmingIsSeen) {
  rig.Start();
  rig.Read(0, 0, 512);
  EXPECT_FALSE(rig.queue->Arm());
  EXPECT_EQ(rig.Answer(0, 513), kOk);
}

TEST_F(QueueLifeTest, RequestsInFlightDoNotKeepItAwakeAndTheirCompletionWakesIt) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.Turn();
  rig.SleepNow();
  EXPECT_TRUE(rig.reactor->CanSleep());
  EXPECT_TRUE(rig.storage->CompleteOne());
  EXPECT_FALSE(rig.reactor->CanSleep());
  rig.Turn(1);
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);
}

// ---- Stop and drain

TEST_F(QueueLifeTest, StopOfAnIdleQueueIsImmediate) {
  rig.Start();
  rig.Stop();
  EXPECT_EQ(rig.drained, 1U);
  EXPECT_TRUE(rig.reactor->CanSleep());
}

TEST_F(QueueLifeTest, StopFetchesNothingMoreAndDrains) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.Read(1, 0, 512);
  rig.Turn();
  rig.Stop();
  rig.Read(2, 0, 512);
  rig.Turn();
  EXPECT_EQ(rig.drained, 0U);
  EXPECT_EQ(rig.queue->next_available(), 2);
  rig.storage->CompleteOne();
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);  // shown at once
  EXPECT_EQ(rig.drained, 0U);
  rig.storage->CompleteOne();
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(rig.drained, 1U);

  // A successor goes on where this one stopped.
  rig.storage->hold = false;
  QueueSetup setup = rig.Setup();
  setup.next_available = rig.queue->next_available();
  rig.Start(setup);
  EXPECT_EQ(rig.Answer(2, 513), kOk);
}

TEST_F(QueueLifeTest, StopShowsWhatWasCompletedAndNotYetShown) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.Turn();
  rig.storage->CompleteOne();
  EXPECT_TRUE(rig.guest.TakeAllUsed().empty());
  rig.Stop();
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);
  EXPECT_EQ(rig.drained, 1U);
}

TEST_F(QueueLifeTest, QueueMayBeDestroyedWhenItIsDrained) {
  rig.storage->hold = true;
  rig.Start();
  rig.Ranges(0, VIRTIO_BLK_T_DISCARD, {{0, 8, 0}, {8, 8, 0}});
  rig.Turn();
  rig.running = false;
  rig.queue->Stop([this] { rig.queue.reset(); });
  EXPECT_EQ(rig.storage->CompleteAll(), 2U);
  EXPECT_EQ(rig.queue, nullptr);
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);
}

TEST_F(QueueLifeTest, StopFromWithinOnBroken) {
  rig.storage->hold = true;
  rig.queue->Start(rig.Setup(),
                   [this](const std::string&) { rig.queue->Stop([this] { rig.queue.reset(); }); });
  rig.Read(0, 0, 512);
  rig.guest.PutAvailable(BlkRig::kSize);
  rig.guest.Expose();
  rig.Turn();
  ASSERT_NE(rig.queue, nullptr);  // a request is in flight
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.queue, nullptr);
}

TEST_F(QueueLifeTest, StopFromWithinOnBrokenWithNothingInFlight) {
  rig.queue->Start(rig.Setup(),
                   [this](const std::string&) { rig.queue->Stop([this] { rig.queue.reset(); }); });
  rig.guest.Offer(BlkRig::kSize);
  rig.Turn();
  EXPECT_EQ(rig.queue, nullptr);  // in a turn of its own: not under the feet of Poll
}

// ---- Broken

TEST_F(QueueLifeTest, BrokenRingIsToldOnceAndRequestsInFlightEnd) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.guest.PutAvailable(999);
  rig.guest.Expose();
  rig.Turn();
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_EQ(rig.broken[0], "available entry 1 names descriptor 999, the queue has 64");
  rig.Read(1, 0, 512);
  rig.Turn();
  EXPECT_EQ(rig.broken.size(), 1U);
  EXPECT_EQ(rig.queue->in_flight(), 1U);  // nothing more was fetched
  rig.SleepNow();
  EXPECT_TRUE(rig.reactor->CanSleep());  // it does not spin either
  rig.storage->CompleteOne();
  EXPECT_EQ(rig.Answer(0, 513), kOk);
}

TEST_F(QueueLifeTest, StopAndStartMakeItWhole) {
  rig.Start();
  rig.guest.SetAvailableIndex(1000);
  rig.Turn();
  EXPECT_EQ(rig.broken.size(), 1U);
  rig.StopAndDrain();
  rig.guest.SetAvailableIndex(0);
  rig.Start();
  rig.Read(0, 0, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  EXPECT_EQ(rig.broken.size(), 1U);
}

TEST_F(QueueLifeTest, BrokenWhileArmedIsToldAfterTheKick) {
  rig.Start();
  rig.SleepNow();
  rig.guest.SetAvailableIndex(1000);
  rig.reactor->Activate(*rig.queue);
  rig.Turn();
  EXPECT_EQ(rig.broken.size(), 1U);
}

// ---- Memory

TEST_F(QueueLifeTest, RequestsInFlightKeepTheirMemory) {
  rig.storage->hold = true;
  rig.Start();
  std::weak_ptr<const block::MemoryMap> first = rig.memory.map();
  rig.Read(0, 0, 512);
  rig.Turn();
  rig.queue->SetMemory(rig.memory.Remap(), rig.guest.memory());
  std::weak_ptr<const block::MemoryMap> second = rig.memory.map();
  rig.Read(1, 0, 512);
  rig.Turn();
  rig.queue->SetMemory(rig.memory.Remap(), rig.guest.memory());
  EXPECT_FALSE(first.expired());
  EXPECT_FALSE(second.expired());

  rig.storage->CompleteOne();
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(second.expired());
  rig.storage->CompleteOne();
  EXPECT_TRUE(second.expired());
  rig.Turn();
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 2U);
  rig.storage->hold = false;
  rig.Read(2, 0, 512);
  EXPECT_EQ(rig.Answer(2, 513), kOk);
}

TEST_F(QueueLifeTest, DrainedQueueHoldsNoMemory) {
  rig.Start();
  std::weak_ptr<const block::MemoryMap> map = rig.memory.map();
  rig.StopAndDrain();
  rig.memory.Remap();
  EXPECT_TRUE(map.expired());
}

TEST_F(QueueLifeTest, RingThatMovesKeepsItsPlace) {
  rig.Start();
  rig.Read(0, 0, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  // The same guest-physical pages, at another place of our address space.
  GuestMemory moved(GuestLayout::Regions(BlkRig::kSize));
  for (const auto& [address, bytes] : GuestLayout::Regions(BlkRig::kSize)) {
    std::memcpy(moved.At(address), rig.memory.At(address), bytes);
  }
  GuestRing ring = GuestLayout::Ring(moved, BlkRig::kSize);
  rig.queue->SetMemory(moved.map(), ring.memory());
  ring.StartAt(1);
  moved.Put<uint8_t>(BlkRig::StatusAt(0), 0xff);
  ring.Offer(BlkRig::HeadOf(0));
  rig.Turn();
  EXPECT_EQ(ring.TakeAllUsed().size(), 1U);
  EXPECT_EQ(moved.Get<uint8_t>(BlkRig::StatusAt(0)), kOk);
  rig.StopAndDrain();
}

// ---- The logs

TEST_F(QueueLifeTest, InflightLogFollowsTheRequests) {
  alignas(8) uint8_t bytes[InflightLog::Bytes(BlkRig::kSize)] = {};
  const auto inflight = [&](uint16_t head) { return bytes[16 + 16 * head]; };
  rig.storage->hold = true;
  QueueSetup setup = rig.Setup();
  setup.inflight = {bytes, sizeof(bytes), nullptr};
  rig.Start(setup);
  rig.Read(0, 0, 512);
  rig.Read(1, 0, 512);
  rig.Turn();
  EXPECT_EQ(inflight(BlkRig::HeadOf(0)), 1);
  EXPECT_EQ(inflight(BlkRig::HeadOf(1)), 1);
  rig.storage->CompleteOne();
  EXPECT_EQ(inflight(BlkRig::HeadOf(0)), 1);  // not yet shown to the guest
  rig.Turn(1);
  EXPECT_EQ(inflight(BlkRig::HeadOf(0)), 0);
  EXPECT_EQ(inflight(BlkRig::HeadOf(1)), 1);
  rig.StopAndDrain();
  EXPECT_EQ(inflight(BlkRig::HeadOf(1)), 0);
}

TEST_F(QueueLifeTest, InflightLogThatDoesNotFitBreaksTheQueue) {
  alignas(8) uint8_t bytes[64] = {};
  QueueSetup setup = rig.Setup();
  setup.inflight = {bytes, sizeof(bytes), nullptr};
  rig.Start(setup);
  rig.Read(0, 0, 512);
  rig.Turn();
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_NE(rig.broken[0].find("in-flight log: it has 64 bytes"), std::string::npos);
  EXPECT_TRUE(rig.guest.TakeAllUsed().empty());
}

class QueueDirtyLogTest : public QueueLifeTest {
 protected:
  bool Dirty(uint64_t address) const { return (bits[address >> 15] >> (address >> 12 & 7) & 1) != 0; }
  void StartLog() { rig.queue->SetDirtyLog({bits.data(), bits.size(), nullptr}); }
  std::vector<uint8_t> bits = std::vector<uint8_t>((GuestLayout::kEnd >> 15) + 1);
};

TEST_F(QueueDirtyLogTest, ReadMarksDataStatusAndUsedRing) {
  rig.Start();
  StartLog();
  rig.Read(1, 0, 8192);
  EXPECT_EQ(rig.Answer(1, 8193), kOk);
  EXPECT_TRUE(Dirty(BlkRig::DataAt(1)));
  EXPECT_TRUE(Dirty(BlkRig::DataAt(1) + 8191));
  EXPECT_FALSE(Dirty(BlkRig::DataAt(1) + 8192));
  EXPECT_FALSE(Dirty(BlkRig::DataAt(0)));
  EXPECT_TRUE(Dirty(BlkRig::StatusAt(1)));
  EXPECT_TRUE(Dirty(GuestLayout::kUsed));
  EXPECT_FALSE(Dirty(GuestLayout::kDescriptors));
}

TEST_F(QueueDirtyLogTest, WriteMarksNoData) {
  rig.Start();
  StartLog();
  rig.Write(1, 0, 4096, 1);
  EXPECT_EQ(rig.Answer(1, 1), kOk);
  EXPECT_FALSE(Dirty(BlkRig::DataAt(1)));
  EXPECT_TRUE(Dirty(BlkRig::StatusAt(1)));
}

TEST_F(QueueDirtyLogTest, FailedReadMarksData) {
  rig.Start();
  StartLog();
  rig.storage->result = block::IoStatus::kIoError;
  rig.Read(1, 0, 4096);
  EXPECT_EQ(rig.Answer(1, 4097), VIRTIO_BLK_S_IOERR);
  EXPECT_TRUE(Dirty(BlkRig::DataAt(1)));
}

TEST_F(QueueDirtyLogTest, RequestThatWasInFlightWhenTheLogCame) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(1, 0, 4096);
  rig.Turn();
  StartLog();
  rig.storage->CompleteOne();
  EXPECT_TRUE(Dirty(BlkRig::DataAt(1)));
  rig.Turn();
  EXPECT_TRUE(Dirty(GuestLayout::kUsed));
}

TEST_F(QueueDirtyLogTest, LogThatIsTooSmallBreaksTheQueue) {
  rig.Start();
  rig.queue->SetDirtyLog({bits.data(), 8, nullptr});
  rig.Read(1, 0, 512);
  rig.Turn();
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_NE(rig.broken[0].find("dirty log of 8 bytes"), std::string::npos);
  EXPECT_EQ(rig.guest.TakeAllUsed().size(), 1U);
}

}  // namespace
}  // namespace cleat::virtio::queue_life_test
