// SPDX-License-Identifier: Apache-2.0
#include "vhost/memory_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cleat::vhost::memory_table_test {
namespace {

constexpr uint64_t kPage = 4096;

UniqueFd Memfd(uint64_t pages) {
  UniqueFd fd(memfd_create("guest", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(pages * kPage)), 0);
  return fd;
}

struct Files {
  std::vector<MemoryTableRegion> regions;
  std::vector<UniqueFd> fds;
  void Add(MemoryTableRegion region, UniqueFd fd) {
    regions.push_back(region);
    fds.push_back(std::move(fd));
  }
  Result<std::shared_ptr<const MemoryTable>> Map(const MemoryTable* previous = nullptr,
                                                 const MemoryTable::ReleaseFn& release = nullptr,
                                                 const std::string& pinned_by = {}) const {
    return MemoryTable::Map(regions, fds, previous, release, pinned_by);
  }
};

TEST(MemoryTable, TranslatesBothKindsOfAddress) {
  Files files;
  files.Add({0, 4 * kPage, 0x7f0000000000, 0}, Memfd(4));
  files.Add({0x100000000, 2 * kPage, 0x7f1000000000, kPage}, Memfd(3));
  auto table = files.Map();
  ASSERT_TRUE(table.ok()) << table.error().message;
  auto place = (*table)->FromUser(0x7f1000000000 + kPage, 64, 16);
  ASSERT_TRUE(place.ok()) << place.error().message;
  EXPECT_EQ(place->guest_address, 0x100000000 + kPage);
  EXPECT_EQ(place->host, (*table)->map()->Contiguous(0x100000000 + kPage, 64));
  // The file's offset counts: what is written there is found at the same place of the file.
  *place->host = 0x5a;
  uint8_t byte = 0;
  ASSERT_EQ(pread(files.fds[1].get(), &byte, 1, 2 * kPage), 1);
  EXPECT_EQ(byte, 0x5a);
}

TEST(MemoryTable, SaysWhatIsWrongWithAnAddress) {
  Files files;
  files.Add({0, 4 * kPage, 0x10000, 0}, Memfd(4));
  auto table = files.Map();
  ASSERT_TRUE(table.ok());
  EXPECT_TRUE((*table)->FromUser(0x10000 + 4 * kPage - 16, 16, 16).ok());
  EXPECT_EQ((*table)->FromUser(0x10000 + 4 * kPage - 16, 17, 16).error().message,
            "[81904, +17) goes beyond the end of its memory region");
  EXPECT_EQ((*table)->FromUser(0xffff, 16, 1).error().message,
            "[65535, +16) is in no memory region of the last SET_MEM_TABLE");
  EXPECT_EQ((*table)->FromUser(0x10008, 16, 16).error().message, "[65544, +16) is not aligned to 16 bytes");
  EXPECT_FALSE((*table)->FromUser(UINT64_MAX - 3, 16, 1).ok());
}

TEST(MemoryTable, KeepsMappingsOfRegionsThatStay) {
  Files before;
  before.Add({0, 4 * kPage, 0x10000, 0}, Memfd(4));
  before.Add({0x100000, 4 * kPage, 0x90000, 0}, Memfd(4));
  auto first = before.Map();
  ASSERT_TRUE(first.ok());
  Files after;
  after.Add({0, 4 * kPage, 0x10000, 0}, before.fds[0].Duplicate());
  after.Add({0x200000, 4 * kPage, 0xa0000, 0}, Memfd(4));
  auto second = after.Map(first->get());
  ASSERT_TRUE(second.ok());
  EXPECT_EQ((*second)->regions()[0].memory, (*first)->regions()[0].memory);
  EXPECT_NE((*second)->regions()[1].memory, (*first)->regions()[1].memory);
  // Another piece of the same file is another mapping.
  Files moved;
  moved.Add({0, 2 * kPage, 0x10000, kPage}, before.fds[0].Duplicate());
  auto third = moved.Map(first->get());
  ASSERT_TRUE(third.ok());
  EXPECT_NE((*third)->regions()[0].memory, (*first)->regions()[0].memory);
}

// Memory is added and taken away while the guest runs: what stays is what the kernel was told of, and is not told of again.
TEST(MemoryTable, MayBeRegisteredOnlyWhereSomebodyVouchesAndThenOnce) {
  Files files;
  files.Add({0, kPage, 0x10000, 0}, Memfd(1));
  const auto plain = files.Map();
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ((*plain)->regions()[0].memory->registration(), nullptr);
  std::vector<std::shared_ptr<block::MemoryRegion>> released;
  const MemoryTable::ReleaseFn release = [&](auto region) { released.push_back(std::move(region)); };
  auto first = files.Map(nullptr, release, "controllers/c");
  ASSERT_TRUE(first.ok());
  constexpr uint32_t kRings = block::MemoryRegistration::kRings;
  block::MemoryRegistration* const asked = (*first)->regions()[0].memory->registration();
  ASSERT_NE(asked, nullptr);
  EXPECT_EQ(asked->owner(), "controllers/c");
  int ended = 0;
  ASSERT_TRUE(asked->Ask(kRings));
  asked->Publish(kRings, 5, [&ended] { ++ended; });
  files.Add({0x100000, kPage, 0x90000, 0}, Memfd(1));
  auto grown = files.Map(first->get(), release, "controllers/c");
  ASSERT_TRUE(grown.ok());
  first = Error(ErrorCode::kCancelled, "");
  EXPECT_EQ((*grown)->regions()[0].memory->registration(), asked);
  EXPECT_EQ((*grown)->regions()[1].memory->registration()->state(kRings),
            block::MemoryRegistration::kUnasked);
  // Whoever registers it may keep it a moment longer.
  auto kept = (*grown)->regions()[0].memory->shared_from_this();
  grown = Error(ErrorCode::kCancelled, "");
  ASSERT_EQ(released.size(), 2U);
  released.clear();
  EXPECT_EQ(ended, 0);
  kept.reset();
  EXPECT_EQ(ended, 1);
}

TEST(MemoryTable, HandsTheLastReferenceOn) {
  std::vector<std::shared_ptr<block::MemoryRegion>> released;
  Files files;
  files.Add({0, kPage, 0x10000, 0}, Memfd(1));
  auto table = files.Map(nullptr, [&](auto region) { released.push_back(std::move(region)); });
  ASSERT_TRUE(table.ok());
  auto in_flight = (*table)->map();
  table = Error(ErrorCode::kCancelled, "");
  EXPECT_TRUE(released.empty());
  in_flight.reset();
  ASSERT_EQ(released.size(), 1U);
  *released[0]->base() = 1;  // still mapped
}

TEST(MemoryTable, RefusesWhatCantBe) {
  Files too_short;
  too_short.Add({0, 2 * kPage, 0x10000, 0}, Memfd(1));
  EXPECT_EQ(too_short.Map().error().message,
            "memory region 0: memory region of 8192 bytes at offset 0 is outside its file of 4096 bytes");
  Files guest_overlap;
  guest_overlap.Add({0, 2 * kPage, 0x10000, 0}, Memfd(2));
  guest_overlap.Add({kPage, kPage, 0x20000, 0}, Memfd(1));
  EXPECT_FALSE(guest_overlap.Map().ok());
  Files user_overlap;
  user_overlap.Add({0, 2 * kPage, 0x10000, 0}, Memfd(2));
  user_overlap.Add({0x100000, kPage, 0x11000, 0}, Memfd(1));
  EXPECT_EQ(user_overlap.Map().error().message,
            "memory regions 0 and 1 overlap in the front end's address space");
  Files wraps;
  wraps.Add({0, kPage, UINT64_MAX - 100, 0}, Memfd(1));
  EXPECT_FALSE(wraps.Map().ok());
}

}  // namespace
}  // namespace cleat::vhost::memory_table_test
