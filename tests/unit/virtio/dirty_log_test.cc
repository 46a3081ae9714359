// SPDX-License-Identifier: Apache-2.0
#include "virtio/dirty_log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "guest_ring.h"
#include "virtio/split_ring.h"

namespace cleat::virtio::dirty_log_test {
namespace {

constexpr uint64_t kPage = 4096;

std::vector<uint64_t> Pages(const std::vector<uint8_t>& log) {
  std::vector<uint64_t> pages;
  for (uint64_t page = 0; page < 8 * log.size(); ++page) {
    if ((log[page / 8] >> (page % 8) & 1) != 0) pages.push_back(page);
  }
  return pages;
}

TEST(DirtyLogTest, MarksEveryPageOfTheRange) {
  struct Case {
    uint64_t address, length;
    std::vector<uint64_t> pages;
  };
  const Case cases[] = {
      {0, 1, {0}},
      {kPage - 1, 1, {0}},
      {kPage - 1, 2, {0, 1}},
      {kPage, kPage, {1}},
      {7 * kPage + 5, 2 * kPage, {7, 8, 9}},
      {3 * kPage, 0, {}},
      {6 * kPage, 20 * kPage, {6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25}},
      {31 * kPage, kPage, {31}},
  };
  for (const Case& test : cases) {
    std::vector<uint8_t> bits(4);
    DirtyLog log;
    log.Attach({bits.data(), bits.size(), nullptr});
    log.Mark(test.address, test.length);
    EXPECT_EQ(Pages(bits), test.pages) << test.address;
    EXPECT_FALSE(log.overrun());
  }
}

TEST(DirtyLogTest, NoLogNoWork) {
  DirtyLog log;
  log.Mark(0, 4096);
  EXPECT_FALSE(log.enabled());
  EXPECT_FALSE(log.overrun());
}

TEST(DirtyLogTest, PagesBehindItsEndAreReportedAndNotWritten) {
  std::vector<uint8_t> bits(4);
  DirtyLog log;
  log.Attach({bits.data(), 3, nullptr});
  log.Mark(23 * kPage, 3 * kPage);
  EXPECT_EQ(Pages(bits), std::vector<uint64_t>{23});
  EXPECT_TRUE(log.overrun());
  EXPECT_EQ(log.overrun_address(), 24 * kPage);
  log.Mark(UINT64_MAX - 10, 11);
  EXPECT_EQ(Pages(bits), std::vector<uint64_t>{23});
}

TEST(DirtyLogTest, SegmentsAreMarkedWhereTheGuestSeesThem) {
  GuestMemory memory({{16 * kPage, 4 * kPage}, {64 * kPage, 4 * kPage}});
  std::vector<uint8_t> bits(16);
  DirtyLog log;
  log.Attach({bits.data(), bits.size(), nullptr});
  const block::Segment segments[] = {memory.map()->Translate(17 * kPage + 10, 100),
                                     memory.map()->Translate(65 * kPage - 1, 2)};
  log.Mark(*memory.map(), segments);
  EXPECT_EQ(Pages(bits), (std::vector<uint64_t>{17, 64, 65}));
}

TEST(DirtyLogTest, ARegionThatIsMappedTwiceIsMarkedTwice) {
  std::vector<uint8_t> bytes(kPage);
  const auto region = block::MemoryRegion::Borrow(bytes.data(), bytes.size());
  const auto map = *block::MemoryMap::Make({{2 * kPage, region}, {5 * kPage, region}});
  std::vector<uint8_t> bits(1);
  DirtyLog log;
  log.Attach({bits.data(), bits.size(), nullptr});
  const block::Segment segment = map->Translate(2 * kPage, 10);
  log.Mark(*map, {&segment, 1});
  EXPECT_EQ(Pages(bits), (std::vector<uint64_t>{2, 5}));
}

// Two queues mark neighbouring bits of the same bytes: none is lost.
TEST(DirtyLogTest, SeveralThreadsShareBytes) {
  constexpr uint64_t kPages = 1 << 14;
  std::vector<uint8_t> bits(kPages / 8);
  const auto mark = [&](uint64_t first) {
    DirtyLog log;
    log.Attach({bits.data(), bits.size(), nullptr});
    for (uint64_t page = first; page < kPages; page += 2) log.Mark(page * kPage, 1);
  };
  std::thread even(mark, 0);
  std::thread odd(mark, 1);
  even.join();
  odd.join();
  EXPECT_EQ(Pages(bits).size(), kPages);
}

TEST(DirtyLogTest, UsedRingIsMarked) {
  constexpr uint16_t kSize = 1024;  // its used ring has more than one page
  GuestMemory memory(GuestLayout::Regions(kSize));
  GuestRing guest = GuestLayout::Ring(memory, kSize);
  std::vector<uint8_t> bits(64);
  DirtyLog log;
  SplitRing ring;
  const uint64_t first_page = GuestLayout::kUsed / kPage;
  const auto pages_after = [&](uint16_t index, uint16_t count) {
    guest.StartAt(index);
    log.Attach({});
    ring.Start(guest.memory(), 0, index, &log);
    std::ranges::fill(bits, uint8_t{0});
    log.Attach({bits.data(), bits.size(), nullptr});
    for (uint16_t i = 0; i < count; ++i) ring.Push(0, 0);
    ring.Publish();
    return Pages(bits);
  };
  EXPECT_EQ(pages_after(0, 1), (std::vector<uint64_t>{first_page}));  // element 0 and the index
  EXPECT_EQ(pages_after(600, 1), (std::vector<uint64_t>{first_page, first_page + 1}));
  EXPECT_EQ(pages_after(1023, 2), (std::vector<uint64_t>{first_page, first_page + 1, first_page + 2}));
  std::ranges::fill(bits, uint8_t{0});
  ring.EnableNotifications();
  EXPECT_EQ(Pages(bits), (std::vector<uint64_t>{first_page}));
  // What a predecessor has shown and did not live to mark.
  std::ranges::fill(bits, uint8_t{0});
  ring.Start(guest.memory(), 0, 0, &log);
  EXPECT_EQ(Pages(bits), (std::vector<uint64_t>{first_page, first_page + 1, first_page + 2}));
}

}  // namespace
}  // namespace cleat::virtio::dirty_log_test
