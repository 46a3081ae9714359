// SPDX-License-Identifier: Apache-2.0
// Disks of a pool that get more of its drive while they are in use.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pool/layout.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/modules/pool_file.h"
#include "tests/unit/modules/uring_fixture.h"

namespace cleat::modules::uring_growth_test {
namespace {

using block::AccessMode;
using block::IoStatus;
using block::Op;
using test::BytesOf;
using test::kPoolExtentBytes;
using test::OnDrive;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kExtents = 12;

// What the disk has, and what it grows to: first the extent behind its last one, then others.
const pool::MapDisk kSmall{.identity = 11, .deleted = false, .extents = {{5, 1}, {2, 1}}, .description = {}};
const pool::MapDisk kGrown{
    .identity = 11, .deleted = false, .extents = {{5, 1}, {2, 2}, {9, 1}}, .description = {}};
const pool::MapDisk kNeighbour{
    .identity = 12, .deleted = false, .extents = {{4, 1}, {8, 1}}, .description = {}};

class UringGrowth : public testing::Test {
 protected:
  explicit UringGrowth(const std::string& folder = test::FolderInMemory()) : folder_(folder) {}
  void SetUp() override {
    path_ = folder_.MakeFile("drive", test::PoolFileBytes(kExtents));
    test::MakePool(path_, kExtents, {kSmall, kNeighbour});
  }
  // Writes the map as cleatd does when its store has the disks.
  void WriteMap(std::vector<pool::MapDisk> disks) {
    test::WritingDrive drive(path_);
    pool::PoolDrive pool(drive, 1);
    ASSERT_TRUE(pool.Open(test::PoolLabel(kExtents)).ok());
    pool::Map map;
    map.pool = test::kPoolUid;
    map.disks = std::move(disks);
    ASSERT_TRUE(pool.WriteMap(std::move(map)).ok());
  }
  UringOptions Options(const pool::MapDisk& disk, AccessMode mode = AccessMode::kReadWrite) const {
    UringOptions options(block::DiskShape("disks/p", BytesOf(disk), 512, 4096), path_, mode);
    options.placement = test::PlacementOf(disk);
    options.lock_wait_ns = 50 * kNsPerMs;
    return options;
  }
  std::unique_ptr<block::Device> Open(const pool::MapDisk& disk, AccessMode mode = AccessMode::kReadWrite) {
    auto opened = host_.Open(Options(disk, mode));
    if (!opened) ADD_FAILURE() << opened.error().message;
    CLEAT_CHECK(opened.ok());
    return std::move(opened).value();
  }
  Status Acquire(block::Device& device, AccessMode mode = AccessMode::kReadWrite) {
    return host_.Await(device.Acquire(mode));
  }
  Status Extend(block::Device& device, const pool::ExtentRuns& extents) {
    return host_.Await(device.Extend(extents));
  }
  Status Grow(block::Device& device, const pool::MapDisk& to) {
    CLEAT_TRY(Extend(device, to.extents));
    return host_.Await(device.Resize(BytesOf(to)));
  }
  static void ExpectError(const Status& status, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
  // Somebody else with a file of his own.
  bool IsFree(uint32_t extent, short type = F_WRLCK) const {
    const UniqueFd fd(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    return Lock(fd, extent, type);
  }
  static bool Lock(const UniqueFd& fd, uint32_t extent, short type) {
    struct flock range {};
    range.l_type = type;
    range.l_whence = SEEK_SET;
    range.l_start = static_cast<off_t>(pool::kDataOffset + extent * kPoolExtentBytes);
    range.l_len = kPoolExtentBytes;
    return fcntl(fd.get(), F_OFD_SETLK, &range) == 0;
  }
  std::vector<uint8_t> Read(uint64_t at, uint64_t bytes) const {
    std::vector<uint8_t> data(bytes);
    const UniqueFd fd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(pread(fd.get(), data.data(), bytes, static_cast<off_t>(at)), static_cast<ssize_t>(bytes));
    return data;
  }

  // For a thread of its own.
  Reactor& AddReactor() {
    Reactor::Options options;
    options.name = "io" + std::to_string(reactors_.size() + 1);
    options.spin_ns = 0;
    reactors_.push_back(std::move(Reactor::Make(clock_, options)).value());
    CLEAT_CHECK(host_.hub().AddReactor(*reactors_.back()).ok());
    return *reactors_.back();
  }

  const MonotonicClock clock_;
  std::vector<std::unique_ptr<Reactor>> reactors_;
  test::UringHost host_;  // whose rings go before their reactors
  test::ScratchFolder folder_;
  std::string path_;
};

// ---- What is locked

TEST_F(UringGrowth, TheNewExtentsAreLockedBesideTheOthers) {
  const auto device = Open(kSmall);
  ASSERT_TRUE(Acquire(*device).ok());
  EXPECT_TRUE(IsFree(3) && IsFree(9));
  WriteMap({kGrown, kNeighbour});
  const Status grown = Grow(*device, kGrown);
  ASSERT_TRUE(grown.ok()) << grown.error().message;
  EXPECT_EQ(device->geometry().size_bytes, BytesOf(kGrown));
  for (const uint32_t extent : {5U, 2U, 3U, 9U}) EXPECT_FALSE(IsFree(extent)) << extent;
  for (const uint32_t extent : {0U, 1U, 4U, 6U, 7U, 8U, 10U, 11U}) EXPECT_TRUE(IsFree(extent)) << extent;
  EXPECT_TRUE(Grow(*device, kGrown).ok()) << "again is nothing new";
  ASSERT_TRUE(host_.Await(device->Release()).ok());
  for (const uint32_t extent : {5U, 2U, 3U, 9U}) EXPECT_TRUE(IsFree(extent)) << extent;
  ASSERT_TRUE(Acquire(*device).ok());
  for (const uint32_t extent : {5U, 2U, 3U, 9U}) EXPECT_FALSE(IsFree(extent)) << extent;
}

TEST_F(UringGrowth, ADiskThatIsNotOwnedLocksNothingYet) {
  const auto device = Open(kSmall);
  WriteMap({kGrown, kNeighbour});
  ASSERT_TRUE(Grow(*device, kGrown).ok());
  for (const uint32_t extent : {5U, 2U, 3U, 9U}) EXPECT_TRUE(IsFree(extent)) << extent;
  ASSERT_TRUE(Acquire(*device).ok());
  for (const uint32_t extent : {5U, 2U, 3U, 9U}) EXPECT_FALSE(IsFree(extent)) << extent;
}

TEST_F(UringGrowth, ReadersGrowTogether) {
  const auto one = Open(kSmall, AccessMode::kReadOnly);
  const auto other = Open(kSmall, AccessMode::kReadOnly);
  WriteMap({kGrown, kNeighbour});
  for (block::Device* device : {one.get(), other.get()}) {
    ASSERT_TRUE(Acquire(*device, AccessMode::kReadOnly).ok());
    ASSERT_TRUE(Grow(*device, kGrown).ok());
  }
  for (const uint32_t extent : {5U, 2U, 3U, 9U}) {
    EXPECT_TRUE(IsFree(extent, F_RDLCK)) << extent;
    EXPECT_FALSE(IsFree(extent)) << extent;
  }
}

// ---- What is refused leaves the disk as it was

TEST_F(UringGrowth, AnExtentThatAnotherHasLockedIsWaitedFor) {
  const auto device = Open(kSmall);
  ASSERT_TRUE(Acquire(*device).ok());
  WriteMap({kGrown, kNeighbour});
  {
    const UniqueFd other(open(path_.c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(Lock(other, 9, F_WRLCK));
    ExpectError(Extend(*device, kGrown.extents), ErrorCode::kFailedPrecondition, "is locked by");
    EXPECT_TRUE(IsFree(3)) << "all of them, or none";
    EXPECT_FALSE(IsFree(5) || IsFree(2)) << "what it had it keeps";
    ExpectError(host_.Await(device->Resize(BytesOf(kGrown))), ErrorCode::kFailedPrecondition, "its extents");
    EXPECT_EQ(device->geometry().size_bytes, BytesOf(kSmall));
  }
  EXPECT_TRUE(Grow(*device, kGrown).ok());
}

TEST_F(UringGrowth, TheMapOnTheDriveIsWaitedFor) {
  const auto device = Open(kSmall);
  ASSERT_TRUE(Acquire(*device).ok());
  ExpectError(Extend(*device, kGrown.extents), ErrorCode::kUnavailable, "does not have the disk");
  EXPECT_TRUE(IsFree(3) && IsFree(9));
  // The extents are another's by what the drive says.
  pool::MapDisk other = kNeighbour;
  other.extents.push_back({9, 1});
  WriteMap({kSmall, other});
  ExpectError(Extend(*device, kGrown.extents), ErrorCode::kUnavailable, "does not have the disk");
  EXPECT_TRUE(IsFree(3) && IsFree(9));
  EXPECT_FALSE(IsFree(5) || IsFree(2));
  WriteMap({kGrown, kNeighbour});
  EXPECT_TRUE(Grow(*device, kGrown).ok());
}

TEST_F(UringGrowth, WhatItHasStaysWhereItIs) {
  const auto device = Open(kSmall);
  ASSERT_TRUE(Acquire(*device).ok());
  for (const pool::ExtentRuns& wrong : std::vector<pool::ExtentRuns>{
           {{5, 1}}, {{2, 1}, {5, 1}, {9, 1}}, {{5, 1}, {3, 1}, {9, 1}}, {{5, 1}, {2, 1}, {5, 1}}}) {
    ExpectError(Extend(*device, wrong), ErrorCode::kInvalidArgument, "not those that it has");
  }
  EXPECT_TRUE(Extend(*device, {{5, 1}, {2, 1}}).ok()) << "those that it has";
  EXPECT_TRUE(IsFree(3) && IsFree(9));
  const auto whole = std::move(host_.Open(folder_.MakeFile("plain", kMiB), kMiB).value());
  ExpectError(Extend(*whole, {{0, 1}}), ErrorCode::kInvalidArgument, "no disk of a pool");
}

// An engine that was told before the disk grew, and takes it over afterwards.
TEST_F(UringGrowth, ADiskThatHasGrownSinceIsOpenedWithWhatItHad) {
  WriteMap({kGrown, kNeighbour});
  const auto device = Open(kSmall);
  ASSERT_TRUE(Acquire(*device).ok());
  EXPECT_TRUE(Grow(*device, kGrown).ok());
  pool::MapDisk shifted = kSmall;
  shifted.extents = {{2, 2}};
  EXPECT_FALSE(host_.Open(Options(shifted)).ok()) << "some of the disk's, and not its first";
}

// ---- Under load

// One of the disk's channels, with a thread of its own that verifies what it writes: first around an old extent's end, and across the old end
// of the disk as soon as the channel has the new size.
class Guest {
 public:
  Guest(Reactor& reactor, block::Pipeline& pipeline, uint64_t number)
      : reactor_(reactor), pipeline_(pipeline), number_(number) {}
  void Start() {
    thread_ = std::thread([this] { Run(); });
    opened_.wait(false);
  }
  void Stop() {
    stop_ = true;
    thread_.join();
  }
  void AwaitRounds(int more) {
    const int goal = rounds_ + more;
    for (int seen = rounds_; seen < goal; seen = rounds_) rounds_.wait(seen);
  }

  static constexpr uint64_t kPartBytes = kMiB;
  uint64_t old_from() const { return kPoolExtentBytes + number_ * 2 * kMiB; }
  // The two guests' parts meet at the old end of the disk.
  uint64_t new_from() const { return BytesOf(kSmall) - kPartBytes + number_ * kPartBytes; }
  const std::vector<uint8_t>& old_part() const { return old_part_; }
  const std::vector<uint8_t>& new_part() const { return new_part_; }

 private:
  void Run() {
    test::TestDisk disk(pipeline_, reactor_, [this] { reactor_.RunOnce(); });
    opened_ = true;
    opened_.notify_all();
    test::RandomLoad old_load(disk, number_, old_from(), kPartBytes);
    test::RandomLoad new_load(disk, number_ + 10, new_from(), kPartBytes);
    while (!stop_) {
      old_load.Run(40);
      if (disk.channel().geometry().size_bytes == BytesOf(kGrown)) new_load.Run(40);
      ++rounds_;
      rounds_.notify_all();
    }
    old_part_ = old_load.reference();
    new_part_ = new_load.reference();
  }

  Reactor& reactor_;
  block::Pipeline& pipeline_;
  const uint64_t number_;
  std::vector<uint8_t> old_part_;
  std::vector<uint8_t> new_part_;
  std::atomic<bool> opened_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<int> rounds_ = 0;
  std::thread thread_;
};

class UringGrowthUnderLoad : public UringGrowth {
 protected:
  UringGrowthUnderLoad() : UringGrowth(test::DiskFolder()) {}
};

TEST_F(UringGrowthUnderLoad, EachChannelTakesTheNewExtentsInItsTurn) {
  const auto before = Read(0, pool::kDataOffset);
  auto made = block::Pipeline::Make(Open(kSmall), AccessMode::kReadWrite);
  ASSERT_TRUE(made.ok());
  const std::unique_ptr<block::Pipeline> pipeline = std::move(*made);
  ASSERT_TRUE(host_.Await(pipeline->Acquire()).ok());
  std::array guests{std::make_unique<Guest>(AddReactor(), *pipeline, 0),
                    std::make_unique<Guest>(AddReactor(), *pipeline, 1)};
  for (const auto& guest : guests) guest->Start();
  for (const auto& guest : guests) guest->AwaitRounds(1);
  WriteMap({kGrown, kNeighbour});
  EXPECT_TRUE(host_.Await(pipeline->Extend(kGrown.extents)).ok());
  for (const auto& guest : guests) guest->AwaitRounds(1);  // with the old size
  EXPECT_TRUE(host_.Await(pipeline->Resize(BytesOf(kGrown))).ok());
  for (const auto& guest : guests) guest->AwaitRounds(3);
  for (const auto& guest : guests) guest->Stop();
  for (const auto& guest : guests) {
    EXPECT_TRUE(Read(OnDrive(kGrown, guest->old_from()), Guest::kPartBytes) == guest->old_part());
    EXPECT_TRUE(Read(OnDrive(kGrown, guest->new_from()), Guest::kPartBytes) == guest->new_part());
  }
  const std::vector<uint8_t> nothing(2 * kMiB);
  for (const uint64_t extent : {4, 6, 8, 10}) {
    EXPECT_TRUE(Read(pool::kDataOffset + extent * kPoolExtentBytes, nothing.size()) == nothing) << extent;
  }
  EXPECT_TRUE(
      Read(0, pool::kMapOffsets[0]) ==
      std::vector<uint8_t>(before.begin(), before.begin() + static_cast<ptrdiff_t>(pool::kMapOffsets[0])))
      << "labels were written";
}

}  // namespace
}  // namespace cleat::modules::uring_growth_test
