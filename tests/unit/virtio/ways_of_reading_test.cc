// SPDX-License-Identifier: Apache-2.0
// Each ring has two ways to read a chain, a short one for what is usual and one that checks everything one by one: what
// the first one takes the other has to take as well, and to the same chain. Descriptors from a seed, sound and not.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <span>
#include <vector>

#include "base/random.h"
#include "packed_guest_ring.h"
#include "virtio/packed_ring.h"
#include "virtio/split_ring.h"

namespace cleat::virtio {

struct WaysOfReading {
  static bool Usual(SplitRing& ring, uint16_t head, const block::MemoryMap& map, Chain& chain) {
    return ring.ReadUsual(head, map, chain);
  }
  static bool Any(SplitRing& ring, uint16_t head, const block::MemoryMap& map, Chain& chain) {
    return ring.ReadAny(head, map, chain);
  }
  static bool Usual(PackedRing& ring, uint16_t id, const block::MemoryMap& map, Chain& chain) {
    return ring.ReadUsual(id, map, chain);
  }
  static bool Any(PackedRing& ring, uint16_t id, const block::MemoryMap& map, Chain& chain) {
    return ring.ReadAny(id, map, chain);
  }
};

namespace ways_of_reading_test {
namespace {

constexpr uint16_t kSize = 8;
constexpr uint64_t kTables = GuestLayout::kLow + 0x1000;
constexpr uint64_t kTableBytes = 300 * kDescriptorBytes;
constexpr uint64_t kHuge = uint64_t{1} << 40;  // a region larger than a segment, and than a chain, may be
constexpr uint64_t kHugeBytes = uint64_t{6} << 30;

class WaysOfReadingTest : public ::testing::Test {
 protected:
  WaysOfReadingTest() {
    huge_ = mmap(nullptr, kHugeBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CLEAT_CHECK(huge_ != MAP_FAILED);
    const auto known = memory.map()->entries();
    std::vector<block::MemoryMap::Entry> entries(known.begin(), known.end());
    entries.push_back({kHuge, block::MemoryRegion::Borrow(huge_, kHugeBytes)});
    map = *block::MemoryMap::Make(std::move(entries));
  }
  ~WaysOfReadingTest() override { munmap(huge_, kHugeBytes); }

  // Nearly always sound by itself, so that whole chains are now and then. `writable`: whether the last one was.
  Desc Buffer(bool& writable) {
    Desc desc;
    desc.address = GuestLayout::kLow + random.Below(4096);
    desc.length = static_cast<uint32_t>(random.Between(1, 300));
    switch (random.Below(40)) {
      case 0:
        desc.length = 0;
        break;
      case 1:
        desc.address = GuestLayout::kHigh - random.Below(300);  // perhaps in both regions
        break;
      case 2:
        desc.address = random.Next();
        break;
      case 3:
      case 4:
        desc.address = kHuge;
        desc.length =
            static_cast<uint32_t>(random.Chance(1, 2) ? 0x80000000 - 1 + random.Below(3) : random.Next());
        break;
      case 5:
        writable = false;
        break;
      default:
        break;
    }
    writable |= random.Chance(1, 4);
    if (writable) desc.flags |= kDescWrite;
    return desc;
  }
  void Compare(bool usual, bool any, const Chain& chain, const Chain& other) {
    ++(usual ? taken_by_both : any ? taken_by_one : refused);
    if (!usual) return;
    ASSERT_TRUE(any);
    ASSERT_EQ(chain.head(), other.head());
    ASSERT_EQ(chain.descriptors(), other.descriptors());
    ASSERT_EQ(chain.readable_bytes(), other.readable_bytes());
    ASSERT_EQ(chain.writable_bytes(), other.writable_bytes());
    Same(chain.readable(), other.readable());
    Same(chain.writable(), other.writable());
  }
  static void Same(std::span<const block::Segment> some, std::span<const block::Segment> others) {
    ASSERT_EQ(some.size(), others.size());
    for (size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i].region, others[i].region);
      ASSERT_EQ(some[i].offset_bytes, others[i].offset_bytes);
      ASSERT_EQ(some[i].length_bytes, others[i].length_bytes);
    }
  }
  void TearDown() override {
    EXPECT_GT(taken_by_both, 1000U);
    EXPECT_GT(taken_by_one, 50U);
    EXPECT_GT(refused, 1000U);
  }

  Random random{1};
  GuestMemory memory{GuestLayout::Regions(kSize)};
  std::shared_ptr<const block::MemoryMap> map;
  DirtyLog dirty_log;
  Chain first, second;
  uint32_t taken_by_both = 0;
  uint32_t taken_by_one = 0;
  uint32_t refused = 0;

