// SPDX-License-Identifier: Apache-2.0
#include "modules/ram/ram.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/unit/modules/test_disk.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::modules::ram_test {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint64_t kRamBytes = 4 << 20;

UniqueFd MakeMemfd(uint64_t bytes) {
  UniqueFd fd(memfd_create("ram_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  return fd;
}

class Ram : public testing::Test {
 protected:
  Result<std::unique_ptr<block::Device>> Open(uint64_t bytes, uint32_t block = 512) {
    RamOptions options(block::DiskShape("disks/m", bytes, block, 4096), memfd_.Duplicate());
    return reactors_.Await(OpenRam(std::move(options), blocking_));
  }
  std::unique_ptr<test::TestDisk> OpenDisk(uint32_t block = 512) {
    auto opened = Open(kRamBytes, block);
    CLEAT_CHECK(opened.ok());
    return std::make_unique<test::TestDisk>(std::move(opened).value(), reactors_[0],
                                            [this] { ++turns_, reactors_[0].RunOnce(); });
  }
  uint64_t UsedBytes() const {
    struct stat status {};
    fstat(memfd_.get(), &status);
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }

  // How many turns of its reactor a request takes.
  int TurnsOf(test::TestDisk& disk, Op op, uint64_t offset, uint64_t length, test::Arena& arena) {
    turns_ = 0;
    EXPECT_EQ(disk.Do(op, offset, length, &arena), IoStatus::kOk);
    return turns_;
  }

  int turns_ = 0;
  test::VirtualReactors reactors_;
  BlockingPool blocking_{0};
  UniqueFd memfd_ = MakeMemfd(kRamBytes);
};

TEST_F(Ram, AgreesWithTheReference) {
  for (const uint32_t block : {512U, 4096U}) {
    memfd_ = MakeMemfd(kRamBytes);
    const auto disk = OpenDisk(block);
    test::RandomLoad load(*disk, block, 0, kRamBytes);
    load.Run(3000);
    std::vector<uint8_t> content(kRamBytes);
    ASSERT_EQ(pread(memfd_.get(), content.data(), kRamBytes, 0), static_cast<ssize_t>(kRamBytes));
    EXPECT_EQ(content, load.reference()) << "the keeper of the memfd has the content";
  }
}

TEST_F(Ram, ContentOutlivesTheDevice) {
  test::Arena arena(8192);
  auto first = OpenDisk();
  std::memset(arena.data(), 'x', 4096);
  EXPECT_EQ(first->Do(Op::kWrite, 512, 4096, &arena), IoStatus::kOk);
  first->CloseChannel();
  EXPECT_TRUE(reactors_.Await(first->pipeline().Close()).ok());
  first.reset();
  EXPECT_EQ(OpenDisk()->Do(Op::kRead, 512, 4096, &arena, 4096), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), arena.data() + 4096, 4096), 0);
}

TEST_F(Ram, DiscardGivesMemoryBackAndZeroesRead) {
  constexpr uint64_t kChunk = kRamZeroBytesMax;
  const auto disk = OpenDisk();
  test::Arena arena(kChunk);
  for (const bool may_unmap : {true, false}) {
    for (uint64_t offset = 0; offset < kRamBytes; offset += kChunk) {
      std::memset(arena.data(), 'x', kChunk);
      ASSERT_EQ(disk->Do(Op::kWrite, offset, kChunk, &arena), IoStatus::kOk);
    }
    EXPECT_EQ(UsedBytes(), kRamBytes);
    test::Io zeroes;
    zeroes.request.may_unmap = may_unmap;
    disk->Start(zeroes, Op::kWriteZeroes, 512, kChunk);  // not on page borders
    EXPECT_EQ(disk->Wait(zeroes), IoStatus::kOk);
    EXPECT_EQ(UsedBytes() < kRamBytes, may_unmap);
    ASSERT_EQ(disk->Do(Op::kRead, 0, kChunk, &arena), IoStatus::kOk);
    EXPECT_EQ(std::count(arena.data(), arena.data() + kChunk, 'x'), 512);
    ASSERT_EQ(disk->Do(Op::kRead, 512 + kChunk, 512, &arena), IoStatus::kOk);
    EXPECT_EQ(std::count(arena.data(), arena.data() + 512, 'x'), 512);
  }
  for (uint64_t offset = 0; offset < kRamBytes; offset += kChunk) {
    EXPECT_EQ(disk->Do(Op::kDiscard, offset, kChunk), IoStatus::kOk);
  }
  EXPECT_EQ(UsedBytes(), 0U);
  EXPECT_EQ(disk->Do(Op::kDiscard, 0, 2 * kChunk), IoStatus::kInvalid) << "bounded";
}

