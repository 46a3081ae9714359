// SPDX-License-Identifier: Apache-2.0
// What a hostile or broken guest can put on a ring: each case is refused for its own reason, and nothing
// outside is touched (the regions are heap blocks of exact size: AddressSanitizer watches).
#include <gtest/gtest.h>

#include <functional>

#include "guest_ring.h"
#include "virtio/split_ring.h"

namespace cleat::virtio::split_ring_hostile_test {
namespace {

constexpr uint64_t kIndirect = uint64_t{1} << kFeatureIndirectDesc;
constexpr uint64_t kLow = GuestLayout::kLow;
constexpr uint64_t kTable = kLow + 0x4000;
constexpr uint16_t kSize = 8;

struct HostileCase {
  const char* name;
  std::function<void(GuestRing& guest)> make;  // offers what is wrong
  const char* reason;                          // a part of it
  uint64_t features = kIndirect;
};

std::vector<HostileCase> Cases() {
  return {
      {"LoopOfTwo",
       [](GuestRing& g) {
         g.SetDescriptor(0, {kLow, 16, kDescNext, 1});
         g.SetDescriptor(1, {kLow, 16, kDescNext, 0});
         g.Offer(0);
       },
       "loops in a table of 8"},
      {"LoopOfOne",
       [](GuestRing& g) {
         g.SetDescriptor(3, {kLow, 16, kDescNext, 3});
         g.Offer(3);
       },
       "loops in a table of 8"},
      {"LoopInIndirectTable",
       [](GuestRing& g) {
         g.SetIndirect(kTable, 0, {kLow, 16, kDescNext, 1});
         g.SetIndirect(kTable, 1, {kLow, 16, kDescNext, 0});
         g.SetDescriptor(0, {kTable, 32, kDescIndirect, 0});
         g.Offer(0);
       },
       "loops in a table of 2"},
      {"NextOutOfRange",
       [](GuestRing& g) {
         g.SetDescriptor(0, {kLow, 16, kDescNext, kSize});
         g.Offer(0);
       },
       "next is 8 in a table of 8"},
      {"NextOutOfIndirectTable",
       [](GuestRing& g) {
         g.SetIndirect(kTable, 0, {kLow, 16, kDescNext, 2});
         g.SetDescriptor(0, {kTable, 32, kDescIndirect, 0});
         g.Offer(0);
       },
       "next is 2 in a table of 2"},
      {"HeadOutOfRange", [](GuestRing& g) { g.Offer(kSize); }, "names descriptor 8, the queue has 8"},
      {"HeadFarOutOfRange", [](GuestRing& g) { g.Offer(65535); }, "names descriptor 65535"},
      {"AvailableIndexJumps", [](GuestRing& g) { g.SetAvailableIndex(kSize + 1); },
       "available index 9 is 9 ahead"},
      {"AvailableIndexGoesBack", [](GuestRing& g) { g.SetAvailableIndex(65535); }, "available index 65535"},
      {"IndirectNotNegotiated",
       [](GuestRing& g) {
         g.SetIndirectChain(0, kTable, {{kLow, 16}});
         g.Offer(0);
       },
       "not negotiated", 0},
      {"IndirectInIndirect",
       [](GuestRing& g) {
         g.SetIndirect(kTable, 0, {kTable + 64, 16, kDescIndirect, 0});
         g.SetDescriptor(0, {kTable, 16, kDescIndirect, 0});
         g.Offer(0);
       },
       "inside an indirect table"},
      {"IndirectWithNext",
       [](GuestRing& g) {
         g.SetDescriptor(0, {kTable, 16, kDescIndirect | kDescNext, 1});
         g.Offer(0);
       },
       "with the next flag"},
      {"IndirectLengthZero",
       [](GuestRing& g) {
         g.SetDescriptor(0, {kTable, 0, kDescIndirect, 0});
         g.Offer(0);
       },
       "0 bytes is not a multiple of 16"},
      {"IndirectLengthOdd",
       [](GuestRing& g) {
         g.SetDescriptor(0, {kTable, 40, kDescIndirect, 0});
         g.Offer(0);
       },
       "40 bytes is not a multiple of 16"},
      {"IndirectTableNotMapped",
       [](GuestRing& g) {
         g.SetDescriptor(0, {0x5000, 32, kDescIndirect, 0});
         g.Offer(0);
       },
       "indirect table at 0x5000 of 32 bytes is not in guest memory"},
      {"IndirectTableEndsOutside",
       [](GuestRing& g) {
         g.SetDescriptor(0, {GuestLayout::kEnd - 16, 32, kDescIndirect, 0});
         g.Offer(0);
       },
       "is not in guest memory"},
      {"IndirectTableOfFourGiB",
       [](GuestRing& g) {
         g.SetDescriptor(0, {kTable, 0xfffffff0, kDescIndirect, 0});
         g.Offer(0);
       },
       "is not in guest memory"},
      {"IndirectTableWraps",
       [](GuestRing& g) {
         g.SetDescriptor(0, {UINT64_MAX - 15, 32, kDescIndirect, 0});
         g.Offer(0);
       },
       "is not in guest memory"},
      {"LengthZero",
       [](GuestRing& g) {
         g.SetChain(0, {{kLow, 0}});
         g.Offer(0);
       },
       "descriptor of length 0"},
      {"ReadableAfterWritable",
       [](GuestRing& g) {
         g.SetChain(0, {{kLow, 16}, {kLow, 16, kDescWrite}, {kLow, 16}});
         g.Offer(0);
       },
       "readable descriptor after a writable one"},
      {"BufferNotMapped",
       [](GuestRing& g) {
         g.SetChain(1, {{0, 16}});
         g.Offer(1);
       },
       "buffer at 0x0 of 16 bytes is not in guest memory (chain of descriptor 1, available entry 0)"},
      {"BufferEndsOutside",
       [](GuestRing& g) {
         g.SetChain(0, {{GuestLayout::kEnd - 16, 17}});
         g.Offer(0);
       },
       "of 17 bytes is not in guest memory"},
      {"BufferWraps",
       [](GuestRing& g) {
         g.SetChain(0, {{UINT64_MAX - 7, 16}});
         g.Offer(0);
       },
       "wraps around"},
      {"BufferOfAllLengthsMax",
       [](GuestRing& g) {
         g.SetChain(0, {{kLow, UINT32_MAX}});
         g.Offer(0);
       },
       "is not in guest memory"},
      {"TooManyDescriptors",
       [](GuestRing& g) {
         g.SetIndirectChain(0, kTable, std::vector<Desc>(kChainDescriptorsMax, Desc{kLow, 1}));
         g.Offer(0);
       },
       "longer than 256 descriptors"},
  };
}

class SplitRingHostileTest : public ::testing::TestWithParam<HostileCase> {};

TEST_P(SplitRingHostileTest, IsRefused) {
  GuestMemory memory(GuestLayout::Regions(kSize));
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  DirtyLog dirty_log;
  SplitRing ring;
  ring.Start(guest.memory(), GetParam().features, 0, &dirty_log);
  GetParam().make(guest);
  Chain chain;
  uint16_t head = 0;
  const bool accepted = ring.Available() > 0 && ring.TakeHead(head) && ring.Read(head, *memory.map(), chain);
  EXPECT_FALSE(accepted);
  EXPECT_NE(ring.fault().find(GetParam().reason), std::string::npos) << ring.fault();
  EXPECT_EQ(guest.used_index(), 0);
}

INSTANTIATE_TEST_SUITE_P(All, SplitRingHostileTest, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return std::string(param.param.name); });

// The guest offers more than the queue holds, although each step is small.
TEST(SplitRingLimitTest, NoMoreInUseThanEntries) {
  GuestMemory memory(GuestLayout::Regions(kSize));
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  DirtyLog dirty_log;
  SplitRing ring;
  ring.Start(guest.memory(), 0, 0, &dirty_log);
  for (uint16_t i = 0; i < kSize; ++i) {
    guest.Offer(0);
    ASSERT_EQ(ring.Available(), 1U);
    uint16_t head = 0;
    ASSERT_TRUE(ring.TakeHead(head));
  }
  guest.Offer(0);
  EXPECT_EQ(ring.Available(), 0U);
  EXPECT_NE(ring.fault().find("with 8 of the queue's 8 entries in use"), std::string::npos) << ring.fault();
}

TEST(SplitRingLimitTest, TotalOfMoreThanFourGiB) {
  // One byte of memory is enough for the claim: a region may be as large as it likes when nobody touches it.
  uint8_t byte = 0;
  GuestMemory memory(GuestLayout::Regions(kSize));
  const auto entries = memory.map()->entries();
  std::vector<block::MemoryMap::Entry> more(entries.begin(), entries.end());
  more.push_back({uint64_t{1} << 40, block::MemoryRegion::Borrow(&byte, uint64_t{1} << 34)});
  const auto map = *block::MemoryMap::Make(more);
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  DirtyLog dirty_log;
  SplitRing ring;
  ring.Start(guest.memory(), 0, 0, &dirty_log);
  const auto take = [&](std::vector<Desc> descs) {
    guest.SetChain(0, std::move(descs));
    guest.Offer(0);
    uint16_t head = 0;
    Chain chain;
    return ring.Available() > 0 && ring.TakeHead(head) && ring.Read(head, *map, chain);
  };
  EXPECT_TRUE(take({{uint64_t{1} << 40, 0x80000000}, {uint64_t{1} << 40, 0x80000000}}));
  EXPECT_FALSE(take({{uint64_t{1} << 40, 0x80000000}, {uint64_t{1} << 40, 0x80000000}, {kLow, 1}}));
  EXPECT_NE(ring.fault().find("longer than 4 GiB"), std::string::npos) << ring.fault();
}

TEST(SplitRingLimitTest, TooManyPiecesOfMemory) {
  // Regions of one byte each: a buffer over all of them has as many pieces.
  constexpr uint64_t kBase = uint64_t{1} << 40;
  constexpr uint32_t kPieces = 50;
  uint8_t bytes[kPieces];
  GuestMemory memory(GuestLayout::Regions(kSize));
  const auto entries = memory.map()->entries();
  std::vector<block::MemoryMap::Entry> more(entries.begin(), entries.end());
  for (uint32_t i = 0; i < kPieces; ++i)
    more.push_back({kBase + i, block::MemoryRegion::Borrow(&bytes[i], 1)});
  const auto map = *block::MemoryMap::Make(more);
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  DirtyLog dirty_log;
  SplitRing ring;
  ring.Start(guest.memory(), kIndirect, 0, &dirty_log);
  const auto take = [&](size_t descriptors) {
    guest.SetIndirectChain(0, kTable, std::vector<Desc>(descriptors, Desc{kBase, kPieces}));
    guest.Offer(0);
    uint16_t head = 0;
    Chain chain;
    return ring.Available() > 0 && ring.TakeHead(head) && ring.Read(head, *map, chain);
  };
  EXPECT_TRUE(take(kChainSegmentsMax / kPieces));
  EXPECT_FALSE(take(kChainSegmentsMax / kPieces + 1));
  EXPECT_NE(ring.fault().find("pieces of memory"), std::string::npos) << ring.fault();
}

}  // namespace
}  // namespace cleat::virtio::split_ring_hostile_test
