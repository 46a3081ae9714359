// SPDX-License-Identifier: Apache-2.0
#include "perf/vhost_user/guest_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

namespace cleat::perf::guest_memory_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kHigh = 4ULL << 30;

TEST(GuestMemoryTest, TranslatesInsideRegionsOnly) {
  auto memory = GuestMemory::CreateWithHole(2 * kMiB);
  ASSERT_TRUE(memory.ok());
  GuestMemory& guest = **memory;
  EXPECT_NE(guest.At(0, kMiB), nullptr);
  EXPECT_EQ(guest.At(1, kMiB), nullptr) << "crosses the end of its region";
  EXPECT_EQ(guest.At(kMiB, 1), nullptr) << "in the hole";
  EXPECT_NE(guest.At(kHigh + kMiB - 1, 1), nullptr);
  EXPECT_EQ(guest.At(kHigh + kMiB, 1), nullptr);
  EXPECT_EQ(guest.At(UINT64_MAX, 2), nullptr);
  EXPECT_EQ(guest.At(kHigh, UINT64_MAX), nullptr);
  EXPECT_EQ(guest.EndGpa(), kHigh + kMiB);
}

TEST(GuestMemoryTest, FileHoldsTheBytesAtTheStatedOffset) {
  auto memory = GuestMemory::CreateWithHole(2 * kMiB);
  ASSERT_TRUE(memory.ok());
  (*memory)->Span(kHigh + 5, 1)[0] = 0x5a;
  const auto table = (*memory)->Table();
  const auto fds = (*memory)->Fds();
  ASSERT_EQ(table.size(), 2U);
  ASSERT_EQ(fds.size(), 2U);
  EXPECT_EQ(table[1].gpa, kHigh);
  EXPECT_GT(table[1].mmap_offset_bytes, 0U);
  uint8_t byte = 0;
  ASSERT_EQ(pread(fds[1], &byte, 1, static_cast<off_t>(table[1].mmap_offset_bytes + 5)), 1);
  EXPECT_EQ(byte, 0x5a);
  EXPECT_EQ((*memory)->UserAddress(kHigh + 5), table[1].user_addr + 5);
}

TEST(GuestMemoryTest, AllocationsAreAlignedDisjointAndReusable) {
  const RegionSpec spec{.gpa = 0, .size_bytes = 64 * 1024};
  auto memory = GuestMemory::Create({&spec, 1});
  ASSERT_TRUE(memory.ok());
  std::set<uint64_t> taken;
  for (int i = 0; i < 16; ++i) {
    Result<uint64_t> gpa = (*memory)->Allocate(4000, 4096);
    ASSERT_TRUE(gpa.ok());
    EXPECT_EQ(*gpa % 4096, 0U);
    EXPECT_TRUE(taken.insert(*gpa).second);
  }
  EXPECT_FALSE((*memory)->Allocate(4000, 4096).ok());
  EXPECT_TRUE((*memory)->Allocate(64, 16).ok()) << "the gaps that alignment left";
  EXPECT_FALSE((*memory)->RemoveRegion(0).ok()) << "in use";
  for (const uint64_t gpa : taken) (*memory)->Free(gpa, 4000);
  (*memory)->Free(4000, 64);
  Result<uint64_t> all = (*memory)->Allocate(64 * 1024, 1);
  ASSERT_TRUE(all.ok()) << "what is freed grows together again";
  (*memory)->Free(*all, 64 * 1024);
  EXPECT_TRUE((*memory)->RemoveRegion(0).ok());
}

TEST(GuestMemoryTest, FreshAllocationsAreZero) {
  const RegionSpec spec{.gpa = 0, .size_bytes = 4096};
  auto memory = GuestMemory::Create({&spec, 1});
  ASSERT_TRUE(memory.ok());
  const uint64_t first = (*memory)->Allocate(4096, 1).value();
  (*memory)->Span(first, 1)[0] = 1;
  (*memory)->Free(first, 4096);
  const uint64_t second = (*memory)->Allocate(4096, 1).value();
  EXPECT_EQ((*memory)->Span(second, 1)[0], 0);
}

TEST(GuestMemoryTest, RefusesRegionsThatCannotBe) {
  const RegionSpec spec{.gpa = kMiB, .size_bytes = kMiB};
  auto memory = GuestMemory::Create({&spec, 1});
  ASSERT_TRUE(memory.ok());
  EXPECT_FALSE((*memory)->AddRegion({.gpa = 2 * kMiB - 4096, .size_bytes = 8192}).ok()) << "overlap";
  EXPECT_FALSE((*memory)->AddRegion({.gpa = UINT64_MAX - 4095, .size_bytes = 8192}).ok()) << "wraps";
  EXPECT_FALSE((*memory)->AddRegion({.gpa = 100, .size_bytes = 4096}).ok()) << "misaligned";
  EXPECT_FALSE((*memory)->RemoveRegion(5).ok());
  for (uint64_t i = 2; i < 9; ++i) {
    EXPECT_TRUE((*memory)->AddRegion({.gpa = i * kMiB, .size_bytes = 4096}).ok());
  }
  EXPECT_FALSE((*memory)->AddRegion({.gpa = 9 * kMiB, .size_bytes = 4096}).ok()) << "a ninth region";
}

TEST(GuestMemoryTest, WhatIsGivenBackReadsAsZeroesAndNothingElseDoes) {
  auto memory = GuestMemory::CreateWithHole(8 << 20);
  ASSERT_TRUE(memory.ok());
  const uint64_t gpa = (*memory)->Allocate(4 * GuestMemory::kPageBytes, GuestMemory::kPageBytes).value();
  const std::span<uint8_t> bytes = (*memory)->Span(gpa, 4 * GuestMemory::kPageBytes);
  std::fill(bytes.begin(), bytes.end(), uint8_t{1});
  ASSERT_TRUE((*memory)->GiveBack(gpa + GuestMemory::kPageBytes, 2 * GuestMemory::kPageBytes).ok());
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), static_cast<int64_t>(2 * GuestMemory::kPageBytes));
  EXPECT_EQ(bytes[GuestMemory::kPageBytes - 1], 1);
  EXPECT_EQ(bytes[3 * GuestMemory::kPageBytes], 1);
}

}  // namespace
}  // namespace cleat::perf::guest_memory_test