TEST_F(Ram, CopiesNoMoreThanAPieceOfALargeRequestInATurn) {
  constexpr uint64_t kPieces = 8;
  const auto disk = OpenDisk();
  test::Arena arena(kPieces * kRamPieceBytes);
  for (const Op op : {Op::kWrite, Op::kRead}) {
    EXPECT_EQ(TurnsOf(*disk, op, 512, kRamPieceBytes, arena), 0) << "one piece is over at once";
    EXPECT_GE(TurnsOf(*disk, op, 512, kRamPieceBytes + 512, arena), 2);
    EXPECT_GE(TurnsOf(*disk, op, 512, kPieces * kRamPieceBytes, arena), static_cast<int>(kPieces));
  }
  // Two at the same time have a piece a turn between them, and a small one does not wait for them.
  test::Io first;
  test::Io second;
  for (test::Io* io : {&first, &second}) {
    io->segments = {{&arena.region(), 0, static_cast<uint32_t>(2 * kRamPieceBytes)}};
    disk->Start(*io, Op::kWrite, io == &first ? 0 : 2 * kRamPieceBytes, 2 * kRamPieceBytes);
  }
  test::Arena small(4096);
  EXPECT_EQ(TurnsOf(*disk, Op::kRead, 0, 4096, small), 0);
  turns_ = 0;
  EXPECT_EQ(disk->Wait(first), IoStatus::kOk);
  EXPECT_FALSE(second.done);
  EXPECT_EQ(disk->Wait(second), IoStatus::kOk);
  EXPECT_GE(turns_, 4);
}

// Cut anywhere: in the middle of a segment, and where the guest's memory has a border.
TEST_F(Ram, PiecesOfALargeRequestAreWhereTheyBelong) {
  const auto disk = OpenDisk();
  constexpr uint64_t kBytes = 3 * kRamPieceBytes + 1024;
  test::Arena arena(2 * kBytes);
  for (uint64_t i = 0; i < kBytes; ++i) arena.data()[i] = static_cast<uint8_t>(i * 7 / 5);
  const auto cut = [&arena](uint64_t from) {
    std::vector<block::Segment> segments;
    constexpr uint64_t kSegment = 100'000;
    for (uint64_t at = 0; at < kBytes; at += kSegment)
      segments.push_back(
          {&arena.region(), from + at, static_cast<uint32_t>(std::min(kSegment, kBytes - at))});
    return segments;
  };
  test::Io write;
  write.segments = cut(0);
  disk->Start(write, Op::kWrite, 4096, kBytes);
  ASSERT_EQ(disk->Wait(write), IoStatus::kOk);
  test::Io read;
  read.segments = cut(kBytes);
  disk->Start(read, Op::kRead, 4096, kBytes);
  ASSERT_EQ(disk->Wait(read), IoStatus::kOk);
  EXPECT_EQ(std::memcmp(arena.data(), arena.data() + kBytes, kBytes), 0);
}

TEST_F(Ram, RefusesAMemfdThatIsTooSmall) {
  const auto opened = Open(kRamBytes + 512);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  for (const std::string& part :
       {std::string("disks/m"), std::to_string(kRamBytes), std::to_string(kRamBytes + 512)}) {
    EXPECT_NE(opened.error().message.find(part), std::string::npos) << opened.error().message;
  }
}

TEST_F(Ram, GrowsWithItsMemory) {
  const auto disk = OpenDisk();
  test::Arena arena(4096);
  std::memset(arena.data(), 'x', 4096);
  EXPECT_EQ(disk->Do(Op::kWrite, kRamBytes - 4096, 4096, &arena), IoStatus::kOk);
  const Status early = reactors_.Await(disk->pipeline().Resize(2 * kRamBytes));
  ASSERT_FALSE(early.ok());
  EXPECT_EQ(early.error().code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(disk->Do(Op::kWrite, kRamBytes, 4096, &arena), IoStatus::kInvalid);

  ASSERT_EQ(ftruncate(memfd_.get(), 2 * kRamBytes), 0);
  EXPECT_TRUE(reactors_.Await(disk->pipeline().Resize(2 * kRamBytes)).ok());
  EXPECT_EQ(disk->Do(Op::kWrite, 2 * kRamBytes - 4096, 4096, &arena), IoStatus::kOk);
  std::memset(arena.data(), 0, 4096);
  EXPECT_EQ(disk->Do(Op::kRead, kRamBytes - 4096, 4096, &arena), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + 4096, 'x'), 4096) << "the old content is there";
}

TEST_F(Ram, ItsMemoryCannotShrinkUnderIt) {
  const auto disk = OpenDisk();
  EXPECT_NE(ftruncate(memfd_.get(), 4096), 0);
}

}  // namespace
}  // namespace cleat::modules::ram_test
