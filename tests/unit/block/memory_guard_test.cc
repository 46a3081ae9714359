// SPDX-License-Identifier: Apache-2.0
// A file is truncated under mappings that are being read and written: the process lives, the right mapping is
// broken, and no other is touched.
#include "block/memory_guard.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "block/memory.h"

namespace cleat::block::memory_guard_test {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kPages = 64;

bool TakeEvent() {
  uint64_t count = 0;
  return read(MemoryGuard::event_fd(), &count, sizeof count) == ssize_t{sizeof count};
}

class Guarded : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MemoryGuard::Install().ok());
    TakeEvent();
    for (int i = 0; i < 3; ++i) {
      fds_.emplace_back(memfd_create("guarded", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(fds_.back().get(), kPages * kPage), 0);
      auto region = MemoryRegion::Map(fds_.back(), 0, kPages * kPage);
      ASSERT_TRUE(region.ok());
      regions_.push_back(std::move(region).value());
      for (uint64_t page = 0; page < kPages; ++page) Byte(regions_.back(), page) = 0x5a;
    }
  }
  static volatile uint8_t& Byte(const std::shared_ptr<MemoryRegion>& region, uint64_t page) {
    return region->base()[page * kPage];
  }

  std::vector<UniqueFd> fds_;
  std::vector<std::shared_ptr<MemoryRegion>> regions_;
};

TEST_F(Guarded, WhatIsGoneReadsAsZeroAndIsTold) {
  ASSERT_EQ(ftruncate(fds_[1].get(), 8 * kPage), 0);
  EXPECT_FALSE(regions_[1]->broken()) << "nobody has looked yet";
  EXPECT_FALSE(TakeEvent());
  EXPECT_EQ(Byte(regions_[1], 20), 0);
  EXPECT_TRUE(regions_[1]->broken());
  EXPECT_TRUE(TakeEvent());
  Byte(regions_[1], 63) = 7;  // writable, private
  EXPECT_EQ(Byte(regions_[1], 63), 7);
  EXPECT_EQ(Byte(regions_[1], 10), 0);  // below the first one
  EXPECT_EQ(Byte(regions_[1], 7), 0x5a) << "what the file still has was thrown away";
  for (const int other : {0, 2}) {
    EXPECT_FALSE(regions_[other]->broken());
    for (uint64_t page = 0; page < kPages; ++page) EXPECT_EQ(Byte(regions_[other], page), 0x5a);
  }
}

TEST_F(Guarded, ASlotIsUsedAgainWithoutItsPast) {
  ASSERT_EQ(ftruncate(fds_[0].get(), 0), 0);
  EXPECT_EQ(Byte(regions_[0], 0), 0);
  EXPECT_TRUE(regions_[0]->broken());
  regions_[0].reset();
  auto again = MemoryRegion::Map(fds_[2], 0, kPages * kPage);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE((*again)->broken());
}

// Threads in the middle of their accesses, mappings coming and going beside them, all the time.
TEST_F(Guarded, UnderLoad) {
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> rounds = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) {
        for (uint64_t page = 0; page < kPages; ++page)
          (&Byte(regions_[0], page))[i] = static_cast<uint8_t>(page);
        ++rounds;
      }
    });
  }
  threads.emplace_back([&] {
    while (!stop) EXPECT_TRUE(MemoryRegion::Map(fds_[2], 0, kPage).ok());
  });
  while (rounds < 100) std::this_thread::yield();
  for (uint64_t pages = kPages - 1; pages > 0; --pages) {
    ASSERT_EQ(ftruncate(fds_[0].get(), static_cast<off_t>(pages * kPage)), 0);
    const uint64_t goal = rounds + 4;
    while (rounds < goal) std::this_thread::yield();
    EXPECT_EQ(Byte(regions_[1], pages), 0x5a);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(regions_[0]->broken());
  EXPECT_FALSE(regions_[1]->broken());
  EXPECT_FALSE(regions_[2]->broken());
}

using GuardedDeathTest = Guarded;

TEST_F(GuardedDeathTest, OtherFaultsStayFatal) {
#if !defined(CLEAT_ASAN) && !defined(CLEAT_TSAN)  // have handlers and exits of their own
  void* mine = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fds_[0].get(), 0);
  ASSERT_NE(mine, MAP_FAILED);
  ASSERT_EQ(ftruncate(fds_[0].get(), 0), 0);
  EXPECT_EXIT(*static_cast<volatile uint8_t*>(mine) = 1, testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
  munmap(mine, kPage);
#endif
}

}  // namespace
}  // namespace cleat::block::memory_guard_test
