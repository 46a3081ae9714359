// SPDX-License-Identifier: Apache-2.0
// What a queue does differently over a packed ring: positions, notifications, the in-flight log, a broken ring. The
// rest of its life is queue_life_test.cc, the requests are blk_queue_test.cc.
#include <gtest/gtest.h>

#include "blk_rig.h"
#include "virtio/packed_inflight_log.h"
#include "virtio/ring_queue.h"

namespace cleat::virtio::packed_queue_test {
namespace {

constexpr uint8_t kOk = VIRTIO_BLK_S_OK;

class PackedQueueTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (rig.running) rig.StopAndDrain();
  }
  BlkRig rig{BlkRig::DefaultGeometry(), block::AccessMode::kReadWrite, nullptr, true};
};

TEST_F(PackedQueueTest, SuccessorGoesOnWhereItStopped) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.Read(1, 0, 512);
  rig.Turn();
  rig.Stop();
  rig.Read(2, 0, 512);
  rig.Turn();
  EXPECT_EQ(rig.queue->next_available(), (PackedPosition{{6, true}, {0, true}}.word()));
  EXPECT_EQ(rig.drained, 0U);
  rig.storage->CompleteAll();
  EXPECT_EQ(rig.drained, 1U);
  EXPECT_EQ(rig.TakeAllUsed().size(), 2U);
  EXPECT_EQ(rig.queue->next_available(), (PackedPosition{{6, true}, {6, true}}.word()));

  rig.storage->hold = false;
  QueueSetup setup = rig.Setup();
  setup.next_available = rig.queue->next_available();
  rig.Start(setup);
  EXPECT_EQ(rig.Answer(2, 513), kOk);
}

TEST_F(PackedQueueTest, SameQueueServesEitherFormatInTurn) {
  rig.Start();
  rig.Read(0, 0, 512);
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  rig.StopAndDrain();
  QueueSetup split = rig.Setup();
  split.features &= ~(uint64_t{1} << kFeatureRingPacked);
  split.ring = rig.guest.memory();
  split.next_available = 0;
  rig.guest.StartAt(0);
  rig.Start(split);
  rig.PutHeader(1, VIRTIO_BLK_T_FLUSH, 0);
  rig.guest.SetChain(0, {{BlkRig::HeaderAt(1), 16}, {BlkRig::StatusAt(1), 1, kDescWrite}});
  rig.guest.Offer(0);
  rig.Turn();
  EXPECT_EQ(rig.guest.TakeAllUsed(), (std::vector<Used>{{0, 1}}));
  EXPECT_EQ(rig.StatusOf(1), kOk);
}

TEST_F(PackedQueueTest, OneNotificationForABatchOutOfOrder) {
  rig.storage->hold = true;
  rig.Start();
  const uint32_t before = rig.notifier.calls;
  for (uint32_t slot = 0; slot < 10; ++slot) rig.Read(slot, slot, 512);
  rig.Turn();
  EXPECT_EQ(rig.storage->CompleteAll(), 10U);
  EXPECT_TRUE(rig.TakeAllUsed().empty());
  rig.Turn(1);
  EXPECT_EQ(rig.TakeAllUsed().size(), 10U);
  EXPECT_EQ(rig.notifier.calls, before + 1);
}

TEST_F(PackedQueueTest, AsksForKicksOnlyWhenItSleeps) {
  rig.Start();
  EXPECT_EQ(rig.packed_guest.device_event() >> 16, kEventDisable);
  rig.SleepNow();
  EXPECT_EQ(rig.packed_guest.device_event(), PackedIndex{}.word() | uint32_t{kEventDesc} << 16);
  rig.Read(0, 0, 512);
  rig.reactor->Activate(*rig.queue);  // what a kick does
  EXPECT_EQ(rig.Answer(0, 513), kOk);
  EXPECT_EQ(rig.packed_guest.device_event() >> 16, kEventDisable);
  rig.SleepNow();
  EXPECT_EQ(rig.packed_guest.device_event(), (PackedIndex{3, true}.word() | uint32_t{kEventDesc} << 16));
}

