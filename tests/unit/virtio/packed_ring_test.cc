// SPDX-License-Identifier: Apache-2.0
#include "virtio/packed_ring.h"

#include <gtest/gtest.h>

#include "packed_guest_ring.h"

namespace cleat::virtio::packed_ring_test {
namespace {

constexpr uint64_t kIndirect = uint64_t{1} << kFeatureIndirectDesc;
constexpr uint64_t kEventIdx = uint64_t{1} << kFeatureEventIdx;
constexpr uint64_t kLow = GuestLayout::kLow;
constexpr uint64_t kHigh = GuestLayout::kHigh;
constexpr uint32_t kEnable = uint32_t{kEventEnable} << 16;
constexpr uint32_t kDisable = uint32_t{kEventDisable} << 16;
constexpr uint32_t kDesc = uint32_t{kEventDesc} << 16;

class PackedRingTest : public ::testing::Test {
 protected:
  static constexpr uint16_t kSize = 7;  // no power of two
  void Start(uint64_t features = 0, PackedIndex at = {}) {
    guest.StartAt(at);
    ring.Start(guest.memory(), features, {at, at}, &dirty_log, &inflight_log);
  }
  // The next chain's buffer id; the ring must accept it.
  uint16_t TakeOne() {
    uint16_t id = 0xffff;
    EXPECT_GE(ring.Available(), 1U) << ring.fault();
    EXPECT_TRUE(ring.TakeHead(id)) << ring.fault();
    EXPECT_TRUE(ring.Read(id, *memory.map(), chain)) << ring.fault();
    return id;
  }
  bool PublishOne(uint16_t id, uint32_t written = 1) {
    ring.Push(id, written);
    return ring.Publish();
  }

