// SPDX-License-Identifier: Apache-2.0
// Guests' memory in the rings' tables: with rings of the kernel, whose reads into a registered place show which memory that has, and with
// tables that refuse, and say what they have.
#include "modules/uring/memory_registrar.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "modules/uring/uring_ring.h"
#include "tests/unit/modules/uring_fixture.h"

namespace cleat::modules::memory_registrar_test {
namespace {

using block::MemoryRegion;
using block::MemoryRegistration;

constexpr uint64_t kChunk = MemoryRegistrar::kChunkBytes;
constexpr uint64_t kPage = 4096;

std::optional<Error> AnyKernel() {
  return std::nullopt;
}

UniqueFd Memfd(uint64_t bytes) {
  UniqueFd fd(memfd_create("guest", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

std::shared_ptr<MemoryRegion> Vouched(const UniqueFd& file, uint64_t bytes) {
  auto region = MemoryRegion::Map(file, 0, bytes, std::make_unique<MemoryRegistration>("controllers/c"));
  EXPECT_TRUE(region.ok());
  return std::move(region).value();
}

// The registrar has a thread of its own.
template <typename There>
bool Await(There there) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!there() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_TRUE(there());
  return there();
}
// Once it has been asked for.
bool AwaitPlace(MemoryRegistrar& registrar, const MemoryRegion& region) {
  return Await([&] { return registrar.Find(region, 0, 1).has_value(); });
}
void AwaitBytes(const MemoryRegistrar& registrar, uint64_t bytes) {
  Await([&] { return registrar.registered_bytes() == bytes; });
}

// ---- With the kernel

// Reads of a file into memory that a ring for commands has at a place.
class PlaceReader final : public UringClient {
 public:
  explicit PlaceReader(UringRing& ring, Reactor& reactor) : ring_(ring), reactor_(reactor) {
    std::memset(data_.data(), 'd', data_.size());
    EXPECT_EQ(pwrite(file_.get(), data_.data(), data_.size(), 0), static_cast<ssize_t>(data_.size()));
  }

  // What the kernel says: bytes, or -errno.
  int32_t Read(uint16_t place, uint8_t* to) {
    place_ = place;
    to_ = to;
    result_ = kUnderWay;
    request_.Push([](block::Request& /*request*/, const block::Frame& /*frame*/) {},
                  static_cast<UringClient*>(this));
    ring_.Start(request_);
    while (result_ == kUnderWay) reactor_.RunOnce();
    request_.Complete(block::IoStatus::kOk);
    return result_;
  }

 private:
  static constexpr int32_t kUnderWay = 1 << 30;

  bool Prepare(block::Request& /*request*/, io_uring_sqe& sqe, std::span<iovec> /*iovecs*/) override {
    std::memset(static_cast<void*>(&sqe), 0, 128);
    io_uring_prep_read_fixed(&sqe, file_.get(), to_, kPage, 0, place_);
    return false;
  }
  void Finished(block::Request& /*request*/, int32_t result) override { result_ = result; }
  void BounceReady(block::Request& /*request*/, uint8_t* /*buffer*/) override {}

  UringRing& ring_;
  Reactor& reactor_;
  const UniqueFd file_ = Memfd(kPage);
  std::array<uint8_t, kPage> data_{};
  block::Request request_;
  uint16_t place_ = 0;
  uint8_t* to_ = nullptr;
  int32_t result_ = 0;
};

class RegisteredMemory : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status commands = host_.hub().commands_status(); !commands)
      GTEST_SKIP() << commands.error().message;
    ring_ = host_.hub().FindForCommands(host_.reactor());
    registrar_.AddRing(*ring_);
    reader_.emplace(*ring_, host_.reactor());
  }

