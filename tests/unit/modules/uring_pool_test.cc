// SPDX-License-Identifier: Apache-2.0
// Disks of a pool, whose drive is a file.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "pool/layout.h"
#include "tests/unit/modules/loop_device.h"
#include "tests/unit/modules/pool_file.h"
#include "tests/unit/modules/uring_fixture.h"

namespace cleat::modules::uring_pool_test {
namespace {

using block::AccessMode;
using block::IoStatus;
using block::Op;
using test::BytesOf;
using test::Io;
using test::kPoolExtentBytes;
using test::OnDrive;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kExtents = 12;
constexpr uint64_t kAroundBytes = kMiB;  // that are used around each end of an extent

// Extents among each other's, not in the drive's order; two lie side by side.
std::vector<pool::MapDisk> Disks() {
  return {{.identity = 11, .deleted = false, .extents = {{5, 1}, {2, 2}, {9, 1}}, .description = {}},
          {.identity = 12, .deleted = false, .extents = {{4, 1}, {0, 1}, {8, 1}, {1, 1}}, .description = {}},
          {.identity = 13, .deleted = false, .extents = {{10, 1}, {7, 1}, {6, 1}}, .description = {}},
          {.identity = 14, .deleted = true, .extents = {{11, 1}}, .description = {}}};
}

struct Place {
  const char* name;
  std::string folder;
  uint32_t block;
  bool direct;
};

class PoolRig {
 public:
  explicit PoolRig(const std::string& folder) : folder_(folder) {
    if (!folder_.made()) return;
    path_ = folder_.MakeFile("drive", test::PoolFileBytes(kExtents));
    test::MakePool(path_, kExtents, Disks());
  }

  bool made() const { return folder_.made(); }
  const std::string& path() const { return path_; }
  test::UringHost& host() { return host_; }

  UringOptions Options(const pool::MapDisk& disk, AccessMode mode = AccessMode::kReadWrite) const {
    UringOptions options(block::DiskShape("disks/p", BytesOf(disk), 512, 4096), path_, mode);
    options.placement = test::PlacementOf(disk);
    options.lock_wait_ns = 100 * kNsPerMs;
    return options;
  }
  std::unique_ptr<block::Device> MustOpen(const UringOptions& options) {
    auto opened = host_.Open(options);
    if (!opened) ADD_FAILURE() << opened.error().message;
    CLEAT_CHECK(opened.ok());
    return std::move(opened).value();
  }
  Status Acquire(const std::unique_ptr<block::Device>& device, AccessMode mode = AccessMode::kReadWrite) {
    return host_.Await(device->Acquire(mode));
  }
  // Bytes of the drive, by another open file.
  std::vector<uint8_t> Read(uint64_t at, uint64_t bytes) const {
    std::vector<uint8_t> data(bytes);
    const UniqueFd fd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(pread(fd.get(), data.data(), bytes, static_cast<off_t>(at)), static_cast<ssize_t>(bytes));
    return data;
  }

