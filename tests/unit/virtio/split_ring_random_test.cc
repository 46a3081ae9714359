// SPDX-License-Identifier: Apache-2.0
// Random chains against a reference model: the model knows which bytes the guest meant, in which order, and
// the ring has to find the same ones, however they were cut into descriptors, tables and regions.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "base/random.h"
#include "guest_ring.h"
#include "virtio/split_ring.h"

namespace cleat::virtio::split_ring_random_test {
namespace {

constexpr uint64_t kLow = GuestLayout::kLow;

struct Meant {
  uint16_t head = 0;
  std::vector<uint8_t*> readable;  // the address of each byte
  std::vector<uint8_t*> writable;
  std::vector<uint16_t> descriptors;  // of the ring, to be freed
  uint64_t table = 0;                 // slot of the indirect table
};

class RandomGuest {
 public:
  RandomGuest(uint64_t seed, uint16_t size)
      : random_(seed), memory_(GuestLayout::Regions(size)), guest_(GuestLayout::Ring(memory_, size)) {
    for (uint16_t i = 0; i < size; ++i) free_.push_back(i);
    for (uint64_t slot = 0; slot < size; ++slot) tables_.push_back(kTables + slot * kTableBytes);
  }

  // A random legal chain, if there is room for one.
  bool Offer() {
    Meant meant;
    const bool indirect = random_.Chance(1, 2);
    const uint64_t direct_parts = indirect ? random_.Below(3) : random_.Between(1, 6);
    if (free_.size() < direct_parts + (indirect ? 1 : 0)) return false;
    const uint64_t parts = direct_parts + (indirect ? random_.Between(1, kTableEntries) : 0);
    const uint64_t readable_parts = random_.Below(parts + 1);
    std::vector<Desc> descs;
    for (uint64_t i = 0; i < parts; ++i) descs.push_back(RandomBuffer(i >= readable_parts, meant));

    std::vector<Desc> inner(descs.begin() + static_cast<std::ptrdiff_t>(direct_parts), descs.end());
    descs.resize(direct_parts);
    if (indirect) descs.push_back(MakeTable(inner, meant));
    // Ring descriptors in any order, not one after the other.
    for (size_t i = 0; i < descs.size(); ++i) {
      const size_t pick = random_.Below(free_.size());
      meant.descriptors.push_back(free_[pick]);
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    for (size_t i = 0; i < descs.size(); ++i) {
      if (i + 1 < descs.size()) {
        descs[i].flags |= kDescNext;
        descs[i].next = meant.descriptors[i + 1];
      }
      guest_.SetDescriptor(meant.descriptors[i], descs[i]);
    }
    meant.head = meant.descriptors.front();
    guest_.Offer(meant.head);
    offered.push_back(std::move(meant));
    return true;
  }

  void Free(const Meant& meant) {
    free_.insert(free_.end(), meant.descriptors.begin(), meant.descriptors.end());
    if (meant.table != 0) tables_.push_back(meant.table);
  }

  GuestRing& ring() { return guest_; }
  GuestMemory& memory() { return memory_; }
  Random& random() { return random_; }
  std::deque<Meant> offered;  // not yet fetched, in order

 private:
  static constexpr uint64_t kTableEntries = 12;
  static constexpr uint64_t kTableBytes = 16 * 30 + 3;            // odd addresses too
  static constexpr uint64_t kTables = GuestLayout::kHigh - 1000;  // some cross the regions' border

  Desc RandomBuffer(bool writable, Meant& meant) {
    // Buffers of one to a few hundred bytes, often around the border of the two regions.
    const uint64_t length = random_.Between(1, 300);
    const uint64_t base = random_.Chance(1, 3) ? GuestLayout::kHigh - 300 : kLow;
    const uint64_t address = base + random_.Below(400);
    auto& bytes = writable ? meant.writable : meant.readable;
    for (uint64_t i = 0; i < length; ++i) bytes.push_back(memory_.At(address + i));
    return {address, static_cast<uint32_t>(length), static_cast<uint16_t>(writable ? kDescWrite : 0), 0};
  }
  Desc MakeTable(std::vector<Desc> inner, Meant& meant) {
    meant.table = tables_.front();
    tables_.pop_front();
    // The entries lie scattered in the table; the first is always entry 0.
    const uint64_t entries = inner.size() + random_.Below(10);
    std::vector<uint16_t> places;
    for (uint64_t i = 1; i < entries; ++i) places.push_back(static_cast<uint16_t>(i));
    for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random_.Below(i)]);
    places.insert(places.begin(), 0);
    for (size_t i = 0; i < inner.size(); ++i) {
      if (i + 1 < inner.size()) {
        inner[i].flags |= kDescNext;
        inner[i].next = places[i + 1];
      }
      guest_.SetIndirect(meant.table, places[i], inner[i]);
    }
    return {meant.table, static_cast<uint32_t>(16 * entries), kDescIndirect, 0};
  }