  test::UringHost host_;
  UringRing* ring_ = nullptr;
  MemoryRegistrar registrar_{{.places = 4, .check_kernel = AnyKernel}};
  std::optional<PlaceReader> reader_;
};

TEST_F(RegisteredMemory, IsFoundByItsPlaceOnceItWasAskedFor) {
  const uint64_t bytes = kChunk + 2 * kPage;
  const UniqueFd file = Memfd(bytes);
  const auto region = Vouched(file, bytes);
  EXPECT_EQ(registrar_.Find(*region, 0, kPage), std::nullopt) << "only asked for";
  ASSERT_TRUE(AwaitPlace(registrar_, *region));
  EXPECT_EQ(registrar_.registered_bytes(), bytes);
  const uint16_t first = *registrar_.Find(*region, 0, kPage);
  EXPECT_EQ(registrar_.Find(*region, kChunk - kPage, kPage), first);
  EXPECT_EQ(registrar_.Find(*region, kChunk - kPage, kPage + 1), std::nullopt) << "in two places";
  EXPECT_EQ(registrar_.Find(*region, kChunk, 2 * kPage), first + 1);
  for (const uint64_t at : {uint64_t{0}, kChunk - kPage, kChunk + kPage}) {
    EXPECT_EQ(reader_->Read(*registrar_.Find(*region, at, kPage), region->base() + at),
              static_cast<int32_t>(kPage));
    EXPECT_EQ(std::count(region->base() + at, region->base() + at + kPage, 'd'), static_cast<int64_t>(kPage));
  }
  EXPECT_EQ(region->base()[kPage], 0);
  EXPECT_EQ(reader_->Read(first, region->base() + kChunk), -EFAULT) << "the place has other memory";
}

// What the vouching is about: the registered page is the one that was there.
TEST_F(RegisteredMemory, OfAPageThatWasGivenBackIsTheOldOne) {
  const UniqueFd file = Memfd(2 * kPage);
  const auto region = Vouched(file, 2 * kPage);
  registrar_.Find(*region, 0, 1);
  ASSERT_TRUE(AwaitPlace(registrar_, *region));
  ASSERT_EQ(fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPage), 0);
  EXPECT_EQ(region->base()[0], 0);
  const uint16_t place = *registrar_.Find(*region, 0, kPage);
  EXPECT_EQ(reader_->Read(place, region->base()), static_cast<int32_t>(kPage));
  EXPECT_EQ(region->base()[0], 0) << "the drive wrote to the page that the guest has now";
  EXPECT_EQ(reader_->Read(place, region->base() + kPage), static_cast<int32_t>(kPage));
  EXPECT_EQ(region->base()[kPage], 'd');
}

TEST_F(RegisteredMemory, GivesItsPlacesBackWhenItEnds) {
  const UniqueFd file = Memfd(3 * kChunk);
  auto large = Vouched(file, 3 * kChunk);
  registrar_.Find(*large, 0, 1);
  ASSERT_TRUE(AwaitPlace(registrar_, *large));
  const uint16_t place = *registrar_.Find(*large, 2 * kChunk, kPage);
  uint8_t* const was_at = large->base() + 2 * kChunk;
  const auto too_much = Vouched(file, 2 * kChunk);
  registrar_.Find(*too_much, 0, 1);
  // Regions are looked at in the order in which they were asked for: the last one has its place when the one before it was refused.
  auto last = Vouched(file, kChunk);
  registrar_.Find(*last, 0, 1);
  ASSERT_TRUE(AwaitPlace(registrar_, *last));
  last.reset();
  large.reset();
  AwaitBytes(registrar_, 0);
  EXPECT_EQ(reader_->Read(place, was_at), -EFAULT) << "nothing is there any more";
  EXPECT_EQ(registrar_.Find(*too_much, 0, 1), std::nullopt)
      << "there were four places, and it is asked for once";
  const auto again = Vouched(file, 3 * kChunk);
  registrar_.Find(*again, 0, 1);
  ASSERT_TRUE(AwaitPlace(registrar_, *again));
  EXPECT_EQ(reader_->Read(*registrar_.Find(*again, 2 * kChunk, kPage), again->base() + 2 * kChunk),
            static_cast<int32_t>(kPage));
}

TEST_F(RegisteredMemory, ThatNobodyVouchesForStaysAsItIs) {
  const UniqueFd file = Memfd(kPage);
  const auto region = MemoryRegion::Map(file, 0, kPage);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(registrar_.Find(**region, 0, kPage), std::nullopt);
  EXPECT_EQ(registrar_.registered_bytes(), 0U);
}