 private:
  test::UringHost host_;
  test::ScratchFolder folder_;
  std::string path_;
};

class UringPool : public testing::TestWithParam<Place> {
 protected:
  void SetUp() override {
    if (!rig_.made()) GTEST_SKIP() << "no folder can be made in " << GetParam().folder;
  }
  std::unique_ptr<test::TestDisk> OpenDisk(const pool::MapDisk& disk) {
    UringOptions options = rig_.Options(disk);
    options.shape.logical_block_bytes = GetParam().block;
    options.direct_io = GetParam().direct;
    return std::make_unique<test::TestDisk>(rig_.MustOpen(options), rig_.host().reactor(),
                                            [this] { rig_.host().reactor().RunOnce(); });
  }
  PoolRig rig_{GetParam().folder};
};

INSTANTIATE_TEST_SUITE_P(Places, UringPool,
                         testing::Values(Place{"memory512", test::MemoryFolder(), 512, true},
                                         Place{"direct512", test::DiskFolder(), 512, true},
                                         Place{"direct4096", test::DiskFolder(), 4096, true},
                                         Place{"buffered512", test::DiskFolder(), 512, false}),
                         [](const auto& place) { return std::string(place.param.name); });

// A load around the end of one of a disk's extents, or its beginning.
struct Around {
  Around(const pool::MapDisk& d, test::TestDisk& opened, uint64_t from_bytes)
      : disk(d), from(from_bytes), load(opened, d.identity + from_bytes, from_bytes, kAroundBytes) {}
  const pool::MapDisk& disk;
  const uint64_t from;
  test::RandomLoad load;
};

// What is on the drive and in none of the loads' places: label, maps, and nothing. A byte at a time would be most of this test's time.
void ExpectNothingElse(const std::string& path, const std::vector<std::pair<uint64_t, uint64_t>>& used) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::vector<uint8_t> zeroes(kMiB);
  std::vector<uint8_t> data(kMiB);
  for (off_t at = static_cast<off_t>(pool::kDataOffset); (at = lseek(fd.get(), at, SEEK_DATA)) >= 0;) {
    const ssize_t got = pread(fd.get(), data.data(), data.size(), at);
    ASSERT_GT(got, 0);
    const auto begin = static_cast<uint64_t>(at);
    const uint64_t end = begin + static_cast<uint64_t>(got);
    for (const auto& [first, last] : used) {
      const uint64_t from = std::max(first, begin);
      const uint64_t to = std::min(last, end);
      if (from < to) std::memset(data.data() + (from - begin), 0, to - from);
    }
    ASSERT_EQ(std::memcmp(data.data(), zeroes.data(), static_cast<size_t>(got)), 0)
        << "something from byte " << begin << " to " << end << " of the drive";
    at += got;
  }
}

TEST_P(UringPool, EachDiskAgreesWithItsReferenceAndNothingElseIsTouched) {
  const auto disks = Disks();
  const auto before = rig_.Read(0, pool::kDataOffset);
  std::vector<std::unique_ptr<test::TestDisk>> opened;
  std::vector<std::unique_ptr<Around>> loads;
  for (size_t i = 0; i < 3; ++i) {
    opened.push_back(OpenDisk(disks[i]));
    ASSERT_TRUE(rig_.host().Await(opened.back()->pipeline().Acquire()).ok());
    loads.push_back(std::make_unique<Around>(disks[i], *opened[i], 0));
    for (uint64_t end = kPoolExtentBytes; end < BytesOf(disks[i]); end += kPoolExtentBytes)
      loads.push_back(std::make_unique<Around>(disks[i], *opened[i], end - kAroundBytes / 2));
    loads.push_back(std::make_unique<Around>(disks[i], *opened[i], BytesOf(disks[i]) - kAroundBytes));
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& around : loads) around->load.Run(60);
  }
  std::vector<std::pair<uint64_t, uint64_t>> used;
  for (const auto& around : loads) {
    constexpr uint64_t kHalf = kAroundBytes / 2;
    for (const uint64_t at : {uint64_t{0}, kHalf}) {
      const uint64_t on_drive = OnDrive(around->disk, around->from + at);
      used.emplace_back(on_drive, on_drive + kHalf);
      EXPECT_EQ(std::memcmp(rig_.Read(on_drive, kHalf).data(), around->load.reference().data() + at, kHalf),
                0)
          << "disk " << around->disk.identity << " at " << around->from + at;
    }
  }
  ExpectNothingElse(rig_.path(), used);
  EXPECT_TRUE(rig_.Read(0, pool::kDataOffset) == before) << "labels or maps were written";
}

// Fills a block at each of these places of the disk with `value`.
void Mark(test::TestDisk& disk, const std::vector<uint64_t>& places, uint8_t value) {
  test::Arena arena(4096);
  std::memset(arena.data(), value, 4096);
  for (const uint64_t at : places) ASSERT_EQ(disk.Do(Op::kWrite, at, 4096, &arena), IoStatus::kOk);
}