  GuestMemory memory{GuestLayout::Regions(8)};
  PackedGuestRing guest{memory, kSize};
  DirtyLog dirty_log;
  PackedInflightLog inflight_log;
  PackedRing ring;
  Chain chain;
};

TEST_F(PackedRingTest, NothingAvailable) {
  for (const PackedIndex at : {PackedIndex{0, true}, PackedIndex{3, false}}) {
    Start(0, at);
    EXPECT_EQ(ring.Available(), 0U);
    uint16_t id = 0;
    EXPECT_FALSE(ring.TakeHead(id));
    EXPECT_EQ(ring.fault(), "");
  }
}

TEST_F(PackedRingTest, ChainOverTheRingsEnd) {
  Start(0, {5, true});
  guest.Offer(
      {{kLow, 16}, {kLow + 0x100, 512}, {kLow + 0x400, 100, kDescWrite}, {kLow + 0x500, 1, kDescWrite}}, 3);
  EXPECT_EQ(TakeOne(), 3);
  EXPECT_EQ(chain.head(), 3);
  EXPECT_EQ(chain.descriptors(), 4U);
  EXPECT_EQ(chain.readable_bytes(), 528U);
  EXPECT_EQ(chain.writable_bytes(), 101U);
  EXPECT_EQ(chain.readable()[1].data(), memory.At(kLow + 0x100));
  EXPECT_EQ(chain.writable()[1].data(), memory.At(kLow + 0x500));
  EXPECT_EQ(ring.Available(), 0U);
  EXPECT_EQ(ring.position(), (PackedPosition{{2, false}, {5, true}}));
  EXPECT_EQ(ring.taken().size(), 4U);
  PublishOne(3, 101);
  EXPECT_EQ(ring.position(), (PackedPosition{{2, false}, {2, false}}));
  EXPECT_EQ(guest.TakeAllUsed(), (std::vector<Used>{{3, 101}}));
}

TEST_F(PackedRingTest, TablesEntriesFollowEachOtherWhateverTheirFlagsSay) {
  Start(kIndirect);
  guest.Offer(
      {guest.Table(kHigh - 24, {{kLow, 16}, {kLow + 32, 8, kDescIndirect}, {kLow + 0x400, 9, kDescWrite}})},
      6);
  EXPECT_EQ(TakeOne(), 6);
  EXPECT_EQ(chain.readable_bytes(), 24U);
  EXPECT_EQ(chain.writable_bytes(), 9U);
}

TEST_F(PackedRingTest, UsedOutOfOrderWithTheSkipOfEachChain) {
  Start();
  guest.Offer({{kLow, 1}, {kLow, 1}, {kLow, 1}}, 4);
  guest.Offer({{kLow, 2}}, 0);
  guest.Offer({{kLow, 3}, {kLow, 3, kDescWrite}}, 6);
  for (const uint16_t id : {4, 0, 6}) EXPECT_EQ(TakeOne(), id);
  ring.Push(6, 3);
  ring.Push(4, 0);
  EXPECT_EQ(ring.unpublished(), 2U);
  EXPECT_TRUE(guest.TakeAllUsed().empty()) << "shown before Publish";
  ring.Publish();
  EXPECT_EQ(guest.TakeAllUsed(), (std::vector<Used>{{6, 3}, {4, 0}}));
  PublishOne(0, 0);
  EXPECT_EQ(guest.TakeAllUsed(), (std::vector<Used>{{0, 0}}));
  EXPECT_EQ(guest.in_use(), 0U);
  EXPECT_EQ(ring.position().used, ring.position().available);
}

// A guest that polls goes on with what was shown, perhaps more than once around the ring, before the one Publish at the
// batch's end tells who wants a call.
TEST_F(PackedRingTest, ShowingPartOfABatchLosesNoCall) {
  for (const bool wrap : {true, false}) {
    for (uint16_t wanted = 0; wanted < kSize; ++wanted) {
      for (const uint16_t chains : {3, 7, 9, 15}) {
        Start(kEventIdx);
        guest.Offer({{kLow, 1}}, 0);
        TakeOne();
        PublishOne(0);  // the first one always calls
        guest.TakeAllUsed();
        guest.SetDriverEvent(kDesc | PackedIndex{wanted, wrap}.word());
        // From {1, true}, where the ring stands; what lies behind it is reached after two rounds only.
        const uint32_t distance = wanted + (wrap ? 0U : kSize) - 1U;
        for (uint16_t i = 0; i < chains; ++i) {
          guest.Offer({{kLow, 1}}, 3);
          ASSERT_EQ(TakeOne(), 3);
          ring.Push(3, i);
          if (i + 1 < chains) ring.PublishUsed();
          ASSERT_EQ(guest.TakeAllUsed().size(), i + 1 < chains ? 1U : 0U);
        }
        EXPECT_EQ(ring.unpublished(), chains);
        const bool called = ring.Publish();
        EXPECT_EQ(guest.TakeAllUsed().size(), 1U);
        if (wrap && wanted < 1) continue;
        if (distance < chains || chains <= kSize) {
          EXPECT_EQ(called, distance < chains) << wanted << " " << wrap << " " << chains;
        }
      }
    }
  }
}

TEST_F(PackedRingTest, AFullRingAgainAndAgain) {
  Start();
  for (int round = 0; round < 20; ++round) {
    for (uint16_t id = 0; id < kSize; ++id) guest.Offer({{kLow, 1}}, id);
    for (uint16_t id = 0; id < kSize; ++id) ASSERT_EQ(TakeOne(), id);
    ASSERT_EQ(ring.Available(), 0U);
    for (uint16_t id = kSize; id > 0; --id) ring.Push(static_cast<uint16_t>(id - 1), 0);
    ring.Publish();
    ASSERT_EQ(guest.TakeAllUsed().size(), kSize);
  }
  EXPECT_EQ(ring.fault(), "");
}

TEST_F(PackedRingTest, PositionAsItIsTold) {
  EXPECT_EQ(kPackedStart, 0x80008000U);
  EXPECT_EQ(PackedPosition::FromWord(kPackedStart), PackedPosition());
  EXPECT_EQ(PackedPosition::FromWord(0x00038005U), (PackedPosition{{5, true}, {3, false}}));
  EXPECT_EQ((PackedPosition{{5, true}, {3, false}}.word()), 0x00038005U);
  EXPECT_EQ(PackedPosition::FromWord(0x8005U), (PackedPosition{{5, true}, {5, true}}))
      << "without the used half";
  EXPECT_EQ((PackedPosition{{5, true}, {3, true}}.InUse(7)), 2U);
  EXPECT_EQ((PackedPosition{{1, false}, {6, true}}.InUse(7)), 2U);
  EXPECT_EQ((PackedPosition{{3, false}, {3, true}}.InUse(7)), 7U);
  EXPECT_GT((PackedPosition{{3, true}, {5, true}}.InUse(7)), 7U);
  EXPECT_GT((PackedPosition{{5, false}, {3, true}}.InUse(7)), 7U);
  EXPECT_GT((PackedPosition{{7, true}, {7, true}}.InUse(7)), 7U);
}

// ---- Notifications

TEST_F(PackedRingTest, AsksForKicks) {
  Start();
  EXPECT_EQ(guest.device_event(), kDisable);
  ring.EnableNotifications();
  EXPECT_EQ(guest.device_event(), kEnable);
  ring.DisableNotifications();
  EXPECT_EQ(guest.device_event(), kDisable);
  Start(kEventIdx, {4, false});
  EXPECT_EQ(guest.device_event(), kDisable);
  ring.EnableNotifications();
  EXPECT_EQ(guest.device_event(), 4 | kDesc);
}

TEST_F(PackedRingTest, CallsWhenTheGuestWantsIt) {
  Start();
  const auto one = [&](uint32_t event) {
    guest.SetDriverEvent(event);
    guest.Offer({{kLow, 1}}, 1);
    TakeOne();
    const bool called = PublishOne(1);
    guest.TakeAllUsed();
    return called;
  };
  EXPECT_TRUE(one(kEnable));
  EXPECT_FALSE(one(kDisable));
  EXPECT_TRUE(one(kDesc)) << "not negotiated: as if enabled";
  EXPECT_TRUE(one(3U << 16)) << "reserved: as if enabled";
}

TEST_F(PackedRingTest, CallsAtTheDescriptorThatTheGuestNamed) {
  struct Case {
    PackedIndex start;
    uint16_t descriptors;
    PackedIndex wanted;
    bool called;
  };
  const std::vector<Case> cases = {
      {{0, true}, 2, {0, true}, true},   {{0, true}, 2, {1, true}, true},   {{0, true}, 2, {2, true}, false},
      {{2, true}, 2, {1, true}, false},  {{5, true}, 4, {6, true}, true},   {{5, true}, 4, {4, true}, false},
      {{5, true}, 4, {1, false}, true},  {{5, true}, 4, {2, false}, false}, {{5, false}, 2, {6, false}, true},
      {{5, false}, 2, {0, true}, false}, {{0, true}, 7, {3, true}, true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(std::to_string(c.start.word()) + " " + std::to_string(c.wanted.word()));
    // One chain before, since the first notification always goes out.
    const bool at_start = c.start.index == 0;
    const PackedIndex before{static_cast<uint16_t>((at_start ? kSize : c.start.index) - 1),
                             at_start != c.start.wrap};
    Start(kEventIdx, before);
    guest.SetDriverEvent(kDesc | before.word());
    guest.Offer({{kLow, 1}}, 0);
    TakeOne();
    EXPECT_TRUE(PublishOne(0));
    guest.TakeAllUsed();
    guest.SetDriverEvent(kDesc | c.wanted.word());
    guest.Offer(std::vector<Desc>(c.descriptors, {kLow, 1}), 2);
    EXPECT_EQ(TakeOne(), 2);
    EXPECT_EQ(PublishOne(2), c.called);
  }
}

TEST_F(PackedRingTest, WhatIsWrittenIsMarkedInTheDirtyLog) {
  std::vector<uint8_t> log(GuestLayout::kEnd >> 15);
  dirty_log.Attach({log.data(), log.size(), nullptr});
  const auto dirty = [&](uint64_t address) { return (log[address >> 15] >> (address >> 12 & 7) & 1) != 0; };
  Start();
  EXPECT_TRUE(dirty(GuestLayout::kUsed)) << "the event";
  EXPECT_TRUE(dirty(GuestLayout::kDescriptors)) << "what a predecessor has shown and did not live to mark";
  std::ranges::fill(log, uint8_t{0});
  guest.Offer({{kLow, 1}}, 1);
  TakeOne();
  EXPECT_FALSE(dirty(GuestLayout::kDescriptors));
  PublishOne(1);
  EXPECT_TRUE(dirty(GuestLayout::kDescriptors));
  EXPECT_FALSE(dirty(GuestLayout::kAvailable)) << "the guest's own";
}

// ---- What a hostile or broken guest can put there: each case is refused for its own reason

struct HostileCase {
  const char* name;
  std::function<void(PackedGuestRing& guest)> make;
  const char* reason;
  uint64_t features = kIndirect;
};

void PrintTo(const HostileCase& hostile, std::ostream* out) {
  *out << hostile.name;
}

constexpr uint64_t kTable = kLow + 0x4000;

std::vector<HostileCase> Cases() {
  const auto offer = [](std::vector<Desc> descs, uint16_t id = 0) {
    return [descs = std::move(descs), id](PackedGuestRing& g) { g.Offer(descs, id); };
  };
  return {
      {"GoesOnWithOneThatIsNotAvailable",
       [](PackedGuestRing& g) {
         g.Put(0, {kLow, 1}, 0);
         g.SetFlags(0, kDescNext | PackedAvailableBits(true));
       },
       "goes on with descriptor 1, which is not available"},
      {"GoesOnWithOneOfTheOtherRound",
       [](PackedGuestRing& g) {
         g.Offer({{kLow, 1}, {kLow, 1}}, 0);
         g.SetFlags(1, PackedAvailableBits(false));
       },
       "goes on with descriptor 1, which is not available"},
      {"LongerThanTheRing",
       [](PackedGuestRing& g) {
         for (uint16_t i = 0; i < 7; ++i) {
           g.Put(i, {kLow, 1}, 0);
           g.SetFlags(i, kDescNext | PackedAvailableBits(true));
         }
       },
       "goes on with descriptor 0, which is not available"},
      {"IdOutOfRange", offer({{kLow, 1}}, 7), "buffer id 7 in a ring of 7"},
      {"IdFarOut", offer({{kLow, 1}}, 0xffff), "buffer id 65535"},
      {"IdInUse",
       [](PackedGuestRing& g) {
         g.Offer({{kLow, 1}}, 5);
         g.Offer({{kLow, 1}}, 5);
       },
       "buffer id 5 is in use already"},
      {"IndirectWithNext", offer({{kTable, 16, kDescIndirect}, {kLow, 1}}), "in a chain of several"},
      {"IndirectBehindDirect", offer({{kLow, 1}, {kTable, 16, kDescIndirect}}), "in a chain of several"},
      {"IndirectNotNegotiated", offer({{kTable, 16, kDescIndirect}}), "not negotiated", 0},
      {"TableOfNothing", offer({{kTable, 0, kDescIndirect}}), "not a multiple of 16"},
      {"TableOfOddLength", offer({{kTable, 24, kDescIndirect}}), "not a multiple of 16"},
      {"TableOutside", offer({{GuestLayout::kEnd, 16, kDescIndirect}}), "is not in guest memory"},
      {"TableWrapsAround", offer({{~uint64_t{0} - 15, 32, kDescIndirect}}), "is not in guest memory"},
      {"TableTooLong",
       [](PackedGuestRing& g) {
         g.Offer({g.Table(kTable, std::vector<Desc>(300, {kLow, 1}))}, 0);
       },
       "chain is longer than 256 descriptors"},
      {"TableOfAlmost4GiB", offer({{kTable, 0xfffffff0, kDescIndirect}}), "is not in guest memory"},
      {"BufferOutside", offer({{GuestLayout::kEnd - 8, 16}}), "is not in guest memory"},
      {"BufferWrapsAround", offer({{~uint64_t{0} - 7, 16}}), "wraps around"},
      {"NoLength", offer({{kLow, 0}}), "length 0"},
      {"ReadableBehindWritable", offer({{kLow, 1, kDescWrite}, {kLow, 1}}),
       "readable descriptor after a writable"},
  };
}

class PackedRingHostileTest : public PackedRingTest, public ::testing::WithParamInterface<HostileCase> {};

TEST_P(PackedRingHostileTest, IsRefused) {
  Start(GetParam().features);
  GetParam().make(guest);
  for (uint32_t left = kSize; left > 0 && ring.Available() > 0; --left) {
    uint16_t id = 0;
    if (!ring.TakeHead(id) || !ring.Read(id, *memory.map(), chain)) break;
  }
  EXPECT_NE(ring.fault().find(GetParam().reason), std::string::npos) << ring.fault();
}
INSTANTIATE_TEST_SUITE_P(All, PackedRingHostileTest, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_F(PackedRingTest, MoreThanTheRingHoldsIsRefused) {
  Start();
  for (uint16_t id = 0; id < kSize; ++id) guest.Offer({{kLow, 1}}, id);
  for (uint16_t id = 0; id < kSize; ++id) TakeOne();
  guest.SetFlags(0, PackedAvailableBits(false));  // of the next round, with none given back
  EXPECT_EQ(ring.Available(), 0U);
  EXPECT_NE(ring.fault().find("with all 7 of the ring in use"), std::string::npos) << ring.fault();
}

TEST_F(PackedRingTest, ChainLongerThanTheFreeDescriptorsIsRefused) {
  Start();
  guest.Offer({{kLow, 1}, {kLow, 1}, {kLow, 1}}, 0);
  TakeOne();
  guest.Offer({{kLow, 1}, {kLow, 1}, {kLow, 1}, {kLow, 1}, {kLow, 1}}, 1);
  uint16_t id = 0;
  EXPECT_EQ(ring.Available(), 4U);
  EXPECT_FALSE(ring.TakeHead(id));
  EXPECT_NE(ring.fault().find("longer than the ring's 4 free descriptors"), std::string::npos)
      << ring.fault();
}

}  // namespace
}  // namespace cleat::virtio::packed_ring_test