  Random random_;
  GuestMemory memory_;
  GuestRing guest_;
  std::vector<uint16_t> free_;
  std::deque<uint64_t> tables_;
};

std::vector<uint8_t*> Bytes(std::span<const block::Segment> segments) {
  std::vector<uint8_t*> bytes;
  for (const block::Segment& segment : segments) {
    for (uint32_t i = 0; i < segment.length_bytes; ++i) bytes.push_back(segment.data() + i);
  }
  return bytes;
}

void RunSeed(uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto size = static_cast<uint16_t>(1U << (seed % 7));
  RandomGuest guest(seed, size);
  DirtyLog dirty_log;
  SplitRing ring;
  const auto start = static_cast<uint16_t>(65536 - guest.random().Below(200));
  guest.ring().StartAt(start);
  const uint64_t features = uint64_t{1} << kFeatureIndirectDesc | (seed % 2) << kFeatureEventIdx;
  ring.Start(guest.ring().memory(), features, start, &dirty_log);

  std::vector<Meant> in_flight;
  std::deque<std::pair<Used, Meant>> expected;
  Chain chain;
  for (int step = 0; step < 600; ++step) {
    const uint64_t what = guest.random().Below(4);
    if (what == 0) {
      while (guest.random().Chance(3, 4) && guest.Offer()) {
      }
    } else if (what == 1) {
      ASSERT_EQ(ring.Available(), guest.offered.size()) << ring.fault();
      for (uint64_t n = guest.random().Below(guest.offered.size() + 1); n > 0; --n) {
        uint16_t head = 0;
        ASSERT_TRUE(ring.TakeHead(head));
        ASSERT_TRUE(ring.Read(head, *guest.memory().map(), chain)) << ring.fault();
        const Meant& meant = guest.offered.front();
        ASSERT_EQ(head, meant.head);
        ASSERT_EQ(Bytes(chain.readable()), meant.readable);
        ASSERT_EQ(Bytes(chain.writable()), meant.writable);
        ASSERT_EQ(chain.readable_bytes(), meant.readable.size());
        ASSERT_EQ(chain.writable_bytes(), meant.writable.size());
        in_flight.push_back(meant);
        guest.offered.pop_front();
      }
    } else if (what == 2) {
      for (uint64_t n = guest.random().Below(in_flight.size() + 1); n > 0; --n) {
        const size_t pick = guest.random().Below(in_flight.size());
        const auto length = static_cast<uint32_t>(guest.random().Next());
        ring.Push(in_flight[pick].head, length);
        expected.push_back({{in_flight[pick].head, length}, in_flight[pick]});
        in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      if (ring.unpublished() > 0) ring.Publish();
    } else {
      while (const auto used = guest.ring().TakeUsed()) {
        ASSERT_FALSE(expected.empty());
        ASSERT_EQ(*used, expected.front().first);
        guest.Free(expected.front().second);  // only now may the guest use its descriptors again
        expected.pop_front();
      }
      ASSERT_TRUE(expected.empty());
    }
  }
  EXPECT_EQ(ring.fault(), "");
}

TEST(SplitRingRandomTest, AgreesWithTheModel) {
  for (uint64_t seed = 1; seed <= 60 && !::testing::Test::HasFatalFailure(); ++seed) RunSeed(seed);
}

}  // namespace
}  // namespace cleat::virtio::split_ring_random_test