uint8_t MarkAt(test::TestDisk& disk, uint64_t at) {
  test::Arena arena(4096);
  EXPECT_EQ(disk.Do(Op::kRead, at, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + 4096, arena.data()[0]), 4096);
  return arena.data()[0];
}

// Zeroes come by fallocate, or are written where the file system has no such thing; durable or not.
TEST_P(UringPool, ZeroesAndDiscardsGoOnFromOneExtentToTheNext) {
  const auto disks = Disks();
  const auto disk = OpenDisk(disks[1]);
  const auto neighbour = OpenDisk(disks[0]);
  const uint64_t size = BytesOf(disks[1]);
  std::vector<uint64_t> places;
  for (uint64_t end = 0; end <= size; end += kPoolExtentBytes) {
    if (end > 0) places.push_back(end - 4096);
    if (end < size) places.push_back(end);
  }
  const uint64_t from = places[1];                          // the last block of the first extent
  const uint64_t until = places[places.size() - 2] + 4096;  // and the first of the last one
  const auto is_within = [&](uint64_t at) { return at >= from && at < until; };
  Mark(*neighbour, places, 'n');
  struct Kind {
    Op op;
    bool may_unmap;
    bool fua;
  };
  for (const Kind& kind : {Kind{Op::kDiscard, true, false}, Kind{Op::kWriteZeroes, true, true},
                           Kind{Op::kWriteZeroes, false, true}, Kind{Op::kWriteZeroes, false, false}}) {
    Mark(*disk, places, 'x');
    Io io;
    io.request.may_unmap = kind.may_unmap;
    io.request.fua = kind.fua;
    disk->Start(io, kind.op, from, until - from);
    ASSERT_EQ(disk->Wait(io), IoStatus::kOk);
    for (const uint64_t at : places) EXPECT_EQ(MarkAt(*disk, at), is_within(at) ? 0 : 'x') << at;
  }
  for (const uint64_t at : places) EXPECT_EQ(MarkAt(*neighbour, at), 'n') << at;
}

class UringPoolOpen : public testing::Test {
 protected:
  void ExpectRefused(const UringOptions& options, ErrorCode code, const std::vector<std::string>& parts) {
    const auto opened = rig_.host().Open(options);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(ErrorCodeName(opened.error().code), ErrorCodeName(code)) << opened.error().message;
    EXPECT_TRUE(opened.error().message.starts_with("disks/p: " + rig_.path())) << opened.error().message;
    for (const std::string& part : parts) {
      EXPECT_NE(opened.error().message.find(part), std::string::npos) << opened.error().message;
    }
  }
  UringOptions With(DiskIdentity identity, pool::ExtentRuns extents) const {
    UringOptions options = rig_.Options(disks_[0]);
    options.placement->identity = identity;
    options.placement->runs = std::move(extents);
    options.shape.size_bytes = kPoolExtentBytes;
    return options;
  }

  const std::vector<pool::MapDisk> disks_ = Disks();
  PoolRig rig_{test::DiskFolder()};
};

TEST_F(UringPoolOpen, RefusesWhatIsNotThePoolsDrive) {
  UringOptions options = rig_.Options(disks_[0]);
  options.placement->pool = {7};
  ExpectRefused(options, ErrorCode::kFailedPrecondition, {pool::TextOf({7}), pool::TextOf(test::kPoolUid)});
  options = rig_.Options(disks_[0]);
  options.placement->extent_bytes *= 2;
  ExpectRefused(options, ErrorCode::kFailedPrecondition, {"67108864", "134217728"});
  ExpectRefused(With(DiskIdentity(11), {{11, 2}}), ErrorCode::kFailedPrecondition,
                {"12 extents", "number 12"});
  options = rig_.Options(disks_[0]);
  options.shape.size_bytes += 512;
  ExpectRefused(options, ErrorCode::kFailedPrecondition, {"268435968", "268435456"});
  std::array<uint8_t, pool::kBlockBytes> nothing{};
  for (const uint64_t at : pool::kLabelOffsets)
    ASSERT_TRUE(test::WritingDrive(rig_.path()).Write(at, nothing).ok());
  ExpectRefused(rig_.Options(disks_[0]), ErrorCode::kFailedPrecondition, {"no label"});
}