TEST(KernelForRegisteredMemory, IsNamedWhereItIsTooOld) {
  const auto why_not = MemoryRegistrar::CheckKernel();
  if (!why_not) return;
  EXPECT_NE(why_not->message.find("Linux 6.12"), std::string::npos) << why_not->message;
}

TEST(KernelForRegisteredMemory, IsOneThatTakesHugePagesAsTheyAre) {
  for (const char* good : {"6.12.36", "6.12.117+deb13-amd64", "6.15.5-arch1", "6.16-rc1", "6.18.0", "7.0.0"})
    EXPECT_TRUE(MemoryRegistrar::IsGoodRelease(good)) << good;
  for (const char* bad :
       {"6.1.0-41-amd64", "5.19.0", "6.12", "6.12.35", "6.13.12", "6.14.99", "6.15.4", "6.11.99", "x", ""})
    EXPECT_FALSE(MemoryRegistrar::IsGoodRelease(bad)) << bad;
}

// ---- With tables that refuse

class Table final : public BufferTable {
 public:
  Status MakeBufferPlaces(uint32_t places) override {
    const MutexLock lock(mutex_);
    EXPECT_EQ(places_, 0U) << "once";
    places_ = places;
    return Ok{};
  }
  Status SetBuffer(uint32_t place, const iovec& memory) override {
    const MutexLock lock(mutex_);
    EXPECT_LT(place, places_);
    ++calls_;
    changed_.NotifyAll();
    while (stands_still_ && memory.iov_base != nullptr) changed_.Wait(mutex_);
    if (memory.iov_base == nullptr && keeps_) return Error(ErrorCode::kResourceExhausted, "no memory now");
    if (memory.iov_base == nullptr) {
      memory_.erase(place);
      return Ok{};
    }
    if (memory_.size() >= most_) return Error(ErrorCode::kResourceExhausted, "no more");
    EXPECT_TRUE(memory_.emplace(place, memory.iov_base).second) << "place " << place << " is taken";
    return Ok{};
  }

  void SetMost(size_t most) {
    const MutexLock lock(mutex_);
    most_ = most;
  }
  void SetKeeps(bool keeps) {
    const MutexLock lock(mutex_);
    keeps_ = keeps;
  }
  // As long as the table stands still, putting memory into it waits.
  void SetStandsStill(bool stands_still) {
    const MutexLock lock(mutex_);
    stands_still_ = stands_still;
    changed_.NotifyAll();
  }
  uint64_t calls() {
    const MutexLock lock(mutex_);
    return calls_;
  }
  std::map<uint32_t, void*> memory() {
    const MutexLock lock(mutex_);
    return memory_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool stands_still_ CLEAT_GUARDED_BY(mutex_) = false;
  uint32_t places_ CLEAT_GUARDED_BY(mutex_) = 0;
  size_t most_ CLEAT_GUARDED_BY(mutex_) = 1000;
  bool keeps_ CLEAT_GUARDED_BY(mutex_) = false;
  uint64_t calls_ CLEAT_GUARDED_BY(mutex_) = 0;
  std::map<uint32_t, void*> memory_ CLEAT_GUARDED_BY(mutex_);
};

class Registrar : public testing::Test {
 protected:
  Registrar() {
    for (Table& table : tables_) registrar_->AddRing(table);
  }
  // A region of the file, which all regions share.
  std::shared_ptr<MemoryRegion> Region(uint64_t bytes) { return Vouched(file_, bytes); }
  void Ask(const MemoryRegion& region) { EXPECT_EQ(registrar_->Find(region, 0, 1), std::nullopt); }

