// SPDX-License-Identifier: Apache-2.0
#include "block/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace cleat::block::memory_test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

UniqueFd MakeMemfd(uint64_t bytes) {
  UniqueFd fd(memfd_create("memory_test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

bool IsMapped(const void* address) {
  std::ifstream maps("/proc/self/maps");
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0;
    uintptr_t to = 0;
    EXPECT_EQ(sscanf(line.c_str(), "%lx-%lx", &from, &to), 2);  // NOLINT(cert-err34-c)
    if (wanted >= from && wanted < to) return true;
  }
  return false;
}

TEST(MemoryRegion, MapsAnyOffsetSharedAndUnmapsWithTheLastReference) {
  const UniqueFd fd = MakeMemfd(kMiB);
  ASSERT_EQ(pwrite(fd.get(), "hello", 5, 12345), 5);
  auto mapped = MemoryRegion::Map(fd, 12345, 5000);
  ASSERT_TRUE(mapped.ok());
  std::shared_ptr<MemoryRegion> region = std::move(mapped).value();
  EXPECT_EQ(region->size_bytes(), 5000U);
  EXPECT_EQ(std::memcmp(region->base(), "hello", 5), 0);
  region->base()[0] = 'j';
  char byte = 0;
  ASSERT_EQ(pread(fd.get(), &byte, 1, 12345), 1);
  EXPECT_EQ(byte, 'j');

  const uint8_t* base = region->base();
  std::shared_ptr<MemoryRegion> in_flight = region;
  region.reset();
  EXPECT_TRUE(IsMapped(base));
  in_flight.reset();
  EXPECT_FALSE(IsMapped(base));
}

TEST(MemoryRegion, RefusesWhatIsOutsideItsFile) {
  const UniqueFd fd = MakeMemfd(kMiB);
  EXPECT_TRUE(MemoryRegion::Map(fd, 0, kMiB).ok());
  EXPECT_TRUE(MemoryRegion::Map(fd, kMiB - 1, 1).ok());
  for (const auto& [offset, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{{0, 0},
                                                                                {0, kMiB + 1},
                                                                                {1, kMiB},
                                                                                {kMiB, 1},
                                                                                {UINT64_MAX, 2},
                                                                                {2, UINT64_MAX},
                                                                                {UINT64_MAX, UINT64_MAX}}) {
    const auto mapped = MemoryRegion::Map(fd, offset, bytes);
    ASSERT_FALSE(mapped.ok()) << offset << " " << bytes;
    EXPECT_EQ(mapped.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(mapped.error().message.find(std::to_string(bytes)), std::string::npos);
  }
  EXPECT_FALSE(MemoryRegion::Map(UniqueFd(), 0, 1).ok());
}

// A page of it would come when its storage likes.
TEST(MemoryRegion, RefusesAFileThatIsNotInMemory) {
  const UniqueFd program(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  for (const UniqueFd* fd : {&program, &reading, &writing}) {
    const auto mapped = MemoryRegion::Map(*fd, 0, 4096);
    ASSERT_FALSE(mapped.ok());
    EXPECT_EQ(mapped.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(mapped.error().message.find("in memory (memfd, tmpfs)"), std::string::npos)
        << mapped.error().message;
  }
}

TEST(MemoryRegion, TellsTheRegistrarOnceItIsNoMore) {
  constexpr uint32_t kOne = MemoryRegistration::kRings;
  constexpr uint32_t kOther = MemoryRegistration::kFirstAdapter;
  auto registration = std::make_unique<MemoryRegistration>("controllers/c");
  MemoryRegistration& asked = *registration;
  uint8_t memory[16];
  auto region = MemoryRegion::Borrow(memory, 16, std::move(registration));
  EXPECT_EQ(region->registration(), &asked);
  EXPECT_EQ(asked.state(kOne), MemoryRegistration::kUnasked);
  EXPECT_TRUE(asked.Ask(kOne));
  EXPECT_FALSE(asked.Ask(kOne)) << "it is to be registered once";
  EXPECT_EQ(asked.state(kOne), MemoryRegistration::kPlain);
  int ended = 0;
  asked.Publish(kOne, 7, [&ended] { ++ended; });
  EXPECT_EQ(asked.state(kOne), 7 + MemoryRegistration::kFirst);
  EXPECT_TRUE(asked.Ask(kOther)) << "each registrar for itself";
  int other_ended = 0;
  asked.Publish(kOther, 3, [&other_ended] { ++other_ended; });
  EXPECT_EQ(asked.state(kOther), 3 + MemoryRegistration::kFirst);
  EXPECT_EQ(asked.state(kOne), 7 + MemoryRegistration::kFirst);
  region.reset();
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(other_ended, 1);
  EXPECT_EQ(MemoryRegion::Borrow(memory, 16)->registration(), nullptr);
}

TEST(MemoryRegion, TellsNothingToARegistrarThatHasEnded) {
  constexpr uint32_t kNumber = MemoryRegistration::kFirstAdapter;
  uint8_t memory[16];
  auto region = MemoryRegion::Borrow(memory, 16, std::make_unique<MemoryRegistration>("controllers/c"));
  MemoryRegistration& registration = *region->registration();
  ASSERT_TRUE(registration.Ask(kNumber));
  int ended = 0;
  registration.Publish(kNumber, 0, [&ended] { ++ended; });
  registration.Withdraw(kNumber);
  EXPECT_TRUE(registration.Ask(kNumber)) << "the next one of that number";
  registration.Publish(kNumber, 1, [&ended] { ended += 10; });
  region.reset();
  EXPECT_EQ(ended, 10);
}

class MemoryMapTest : public testing::Test {
 protected:
  // Two regions: 0x1000-0x1fff, then a hole, then 0x10000-0x1ffff, and one that ends at the top of the
  // address space.
  void SetUp() override {
    auto made = MemoryMap::Make({{0x10000, MemoryRegion::Borrow(big_.data(), big_.size())},
                                 {0x1000, MemoryRegion::Borrow(small_.data(), small_.size())},
                                 {UINT64_MAX - 0xfff, MemoryRegion::Borrow(top_.data(), 0xfff)}});
    ASSERT_TRUE(made.ok());
    map_ = std::move(made).value();
  }
  std::vector<uint8_t> small_ = std::vector<uint8_t>(0x1000);
  std::vector<uint8_t> big_ = std::vector<uint8_t>(0x10000);
  std::vector<uint8_t> top_ = std::vector<uint8_t>(0x1000);
  std::shared_ptr<const MemoryMap> map_;
};

TEST_F(MemoryMapTest, TranslatesAndCutsAtRegionEnds) {
  EXPECT_EQ(map_->Translate(0x1000, 16).data(), small_.data());
  EXPECT_EQ(map_->Translate(0x1000, 16).length_bytes, 16U);
  const Segment cut = map_->Translate(0x1ff0, 64);
  EXPECT_EQ(cut.data(), small_.data() + 0xff0);
  EXPECT_EQ(cut.length_bytes, 16U);
  EXPECT_EQ(map_->Translate(0x1fff, UINT64_MAX).length_bytes, 1U);
  EXPECT_EQ(map_->Translate(0x1ffff, 1).data(), big_.data() + 0xffff);
  for (const uint64_t unmapped :
       {uint64_t{0}, uint64_t{0xfff}, uint64_t{0x2000}, uint64_t{0x20000}, UINT64_MAX}) {
    EXPECT_EQ(map_->Translate(unmapped, 1).length_bytes, 0U) << unmapped;
    EXPECT_EQ(map_->Translate(unmapped, 1).region, nullptr);
  }
  EXPECT_EQ(map_->Translate(UINT64_MAX - 1, 8).length_bytes, 1U) << "no wrap round to address 0";
  for (const uint64_t address :
       {0x0, 0xfff, 0x1000, 0x1ff0, 0x1fff, 0x2000, 0xffff, 0x10000, 0x1ffff, 0x20000}) {
    for (const uint32_t length : {0U, 1U, 16U, 17U, 0x1000U, 0xffffffffU}) {
      const Segment piece = map_->Translate(address, length);
      Segment whole;
      EXPECT_EQ(map_->TranslateWhole(address, length, whole), length != 0 && piece.length_bytes == length)
          << address << " " << length;
      if (length == 0 || piece.length_bytes != length) continue;
      EXPECT_EQ(whole.data(), piece.data());
      EXPECT_EQ(whole.length_bytes, length);
    }
  }
}

TEST(MemoryMap, SegmentsHaveALimitWhicheverWay) {
  uint8_t nothing = 0;  // never looked at
  const auto map = MemoryMap::Make({{0, MemoryRegion::Borrow(&nothing, uint64_t{1} << 33)}}).value();
  constexpr uint32_t kMax = 0x80000000;
  for (const uint32_t length : {kMax - 1, kMax, kMax + 1, 0xffffffffU}) {
    Segment whole;
    EXPECT_EQ(map->Translate(4096, length).length_bytes, std::min(length, kMax));
    EXPECT_EQ(map->TranslateWhole(4096, length, whole), length < kMax) << length;
  }
}

TEST_F(MemoryMapTest, ContiguousIsAllOrNothing) {
  EXPECT_EQ(map_->Contiguous(0x1000, 0x1000), small_.data());
  EXPECT_EQ(map_->Contiguous(0x1001, 0x1000), nullptr);
  EXPECT_EQ(map_->Contiguous(0x1000, 0), nullptr);
  EXPECT_EQ(map_->Contiguous(0x3000, 1), nullptr);
  EXPECT_EQ(map_->Contiguous(0x1000, UINT64_MAX), nullptr);
}

TEST(MemoryMap, RefusesOverlapsWrapsAndTooMany) {
  uint8_t memory[64];
  const auto region = [&memory](uint64_t bytes) { return MemoryRegion::Borrow(memory, bytes); };
  EXPECT_TRUE(MemoryMap::Make({}).ok());
  EXPECT_TRUE(MemoryMap::Make({{16, region(16)}, {0, region(16)}, {32, region(16)}}).ok());
  EXPECT_FALSE(MemoryMap::Make({{15, region(16)}, {0, region(16)}}).ok());
  EXPECT_FALSE(MemoryMap::Make({{0, region(64)}, {16, region(1)}}).ok());
  EXPECT_FALSE(MemoryMap::Make({{UINT64_MAX - 8, region(16)}}).ok());
  std::vector<MemoryMap::Entry> many;
  for (uint64_t i = 0; i <= MemoryMap::kEntriesMax; ++i) many.push_back({i * 64, region(64)});
  EXPECT_FALSE(MemoryMap::Make(many).ok());
  many.pop_back();
  EXPECT_TRUE(MemoryMap::Make(many).ok());
}

// Beyond 2 GiB a piece is cut: lengths are 32 bits.
TEST(MemoryMap, CutsHugePieces) {
  constexpr uint64_t kHuge = uint64_t{5} << 30;
  const UniqueFd fd = MakeMemfd(kHuge);
  auto region = MemoryRegion::Map(fd, 0, kHuge);
  ASSERT_TRUE(region.ok());
  auto map = MemoryMap::Make({{0, std::move(region).value()}});
  ASSERT_TRUE(map.ok());
  uint64_t covered = 0;
  for (int pieces = 0; covered < kHuge; ++pieces) {
    ASSERT_LT(pieces, 4);
    const Segment piece = (*map)->Translate(covered, kHuge - covered);
    ASSERT_GT(piece.length_bytes, 0U);
    ASSERT_EQ(piece.offset_bytes, covered);
    covered += piece.length_bytes;
  }
  EXPECT_EQ((*map)->Contiguous(0, kHuge), nullptr);
}

}  // namespace
}  // namespace cleat::block::memory_test