TEST_F(UringPoolOpen, RefusesWhatTheMapDoesNotHaveAsTheDisks) {
  const auto not_yet = [this](const UringOptions& options) {
    ExpectRefused(options, ErrorCode::kUnavailable, {"generation 1", "tried again"});
  };
  not_yet(With(DiskIdentity(15), disks_[0].extents));               // no such disk
  not_yet(With(DiskIdentity(12), disks_[0].extents));               // another one's extents
  not_yet(With(DiskIdentity(11), {{2, 2}, {9, 1}}));                // not its first
  not_yet(With(DiskIdentity(11), {{2, 2}, {5, 1}, {9, 1}}));        // in another order
  not_yet(With(DiskIdentity(14), disks_[3].extents));               // deleted
  not_yet(With(DiskIdentity(), disks_[3].extents));                 // also when the identity is not known
  not_yet(With(DiskIdentity(), {{5, 1}, {2, 2}, {9, 1}, {4, 1}}));  // of two disks
  EXPECT_TRUE(rig_.host().Open(With(DiskIdentity(), disks_[0].extents)).ok());
  EXPECT_TRUE(rig_.host().Open(With(DiskIdentity(11), {{5, 1}, {2, 1}, {3, 1}, {9, 1}})).ok()) << "the same";
  EXPECT_TRUE(rig_.host().Open(With(DiskIdentity(11), {{5, 1}, {2, 1}})).ok()) << "it has grown since";
}

TEST_F(UringPoolOpen, WaitsForTheFirstMap) {
  std::array<uint8_t, pool::kBlockBytes> nothing{};
  for (const uint64_t at : pool::kMapOffsets)
    ASSERT_TRUE(test::WritingDrive(rig_.path()).Write(at, nothing).ok());
  ExpectRefused(rig_.Options(disks_[0]), ErrorCode::kUnavailable, {"no copy", "tried again"});
}

TEST_F(UringPoolOpen, GrowsNoFurtherThanItsExtents) {
  UringOptions options = rig_.Options(disks_[0]);
  options.shape.size_bytes = kMiB;
  const auto device = rig_.MustOpen(options);
  EXPECT_TRUE(rig_.host().Await(device->Resize(BytesOf(disks_[0]))).ok());
  const Status refused = rig_.host().Await(device->Resize(BytesOf(disks_[0]) + 512));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_NE(refused.error().message.find("268435968"), std::string::npos) << refused.error().message;
}

// ---- Who may use what