  const UniqueFd file_ = Memfd(2 * kChunk);
  std::array<Table, 2> tables_;
  std::unique_ptr<MemoryRegistrar> registrar_ =
      std::make_unique<MemoryRegistrar>(MemoryRegistrar::Options{.places = 128, .check_kernel = AnyKernel});
};

TEST_F(Registrar, HasAllRingsHaveItOrNone) {
  const auto region = Region(2 * kChunk);
  tables_[1].SetMost(1);
  Ask(*region);
  Await([&] { return tables_[1].calls() >= 4 && tables_[0].memory().empty(); });
  EXPECT_TRUE(tables_[1].memory().empty());
  EXPECT_EQ(registrar_->registered_bytes(), 0U);
  EXPECT_EQ(registrar_->Find(*region, 0, 1), std::nullopt);
  tables_[1].SetMost(1000);
  const auto next = Region(2 * kChunk);
  Ask(*next);
  ASSERT_TRUE(AwaitPlace(*registrar_, *next));
  EXPECT_EQ(tables_[0].memory(), tables_[1].memory()) << "the same places in each ring";
  EXPECT_EQ(tables_[0].memory(), (std::map<uint32_t, void*>{{0, next->base()}, {1, next->base() + kChunk}}));
}

TEST_F(Registrar, GivesNoPlaceAwayThatARingStillHas) {
  auto region = Region(kPage);
  Ask(*region);
  ASSERT_TRUE(AwaitPlace(*registrar_, *region));
  tables_[0].SetKeeps(true);
  region.reset();
  AwaitBytes(*registrar_, 0);
  const auto beside = Region(kPage);
  Ask(*beside);
  ASSERT_TRUE(AwaitPlace(*registrar_, *beside));
  EXPECT_EQ(registrar_->Find(*beside, 0, 1), 1);
  tables_[0].SetKeeps(false);
  const auto after = Region(kPage);
  Ask(*after);
  ASSERT_TRUE(AwaitPlace(*registrar_, *after));
  EXPECT_EQ(registrar_->Find(*after, 0, 1), 0);
}

// Regions end on any thread, while others are registered, and after the registrar.
TEST_F(Registrar, OutlivesRegionsAndTheOtherWayRound) {
  std::vector<std::shared_ptr<MemoryRegion>> last;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        const auto region = Region(kPage);
        (void)registrar_->Find(*region, 0, 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (int i = 0; i < 3; ++i) Ask(*last.emplace_back(Region(kPage)));
  for (const auto& region : last) ASSERT_TRUE(AwaitPlace(*registrar_, *region));
  AwaitBytes(*registrar_, 3 * kPage);
  Await([&] { return tables_[0].memory().size() == 3; });
  Ask(*last.emplace_back(Region(2 * kChunk)));  // perhaps just now
  registrar_.reset();
  last.clear();
}

TEST_F(Registrar, EndsWithARegionThatNobodyHasAnyMore) {
  auto region = Region(2 * kChunk);
  tables_[0].SetStandsStill(true);
  Ask(*region);
  Await([&] { return tables_[0].calls() == 1; });
  auto unneeded = Region(kPage);  // gone before its turn comes
  Ask(*unneeded);
  unneeded.reset();
  region.reset();
  tables_[0].SetStandsStill(false);
  Await([&] { return tables_[0].calls() == 3 && tables_[0].memory().empty(); });
  const auto next = Region(kPage);
  Ask(*next);
  ASSERT_TRUE(AwaitPlace(*registrar_, *next));
  EXPECT_EQ(tables_[0].calls(), 4U) << "one chunk, its two places emptied, and the next region's";
}

TEST_F(Registrar, LeavesMemoryAloneThatTheKernelIsSlowWith) {
  Table table;
  MemoryRegistrar registrar({.places = 4, .check_kernel = AnyKernel, .chunk_ns_max = 0});
  registrar.AddRing(table);
  const auto region = Region(2 * kChunk);
  EXPECT_EQ(registrar.Find(*region, 0, 1), std::nullopt);
  Await([&] { return table.calls() == 3 && table.memory().empty(); });
  EXPECT_EQ(registrar.Find(*region, 0, 1), std::nullopt);
  EXPECT_EQ(registrar.registered_bytes(), 0U);
}

TEST_F(Registrar, AsksForNothingOnAKernelThatGainsNothing) {
  MemoryRegistrar registrar({.places = 4, .check_kernel = [] {
                               return std::optional<Error>(Error(ErrorCode::kUnimplemented, "too old"));
                             }});
  Table table;
  registrar.AddRing(table);
  const auto region = Region(kPage);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(registrar.Find(*region, 0, 1), std::nullopt);
  EXPECT_EQ(table.calls(), 0U);
}

}  // namespace
}  // namespace cleat::modules::memory_registrar_test