 private:
  void* huge_ = nullptr;
};

TEST_F(WaysOfReadingTest, SplitAgree) {
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  for (uint32_t round = 0; round < 20000 && !HasFatalFailure(); ++round) {
    const uint64_t table = kTables + (random.Chance(1, 2) ? random.Below(16) : 0);
    const auto fill = [&](uint64_t entries, const auto& put) {
      bool writable = false;
      for (uint64_t i = 0; i < entries; ++i) {
        Desc desc = Buffer(writable);
        if (random.Chance(3, 4)) desc.flags |= kDescNext;
        desc.next = static_cast<uint16_t>(random.Chance(1, 30) ? random.Below(entries + 2) : i + 1);
        put(static_cast<uint16_t>(i), desc);
      }
    };
    const uint64_t entries = random.Chance(1, 50) ? random.Between(250, 300) : random.Between(1, 12);
    fill(entries, [&](uint16_t i, Desc desc) {
      if (entries > 20) desc.flags |= kDescNext;
      if (random.Chance(1, 200)) desc.flags |= kDescIndirect;
      if (i + 1U == entries && random.Chance(9, 10)) desc.flags &= ~kDescNext;
      guest.SetIndirect(table, i, desc);
    });
    fill(kSize, [&](uint16_t i, Desc desc) {
      if (random.Chance(1, 3)) {
        const auto odd = static_cast<uint32_t>(random.Chance(1, 30) ? random.Below(16) : 0);
        desc = {table, static_cast<uint32_t>(kDescriptorBytes * entries) + odd, kDescIndirect, 0};
        if (random.Chance(1, 30)) desc.flags |= kDescNext;
      }
      guest.SetDescriptor(i, desc);
    });
    SplitRing ring;
    const uint64_t indirect = random.Chance(9, 10) ? uint64_t{1} << kFeatureIndirectDesc : 0;
    ring.Start(guest.memory(), indirect, 0, &dirty_log);
    const auto head = static_cast<uint16_t>(random.Below(kSize));
    const bool usual = WaysOfReading::Usual(ring, head, *map, first);
    const bool any = WaysOfReading::Any(ring, head, *map, second);
    Compare(usual, any, first, second);
  }
}

TEST_F(WaysOfReadingTest, PackedAgree) {
  for (uint32_t round = 0; round < 20000 && !HasFatalFailure(); ++round) {
    PackedGuestRing guest(memory, kSize);
    guest.StartAt({});
    bool writable = false;
    std::vector<Desc> descs;
    for (uint64_t n = random.Between(1, 5); n > 0; --n) descs.push_back(Buffer(writable));
    if (random.Chance(1, 2)) {
      const uint64_t table = kTables + (random.Chance(1, 2) ? random.Below(16) : 0);
      const uint64_t entries = random.Chance(1, 50) ? random.Between(250, 300) : random.Between(1, 12);
      writable = false;
      for (uint64_t i = 0; i < entries; ++i) {
        const Desc desc = Buffer(writable);
        guest.PutAt(table + kDescriptorBytes * i, desc, static_cast<uint16_t>(random.Next()),
                    static_cast<uint16_t>((random.Next() & ~uint64_t{kDescWrite}) | desc.flags));
      }
      const auto odd = static_cast<uint32_t>(random.Chance(1, 30) ? random.Below(16) : 0);
      const Desc refers{table, static_cast<uint32_t>(kDescriptorBytes * entries) + odd, kDescIndirect, 0};
      if (random.Chance(9, 10)) {
        descs = {refers};
      } else {
        descs[random.Below(descs.size())] = refers;
      }
    }
    const auto id = static_cast<uint16_t>(random.Below(kSize));
    guest.Offer(descs, id);
    PackedRing ring;
    PackedInflightLog no_log;
    const uint64_t indirect = random.Chance(9, 10) ? uint64_t{1} << kFeatureIndirectDesc : 0;
    ring.Start(guest.memory(), indirect, {}, &dirty_log, &no_log);
    uint16_t taken = 0;
    ASSERT_TRUE(ring.TakeHead(taken)) << ring.fault();
    ASSERT_EQ(taken, id);
    const bool usual = WaysOfReading::Usual(ring, id, *map, first);
    const bool any = WaysOfReading::Any(ring, id, *map, second);
    Compare(usual, any, first, second);
  }
}

static_assert(kTables + kTableBytes + 16 <= GuestLayout::kHigh);

}  // namespace
}  // namespace ways_of_reading_test
}  // namespace cleat::virtio