class UringPoolLocks : public UringPoolOpen {
 protected:
  void ExpectHeld(const Status& refused, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(ErrorCodeName(refused.error().code), ErrorCodeName(code)) << refused.error().message;
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  std::unique_ptr<block::Device> Open(size_t disk, AccessMode mode = AccessMode::kReadWrite) {
    return rig_.MustOpen(rig_.Options(disks_[disk], mode));
  }
  std::unique_ptr<block::Device> OpenWhole(const std::string& path, AccessMode mode) {
    UringOptions options(block::DiskShape("disks/w", kMiB, 512, 4096), path, mode);
    options.lock_wait_ns = 100 * kNsPerMs;
    return rig_.MustOpen(options);
  }
};

TEST_F(UringPoolLocks, OneWriterOfEachDiskAndNoneOfItsNeighbours) {
  const auto first = Open(0);
  const auto again = Open(0);
  const auto neighbour = Open(1);
  EXPECT_TRUE(rig_.Acquire(first).ok());
  EXPECT_TRUE(rig_.Acquire(first).ok()) << "again is nothing new";
  EXPECT_TRUE(rig_.Acquire(neighbour).ok());
  ExpectHeld(rig_.Acquire(again), ErrorCode::kFailedPrecondition, "another disk of this engine");
  EXPECT_TRUE(rig_.host().Await(neighbour->Release()).ok());
  ExpectHeld(rig_.Acquire(again), ErrorCode::kFailedPrecondition, "another disk of this engine");
  EXPECT_TRUE(rig_.Acquire(neighbour).ok()) << "nothing of another's is left locked";
  EXPECT_TRUE(rig_.host().Await(first->Release()).ok());
  EXPECT_TRUE(rig_.Acquire(again).ok());
  EXPECT_TRUE(rig_.host().Await(again->Close()).ok()) << "closing releases too";
  EXPECT_TRUE(rig_.Acquire(first).ok());
}

// A disk that was purged after it was opened, while another disk of the engine has been served from the map that has it.
TEST_F(UringPoolLocks, TheMapCountsThatTheDriveHasOnceTheLocksAreThere) {
  const auto purged = Open(0);
  EXPECT_TRUE(rig_.Acquire(Open(1)).ok());
  pool::Map map;
  map.disks = disks_;
  map.disks[0].identity = 15;  // a new disk that was given the same extents
  test::WriteMap(rig_.path(), kExtents, map);
  ExpectHeld(rig_.Acquire(purged), ErrorCode::kUnavailable, "generation 2");
  EXPECT_TRUE(rig_.Acquire(Open(1)).ok());
  const auto made = rig_.MustOpen(With(DiskIdentity(15), disks_[0].extents));
  EXPECT_TRUE(rig_.Acquire(made).ok()) << "and nothing is left locked";
}

TEST_F(UringPoolLocks, WhoHasAllOfTheDriveHasItAlone) {
  const auto disk = Open(0);
  for (const AccessMode mode : {AccessMode::kReadWrite, AccessMode::kReadOnly}) {
    const auto whole = OpenWhole(rig_.path(), mode);
    ASSERT_TRUE(rig_.Acquire(disk).ok());
    ExpectHeld(rig_.Acquire(whole, mode), ErrorCode::kFailedPrecondition, "another disk of this engine");
    ASSERT_TRUE(rig_.host().Await(disk->Release()).ok());
    ASSERT_TRUE(rig_.Acquire(whole, mode).ok());
    ExpectHeld(rig_.Acquire(disk), ErrorCode::kFailedPrecondition, "another disk of this engine");
    ASSERT_TRUE(rig_.host().Await(whole->Release()).ok());
  }
}

// On a block device all disks of a pool have the one lock that keeps out whoever wants the device.
TEST_F(UringPoolLocks, SoItIsOnABlockDevice) {
  const test::LoopDevice loop(rig_.path());
  if (!loop.made()) GTEST_SKIP() << "this needs root and a loop device";
  const auto open_on_device = [&](size_t disk) {
    UringOptions options = rig_.Options(disks_[disk]);
    options.path = loop.path();
    return rig_.MustOpen(options);
  };
  const auto disk = open_on_device(0);
  const auto again = open_on_device(0);
  const auto neighbour = open_on_device(1);
  const auto whole = OpenWhole(loop.path(), AccessMode::kReadWrite);
  ASSERT_TRUE(rig_.Acquire(disk).ok());
  ASSERT_TRUE(rig_.Acquire(neighbour).ok());
  ExpectHeld(rig_.Acquire(again), ErrorCode::kFailedPrecondition, "another disk of this engine");
  ASSERT_TRUE(rig_.host().Await(disk->Release()).ok());
  ExpectHeld(rig_.Acquire(whole), ErrorCode::kFailedPrecondition, "another disk of this engine");
  ASSERT_TRUE(rig_.host().Await(neighbour->Release()).ok());
  ASSERT_TRUE(rig_.Acquire(whole).ok());
  ExpectHeld(rig_.Acquire(disk), ErrorCode::kFailedPrecondition, "another disk of this engine");
  ASSERT_TRUE(rig_.host().Await(whole->Release()).ok());
  // The process that looks after the pool has the device to itself, and does not keep the pool's disks out.
  const UniqueFd claim(open(loop.path().c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
  ASSERT_TRUE(claim);
  EXPECT_TRUE(rig_.Acquire(again).ok());
  ExpectHeld(rig_.Acquire(whole), ErrorCode::kFailedPrecondition, "another disk of this engine");
  ASSERT_TRUE(rig_.host().Await(again->Release()).ok());
  ExpectHeld(rig_.Acquire(whole), ErrorCode::kFailedPrecondition, "in use");
}

TEST_F(UringPoolLocks, ReadersShareADiskAndLateReadsAreThatDisksAlone) {
  const auto reader = Open(0, AccessMode::kReadOnly);
  const auto other = Open(0, AccessMode::kReadOnly);
  const auto same = Open(0, AccessMode::kReadOnly);
  const auto same_of_neighbour = Open(1, AccessMode::kReadOnly);
  for (block::Device* device : {reader.get(), same.get(), same_of_neighbour.get()})
    device->SetUser("controllers/a target 0");
  other->SetUser("controllers/b target 0");
  for (const auto* device : {&reader, &other, &same_of_neighbour})
    EXPECT_TRUE(rig_.Acquire(*device, AccessMode::kReadOnly).ok());
  ExpectHeld(rig_.Acquire(same, AccessMode::kReadOnly), ErrorCode::kUnavailable, "last reads");
  const auto writer = Open(0);
  EXPECT_FALSE(rig_.Acquire(writer).ok());
  EXPECT_TRUE(rig_.Acquire(Open(2)).ok());
  for (const auto* device : {&reader, &other}) EXPECT_TRUE(rig_.host().Await((*device)->Release()).ok());
  EXPECT_TRUE(rig_.Acquire(writer).ok());
}

// Another process locks one extent, and says so.
class Stranger {
 public:
  Stranger(const std::string& path, uint64_t extent) {
    int ends[2];
    CLEAT_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd output(ends[0]);
    UniqueFd input(ends[1]);
    pid_ = fork();
    if (pid_ == 0) {
      const UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
      struct flock range {};
      range.l_type = F_WRLCK;
      range.l_start = static_cast<off_t>(pool::kDataOffset + extent * kPoolExtentBytes);
      range.l_len = kPoolExtentBytes;
      const char result = fcntl(fd.get(), F_OFD_SETLK, &range) == 0 ? 'y' : 'n';
      [[maybe_unused]] const ssize_t written = write(input.get(), &result, 1);
      for (;;) pause();
    }
    input.Reset();
    char result = 0;
    locked_ = read(output.get(), &result, 1) == 1 && result == 'y';
  }
  ~Stranger() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  bool locked() const { return locked_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  bool locked_ = false;
};

TEST_F(UringPoolLocks, AnotherProcessIsInTheWayOfWhatItHasAlone) {
  const auto disk = Open(0);
  const auto neighbour = Open(1);
  {
    const Stranger stranger(rig_.path(), disks_[0].extents.back().first);
    ASSERT_TRUE(stranger.locked());
    ASSERT_TRUE(rig_.Acquire(neighbour).ok());
    ExpectHeld(rig_.Acquire(disk), ErrorCode::kUnavailable,
               "locked by process " + std::to_string(stranger.pid()));
  }
  const Status granted = rig_.Acquire(disk);
  ASSERT_TRUE(granted.ok()) << granted.error().message;
  // The other process is kept out of what it does not have, and of that alone.
  const Stranger late(rig_.path(), disks_[0].extents[1].first + 1);
  EXPECT_FALSE(late.locked());
  const Stranger free(rig_.path(), disks_[2].extents[0].first);
  EXPECT_TRUE(free.locked());
}

}  // namespace
}  // namespace cleat::modules::uring_pool_test
