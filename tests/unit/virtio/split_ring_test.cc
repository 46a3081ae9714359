// SPDX-License-Identifier: Apache-2.0
#include "virtio/split_ring.h"

#include <gtest/gtest.h>

#include "guest_ring.h"

namespace cleat::virtio::split_ring_test {
namespace {

constexpr uint64_t kIndirect = uint64_t{1} << kFeatureIndirectDesc;
constexpr uint64_t kEventIdx = uint64_t{1} << kFeatureEventIdx;
constexpr uint64_t kLow = GuestLayout::kLow;
constexpr uint64_t kHigh = GuestLayout::kHigh;

class SplitRingTest : public ::testing::Test {
 protected:
  void Start(uint64_t features = 0, uint16_t index = 0) {
    guest.StartAt(index);
    ring.Start(guest.memory(), features, index, &dirty_log);
  }
  // Takes one chain; the ring must have accepted it.
  void TakeOne(Chain& into) {
    ASSERT_GE(ring.Available(), 1U) << ring.fault();
    uint16_t head = 0;
    ASSERT_TRUE(ring.TakeHead(head)) << ring.fault();
    ASSERT_TRUE(ring.Read(head, *memory.map(), into)) << ring.fault();
  }

  static constexpr uint16_t kSize = 8;
  GuestMemory memory{GuestLayout::Regions(kSize)};
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  DirtyLog dirty_log;
  SplitRing ring;
  Chain chain;
};

TEST_F(SplitRingTest, NothingAvailable) {
  Start();
  EXPECT_EQ(ring.Available(), 0U);
  EXPECT_EQ(ring.fault(), "");
}

TEST_F(SplitRingTest, DirectChain) {
  Start();
  guest.SetChain(
      2, {{kLow, 16}, {kLow + 0x100, 512}, {kLow + 0x400, 100, kDescWrite}, {kLow + 0x500, 1, kDescWrite}});
  guest.Offer(2);
  TakeOne(chain);
  EXPECT_EQ(chain.head(), 2);
  EXPECT_EQ(chain.descriptors(), 4U);
  EXPECT_EQ(chain.readable_bytes(), 528U);
  EXPECT_EQ(chain.writable_bytes(), 101U);
  ASSERT_EQ(chain.readable().size(), 2U);
  EXPECT_EQ(chain.readable()[1].data(), memory.At(kLow + 0x100));
  ASSERT_EQ(chain.writable().size(), 2U);
  EXPECT_EQ(chain.writable()[1].data(), memory.At(kLow + 0x500));
  EXPECT_EQ(ring.Available(), 0U);
  EXPECT_EQ(ring.next_available(), 1);
}

TEST_F(SplitRingTest, IndirectChain) {
  Start(kIndirect);
  guest.SetIndirectChain(5, kLow + 0x1000, {{kLow, 16}, {kLow + 0x400, 100, kDescWrite}});
  guest.Offer(5);
  TakeOne(chain);
  EXPECT_EQ(chain.head(), 5);
  EXPECT_EQ(chain.readable_bytes(), 16U);
  EXPECT_EQ(chain.writable_bytes(), 100U);
}

TEST_F(SplitRingTest, IndirectBehindDirect) {  // 2.7.5.3.2
  Start(kIndirect);
  guest.SetIndirectChain(3, kLow + 0x1000, {{kLow + 16, 16}, {kLow + 0x400, 100, kDescWrite}});
  guest.SetDescriptor(0, {kLow, 16, kDescNext, 3});
  guest.Offer(0);
  TakeOne(chain);
  EXPECT_EQ(chain.descriptors(), 4U);
  EXPECT_EQ(chain.readable_bytes(), 32U);
  EXPECT_EQ(chain.writable_bytes(), 100U);
}

TEST_F(SplitRingTest, IndirectTableAtAnOddAddressAndAcrossRegions) {
  Start(kIndirect);
  for (const uint64_t table : {kLow + 0x1001, kHigh - 24, kHigh - 5}) {
    guest.SetIndirectChain(1, table, {{kLow, 16}, {kLow + 64, 32}, {kLow + 0x400, 100, kDescWrite}});
    guest.Offer(1);
    TakeOne(chain);
    EXPECT_EQ(chain.readable_bytes(), 48U) << table;
    EXPECT_EQ(chain.writable_bytes(), 100U) << table;
    ring.Push(1, 0);
    ring.Publish();
  }
}

TEST_F(SplitRingTest, BufferAcrossRegionsBecomesTwoSegments) {
  Start();
  guest.SetChain(0, {{kHigh - 100, 300}, {kHigh + 0x1000, 1, kDescWrite}});
  guest.Offer(0);
  TakeOne(chain);
  ASSERT_EQ(chain.readable().size(), 2U);
  EXPECT_EQ(chain.readable()[0].length_bytes, 100U);
  EXPECT_EQ(chain.readable()[1].length_bytes, 200U);
  EXPECT_EQ(chain.readable()[1].data(), memory.At(kHigh));
  EXPECT_EQ(chain.readable_bytes(), 300U);
}

TEST_F(SplitRingTest, BufferUpToTheLastByteOfMemory) {
  Start();
  guest.SetChain(0, {{GuestLayout::kEnd - 16, 16}});
  guest.Offer(0);
  TakeOne(chain);
  EXPECT_EQ(chain.readable_bytes(), 16U);
}

TEST_F(SplitRingTest, LongestLegalDirectChainIsTheQueueSize) {
  Start();
  guest.SetChain(0, std::vector<Desc>(kSize, Desc{kLow, 4}));
  guest.Offer(0);
  TakeOne(chain);
  EXPECT_EQ(chain.descriptors(), kSize);
}

// A driver that keeps to seg_max, but gives each byte of the header a descriptor of its own.
TEST_F(SplitRingTest, MostDescriptorsOfALegalBlkDriverFit) {
  Start(kIndirect);
  std::vector<Desc> descs(16, Desc{kLow, 1});
  descs.insert(descs.end(), kDataSegmentsMax, Desc{kLow + 0x1000, 512});
  descs.push_back({kLow + 0x2000, 1, kDescWrite});
  guest.SetIndirectChain(0, kLow + 0x4000, descs);
  guest.Offer(0);
  TakeOne(chain);
  EXPECT_EQ(chain.descriptors(), 16U + kDataSegmentsMax + 2U);
  EXPECT_EQ(chain.readable().size(), 16U + kDataSegmentsMax);
}

TEST_F(SplitRingTest, IndicesWrapAround) {
  Start(0, 65534);
  guest.SetChain(0, {{kLow, 16}});
  for (uint16_t i = 0; i < 5; ++i) {
    guest.Offer(0);
    TakeOne(chain);
    ring.Push(0, i);
    ring.Publish();
    EXPECT_EQ(guest.used_index(), static_cast<uint16_t>(65535 + i));
    EXPECT_EQ(guest.TakeUsed(), (Used{0, i}));
  }
  EXPECT_EQ(ring.next_available(), 3);
}

TEST_F(SplitRingTest, PublishShowsTheWholeBatchAtOnce) {
  Start();
  guest.SetChain(0, {{kLow, 16}});
  guest.SetChain(1, {{kLow, 16}});
  guest.PutAvailable(0);
  guest.PutAvailable(1);
  guest.Expose();
  ASSERT_EQ(ring.Available(), 2U);
  TakeOne(chain);
  TakeOne(chain);
  ring.Push(1, 11);
  ring.Push(0, 10);
  EXPECT_EQ(ring.unpublished(), 2U);
  EXPECT_TRUE(guest.TakeAllUsed().empty());
  ring.Publish();
  EXPECT_EQ(ring.unpublished(), 0U);
  EXPECT_EQ(guest.TakeAllUsed(), (std::vector<Used>{{1, 11}, {0, 10}}));
}

// Publishes `count` more chains and says whether the guest is to be called.
bool PublishSome(SplitRing& ring, GuestRing& guest, uint16_t count) {
  for (uint16_t i = 0; i < count; ++i) guest.PutAvailable(0);
  guest.Expose();
  EXPECT_GE(ring.Available(), count) << ring.fault();
  for (uint16_t i = 0; i < count; ++i) {
    uint16_t head = 0;
    EXPECT_TRUE(ring.TakeHead(head));
    ring.Push(head, 0);
  }
  return ring.Publish();
}

// A guest that polls goes on with what was shown; one that wants a call is told of all of it at the end.
TEST_F(SplitRingTest, ShowingPartOfABatchLosesNoCall) {
  for (const uint16_t event : {10, 11, 12, 13}) {
    SCOPED_TRACE(event);
    Start(kEventIdx, 9);
    PublishSome(ring, guest, 1);  // the first one always calls
    guest.TakeAllUsed();
    guest.SetUsedEvent(event);
    for (int i = 0; i < 3; ++i) guest.PutAvailable(0);
    guest.Expose();
    ASSERT_EQ(ring.Available(), 3U);
    for (uint32_t i = 0; i < 3; ++i) {
      uint16_t head = 0;
      ASSERT_TRUE(ring.TakeHead(head));
      ring.Push(head, i);
      if (i == 2) break;
      ring.PublishUsed();
      EXPECT_EQ(guest.TakeAllUsed(), (std::vector<Used>{{0, i}}));
      EXPECT_EQ(ring.unpublished(), i + 1);
      ring.PublishUsed();
      EXPECT_TRUE(guest.TakeAllUsed().empty());
    }
    EXPECT_EQ(ring.Publish(), event != 13);
    EXPECT_EQ(guest.TakeAllUsed(), (std::vector<Used>{{0, 2}}));
    EXPECT_EQ(ring.unpublished(), 0U);
  }
}

TEST_F(SplitRingTest, WhatWasShownMakesRoom) {
  Start();
  const uint32_t size = guest.memory().size;
  for (uint32_t i = 0; i < size; ++i) guest.PutAvailable(0);
  guest.Expose();
  ASSERT_EQ(ring.Available(), size);
  uint16_t head = 0;
  for (uint32_t i = 0; i < size; ++i) ASSERT_TRUE(ring.TakeHead(head));
  ring.Push(head, 0);
  ring.PublishUsed();
  guest.PutAvailable(0);
  guest.Expose();
  EXPECT_EQ(ring.Available(), 1U) << ring.fault();
}

TEST_F(SplitRingTest, GoesOnWhereThePredecessorStopped) {
  guest.StartAt(100);
  guest.SetChain(0, {{kLow, 16}});
  guest.Offer(0);
  ring.Start(guest.memory(), 0, 100, &dirty_log);
  TakeOne(chain);
  ring.Push(0, 0);
  ring.Publish();
  EXPECT_EQ(guest.used_index(), 101);
}

// ---- Notifications

TEST_F(SplitRingTest, CallByFlags) {
  Start();
  EXPECT_TRUE(PublishSome(ring, guest, 1));
  guest.SetAvailableFlags(kAvailableNoInterrupt);
  EXPECT_FALSE(PublishSome(ring, guest, 1));
  guest.SetAvailableFlags(0);
  EXPECT_TRUE(PublishSome(ring, guest, 1));
}

TEST_F(SplitRingTest, NotificationsByFlags) {
  Start();
  EXPECT_EQ(guest.used_flags(), kUsedNoNotify);
  ring.EnableNotifications();
  EXPECT_EQ(guest.used_flags(), 0);
  ring.DisableNotifications();
  EXPECT_EQ(guest.used_flags(), kUsedNoNotify);
}

TEST_F(SplitRingTest, NotificationsByEventIndex) {
  Start(kEventIdx, 77);
  EXPECT_EQ(guest.used_flags(), 0);  // 2.7.10.1
  PublishSome(ring, guest, 3);
  ring.EnableNotifications();
  EXPECT_EQ(guest.avail_event(), 80);
  EXPECT_EQ(guest.used_flags(), 0);
  ring.DisableNotifications();
  EXPECT_EQ(guest.used_flags(), 0);
}

TEST_F(SplitRingTest, FirstPublishWithEventIndexAlwaysCalls) {
  Start(kEventIdx);
  guest.SetUsedEvent(5000);
  EXPECT_TRUE(PublishSome(ring, guest, 1));
  EXPECT_FALSE(PublishSome(ring, guest, 1));
}

struct EventCase {
  uint16_t start;  // used index before the batch
  uint16_t event;
  uint16_t batch;
  bool call;
};

TEST_F(SplitRingTest, CallByEventIndex) {
  const EventCase cases[] = {
      {10, 10, 1, true},    {10, 11, 1, false},  {10, 9, 1, false},       {10, 12, 3, true},
      {10, 13, 3, false},   {10, 10, 3, true},   {65535, 65535, 1, true}, {65535, 0, 1, false},
      {65535, 0, 2, true},  {65533, 0, 4, true}, {65533, 1, 4, false},    {65533, 65532, 4, false},
      {0, 65535, 8, false}, {0, 7, 8, true},     {0, 8, 8, false},        {32768, 0, 8, false},
  };
  for (const EventCase& test : cases) {
    Start(kEventIdx, static_cast<uint16_t>(test.start - 1));
    PublishSome(ring, guest, 1);  // the first one always calls
    guest.SetUsedEvent(test.event);
    EXPECT_EQ(PublishSome(ring, guest, test.batch), test.call)
        << "start " << test.start << " event " << test.event << " batch " << test.batch;
  }
}

// The rule in words: the event lies in [old, new), modulo 2^16.
TEST(PassesEventTest, AgreesWithTheDefinition) {
  for (const uint16_t old_index : {0, 1, 5, 32767, 32768, 65530, 65535}) {
    for (uint32_t batch = 0; batch <= 16; ++batch) {
      const auto new_index = static_cast<uint16_t>(old_index + batch);
      for (uint32_t event = 0; event <= 65535; ++event) {
        bool passed = false;
        for (uint32_t i = 0; i < batch; ++i) passed |= static_cast<uint16_t>(old_index + i) == event;
        ASSERT_EQ(PassesEvent(static_cast<uint16_t>(event), new_index, old_index), passed)
            << old_index << " + " << batch << ", event " << event;
      }
    }
  }
}

}  // namespace
}  // namespace cleat::virtio::split_ring_test
