// SPDX-License-Identifier: Apache-2.0
// Random chains against a reference model, in rings of any size: the bytes that the guest meant come out, in their
// order, and every chain comes back once, in whatever order the device gives them back.
#include <gtest/gtest.h>

#include <deque>
#include <utility>

#include "base/random.h"
#include "packed_guest_ring.h"
#include "virtio/packed_ring.h"

namespace cleat::virtio::packed_ring_random_test {
namespace {

struct Meant {
  uint16_t id = 0;
  std::vector<uint8_t*> readable;  // the address of each byte
  std::vector<uint8_t*> writable;
};

class RandomGuest {
 public:
  RandomGuest(uint64_t seed, uint16_t size)
      : random(seed), memory(GuestLayout::Regions(size)), ring(memory, size) {
    for (uint16_t id = 0; id < size; ++id) free_ids_.push_back(id);
  }

  // A random legal chain, if there is room for one.
  bool Offer() {
    Meant meant;
    const bool indirect = random.Chance(1, 2);
    const uint64_t parts = random.Between(1, indirect ? 12 : 5);
    if (ring.in_use() + (indirect ? 1 : parts) > ring.size()) return false;
    const size_t pick = random.Below(free_ids_.size());
    meant.id = free_ids_[pick];
    free_ids_.erase(free_ids_.begin() + static_cast<std::ptrdiff_t>(pick));
    const uint64_t readable_parts = random.Below(parts + 1);
    std::vector<Desc> descs;
    for (uint64_t i = 0; i < parts; ++i) descs.push_back(RandomBuffer(i >= readable_parts, meant));
    // Tables at odd addresses too, some across the regions' border.
    if (indirect) descs = {ring.Table(GuestLayout::kHigh - 1000 + meant.id * uint64_t{16 * 12 + 3}, descs)};
    ring.Offer(descs, meant.id);
    offered.push_back(std::move(meant));
    return true;
  }
  void Free(uint16_t id) { free_ids_.push_back(id); }

  Random random;
  GuestMemory memory;
  PackedGuestRing ring;
  std::deque<Meant> offered;  // not yet fetched, in order

 private:
  Desc RandomBuffer(bool writable, Meant& meant) {
    const uint64_t length = random.Between(1, 300);
    const uint64_t base = random.Chance(1, 3) ? GuestLayout::kHigh + 0x40000 : GuestLayout::kLow;
    const uint64_t address = base + random.Below(400);
    auto& bytes = writable ? meant.writable : meant.readable;
    for (uint64_t i = 0; i < length; ++i) bytes.push_back(memory.At(address + i));
    return {address, static_cast<uint32_t>(length), static_cast<uint16_t>(writable ? kDescWrite : 0), 0};
  }
  std::vector<uint16_t> free_ids_;
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
  const auto size = static_cast<uint16_t>(1 + seed % 37);
  RandomGuest guest(seed, size);
  const PackedIndex start{static_cast<uint16_t>(guest.random.Below(size)), true};
  guest.ring.StartAt(start);
  DirtyLog dirty_log;
  std::vector<uint64_t> log(PackedInflightLog::Bytes(size) / 8);
  PackedInflightLog inflight_log;
  const InflightMemory log_memory{reinterpret_cast<uint8_t*>(log.data()), log.size() * 8, nullptr};
  if (seed % 3 == 0) {
    ASSERT_TRUE(inflight_log.Attach(log_memory, guest.ring.memory(), {start, start}).ok());
  }
  PackedRing ring;
  const uint64_t features = uint64_t{1} << kFeatureIndirectDesc | (seed % 2) << kFeatureEventIdx;
  ring.Start(guest.ring.memory(), features, {start, start}, &dirty_log, &inflight_log);

  std::vector<uint16_t> in_flight;
  std::vector<uint16_t> fetched;  // in order
  std::deque<Used> expected;
  Chain chain;
  for (int step = 0; step < 600; ++step) {
    const uint64_t what = guest.random.Below(4);
    if (what == 0) {
      while (guest.random.Chance(3, 4) && guest.Offer()) {
      }
    } else if (what == 1) {
      ASSERT_EQ(ring.Available() > 0, !guest.offered.empty()) << ring.fault();
      for (uint64_t n = guest.random.Below(guest.offered.size() + 1); n > 0; --n) {
        uint16_t id = 0;
        ASSERT_TRUE(ring.TakeHead(id)) << ring.fault();
        inflight_log.Fetched(id, ring.taken());
        ASSERT_TRUE(ring.Read(id, *guest.memory.map(), chain)) << ring.fault();
        const Meant& meant = guest.offered.front();
        ASSERT_EQ(id, meant.id);
        ASSERT_EQ(Bytes(chain.readable()), meant.readable);
        ASSERT_EQ(Bytes(chain.writable()), meant.writable);
        in_flight.push_back(id);
        fetched.push_back(id);
        guest.offered.pop_front();
      }
    } else if (what == 2) {
      for (uint64_t n = guest.random.Below(in_flight.size() + 1); n > 0; --n) {
        const size_t pick = guest.random.Below(in_flight.size());
        const auto length = static_cast<uint32_t>(guest.random.Below(3) * 1000);
        ring.Push(in_flight[pick], length);
        expected.push_back({in_flight[pick], length});
        std::erase(fetched, in_flight[pick]);
        in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      if (ring.unpublished() > 0) ring.Publish();
      if (inflight_log.enabled()) {
        ASSERT_EQ(inflight_log.InFlight(), fetched);
      }
    } else {
      while (const auto used = guest.ring.TakeUsed()) {
        ASSERT_FALSE(expected.empty());
        ASSERT_EQ(*used, expected.front());
        guest.Free(static_cast<uint16_t>(used->id));  // only now may the guest use it again
        expected.pop_front();
      }
      ASSERT_TRUE(expected.empty());
    }
  }
  EXPECT_EQ(ring.fault(), "");
  if (!inflight_log.enabled()) return;
  // Whoever comes next finds the same.
  PackedInflightLog successor;
  const auto position = successor.Attach(log_memory, guest.ring.memory(), {});
  ASSERT_TRUE(position.ok()) << position.error().message;
  EXPECT_EQ(*position, ring.position());
  EXPECT_EQ(successor.InFlight(), fetched);
}

TEST(PackedRingRandomTest, AgreesWithTheModel) {
  for (uint64_t seed = 1; seed <= 120 && !::testing::Test::HasFatalFailure(); ++seed) RunSeed(seed);
}

}  // namespace
}  // namespace cleat::virtio::packed_ring_random_test