TEST_F(PackedQueueTest, KeepsTheInflightLogAndGoesOnFromIt) {
  std::vector<uint64_t> log(PackedInflightLog::Bytes(BlkRig::kSize) / 8);
  const InflightMemory memory{reinterpret_cast<uint8_t*>(log.data()), log.size() * 8, nullptr};
  const auto in_flight = [&] {
    std::vector<uint64_t> copy = log;
    PackedInflightLog reader;
    EXPECT_TRUE(reader
                    .Attach({reinterpret_cast<uint8_t*>(copy.data()), copy.size() * 8, nullptr},
                            rig.packed_guest.memory(), {})
                    .ok());
    return reader.InFlight();
  };
  QueueSetup setup = rig.Setup();
  setup.inflight = memory;
  rig.storage->hold = true;
  rig.Start(setup);
  for (uint32_t slot = 0; slot < 3; ++slot) rig.Read(slot, slot, 512);
  rig.Turn();
  EXPECT_EQ(in_flight(), (std::vector<uint16_t>{BlkRig::HeadOf(0), BlkRig::HeadOf(1), BlkRig::HeadOf(2)}));
  rig.storage->CompleteOne();
  rig.Turn();
  EXPECT_EQ(in_flight(), (std::vector<uint16_t>{BlkRig::HeadOf(1), BlkRig::HeadOf(2)}));
  rig.StopAndDrain();
  EXPECT_TRUE(in_flight().empty());
  EXPECT_EQ(rig.TakeAllUsed().size(), 3U);
  // A front end that lost the position, as one does when a back end dies: the log has it.
  setup.next_available = kPackedStart;
  rig.Start(setup);
  rig.Read(5, 0, 512);
  EXPECT_EQ(rig.Answer(5, 513), kOk);
}

TEST_F(PackedQueueTest, TooSmallALogBreaksTheQueue) {
  std::vector<uint64_t> log(PackedInflightLog::Bytes(BlkRig::kSize) / 8 - 1);
  QueueSetup setup = rig.Setup();
  setup.inflight = {reinterpret_cast<uint8_t*>(log.data()), log.size() * 8, nullptr};
  rig.Start(setup);
  rig.Turn();
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_NE(rig.broken[0].find("in-flight log"), std::string::npos) << rig.broken[0];
}

TEST_F(PackedQueueTest, BrokenRingFetchesNoMoreAndStillGivesBack) {
  rig.storage->hold = true;
  rig.Start();
  rig.Read(0, 0, 512);
  rig.packed_guest.Offer({{GuestLayout::kLow, 16}}, BlkRig::kSize);
  rig.Read(1, 0, 512);
  rig.Turn();
  ASSERT_EQ(rig.broken.size(), 1U);
  EXPECT_NE(rig.broken[0].find("buffer id 64"), std::string::npos) << rig.broken[0];
  EXPECT_EQ(rig.queue->in_flight(), 1U);
  rig.storage->CompleteAll();
  rig.Turn();
  EXPECT_EQ(rig.TakeAllUsed(), (std::vector<Used>{{BlkRig::HeadOf(0), 513}}));
  rig.StopAndDrain();
  EXPECT_EQ(rig.drained, 1U);
}

TEST_F(PackedQueueTest, MemoryMovesUnderIt) {
  rig.storage->hold = true;
  rig.Start();
  rig.Write(0, 3, 512, 7);
  rig.Turn();
  rig.queue->SetMemory(rig.memory.Remap(), rig.packed_guest.memory());
  rig.Write(1, 4, 512, 8);
  rig.Turn();
  rig.storage->CompleteAll();
  rig.Turn();
  EXPECT_EQ(rig.TakeAllUsed().size(), 2U);
  EXPECT_EQ(rig.disk[3 * 512], 7);
  EXPECT_EQ(rig.disk[4 * 512], 8);
}

}  // namespace
}  // namespace cleat::virtio::packed_queue_test
