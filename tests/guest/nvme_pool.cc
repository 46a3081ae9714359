// SPDX-License-Identifier: Apache-2.0
// Disks of a pool by the commands of its drive. A part of the program nvme_namespace.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/guest/nvme_host.h"
#include "tests/unit/modules/pool_file.h"

namespace cleat::modules::nvme_namespace {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint32_t kPoolExtents = 6;

std::vector<pool::MapDisk> PoolDisks() {
  return {{.identity = 21, .deleted = false, .extents = {{4, 1}, {1, 2}}, .description = {}},
          {.identity = 22, .deleted = false, .extents = {{3, 1}, {0, 1}, {5, 1}}, .description = {}}};
}

class NamespacePool : public testing::TestWithParam<Drive> {
 protected:
  void SetUp() override { test::MakePool(path_, kPoolExtents, PoolDisks()); }
  std::unique_ptr<block::Device> Open(const pool::MapDisk* disk) {
    const uint64_t bytes = disk != nullptr ? test::BytesOf(*disk) : test::PoolFileBytes(kPoolExtents);
    UringOptions options(block::DiskShape("disks/p", bytes, GetParam().block, 4096), path_,
                         AccessMode::kReadWrite);
    options.lock_wait_ns = 100 * kNsPerMs;
    if (disk != nullptr) options.placement = test::PlacementOf(*disk);
    auto opened = host_.Await(OpenFileDisk(std::move(options), host_.hub(), host_.blocking()));
    if (!opened) ADD_FAILURE() << opened.error().message;
    CLEAT_CHECK(opened.ok());
    EXPECT_TRUE((*opened)->io_path().starts_with("NVMe commands (/dev/ng")) << (*opened)->io_path();
    return std::move(opened).value();
  }
  std::unique_ptr<test::TestDisk> OpenAsDisk(const pool::MapDisk* disk) {
    return std::make_unique<test::TestDisk>(Open(disk), host_.reactor(),
                                            [this] { host_.reactor().RunOnce(); });
  }
  const std::string path_ = PathIn(GetParam().variable);
  const std::vector<pool::MapDisk> disks_ = PoolDisks();
  Host host_;
};

INSTANTIATE_TEST_SUITE_P(Blocks, NamespacePool,
                         testing::Values(Drive{"CLEAT_NVME", 512}, Drive{"CLEAT_NVME_4K", 4096}),
                         [](const auto& drive) { return "of" + std::to_string(drive.param.block); });

// Around each end of an extent, both disks in turns; then what the drive has where it is to be.
TEST_P(NamespacePool, EachDiskHasItsOwnExtents) {
  constexpr uint64_t kHalf = kMiB / 2;
  std::vector<std::unique_ptr<test::TestDisk>> opened;
  struct Around {
    const pool::MapDisk& disk;
    uint64_t from;
    std::unique_ptr<test::RandomLoad> load;
  };
  std::vector<Around> loads;
  for (const pool::MapDisk& disk : disks_) {
    test::TestDisk& one = *opened.emplace_back(OpenAsDisk(&disk));
    ASSERT_TRUE(host_.Await(one.pipeline().Acquire()).ok());
    for (uint64_t end = test::kPoolExtentBytes; end < test::BytesOf(disk); end += test::kPoolExtentBytes) {
      const uint64_t from = end - kHalf;
      loads.push_back({disk, from,
                       std::make_unique<test::RandomLoad>(one, from, from, 2 * kHalf,
                                                          test::RandomLoad::Discards::kNone)});
      ASSERT_EQ(one.Do(Op::kWriteZeroes, from, 2 * kHalf), IoStatus::kOk);
    }
  }
  for (int round = 0; round < 2; ++round) {
    for (const Around& around : loads) around.load->Run(80);
  }
  const auto whole = OpenAsDisk(nullptr);
  test::Arena arena(kHalf);
  for (const Around& around : loads) {
    for (const uint64_t at : {uint64_t{0}, kHalf}) {
      ASSERT_EQ(whole->Do(Op::kRead, test::OnDrive(around.disk, around.from + at), kHalf, &arena),
                IoStatus::kOk);
      EXPECT_EQ(std::memcmp(arena.data(), around.load->reference().data() + at, kHalf), 0)
          << "disk " << around.disk.identity << " at " << around.from + at;
    }
  }
  for (const auto& disk : opened) host_.Close(*disk);
  host_.Close(*whole);
}

// All of a disk at once, on a drive that was full of x: what is another's stays.
TEST_P(NamespacePool, ZeroesAndDiscardsGoOnFromOneExtentToTheNext) {
  const auto zeroed = OpenAsDisk(&disks_[0]);
  const auto other = OpenAsDisk(&disks_[1]);
  const std::vector<uint64_t> ends{0, test::kPoolExtentBytes, 2 * test::kPoolExtentBytes,
                                   3 * test::kPoolExtentBytes};
  test::Arena arena(4096);
  const auto for_each_end = [&](auto visit) {
    for (const uint64_t end : ends) {
      if (end > 0) visit(end - 4096);
      if (end < ends.back()) visit(end);
    }
  };
  for (const bool zeroes : {true, false}) {
    std::memset(arena.data(), 'x', 4096);
    for_each_end([&](uint64_t at) {
      ASSERT_EQ(zeroed->Do(Op::kWrite, at, 4096, &arena), IoStatus::kOk);
      ASSERT_EQ(other->Do(Op::kWrite, at, 4096, &arena), IoStatus::kOk);
    });
    ASSERT_EQ(zeroed->Do(zeroes ? Op::kWriteZeroes : Op::kDiscard, 4096, ends.back() - 8192), IoStatus::kOk);
    for_each_end([&](uint64_t at) {
      ASSERT_EQ(other->Do(Op::kRead, at, 4096, &arena), IoStatus::kOk);
      EXPECT_EQ(std::count(arena.data(), arena.data() + 4096, 'x'), 4096) << "at " << at;
      const bool edge = at == 0 || at == ends.back() - 4096;
      ASSERT_EQ(zeroed->Do(Op::kRead, at, 4096, &arena), IoStatus::kOk);
      if (zeroes || edge) {
        EXPECT_EQ(std::count(arena.data(), arena.data() + 4096, edge ? 'x' : 0), 4096) << "at " << at;
      }
    });
  }
  host_.Close(*zeroed);
  host_.Close(*other);
}

TEST_P(NamespacePool, DisksKeepOutThemselvesAndWhoeverHasTheDrive) {
  const auto acquire = [this](const std::unique_ptr<block::Device>& device) {
    return host_.Await(device->Acquire(AccessMode::kReadWrite));
  };
  const auto disk = Open(&disks_[0]);
  const auto again = Open(&disks_[0]);
  const auto other = Open(&disks_[1]);
  const auto whole = Open(nullptr);
  for (const auto* one : {&disk, &other}) {
    const Status granted = acquire(*one);
    ASSERT_TRUE(granted.ok()) << granted.error().message;
  }
  const Status refused = acquire(again);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("another disk of this engine"), std::string::npos)
      << refused.error().message;
  EXPECT_FALSE(acquire(whole).ok());
  // Both nodes are locked: who knows one of them alone is kept out by it.
  const std::string node = "/dev/ng" + path_.substr(std::strlen("/dev/nvme"));
  const uint64_t at = test::OnDrive(disks_[0], 0);
  for (const std::string& name : {path_, node}) {
    const UniqueFd file(open(name.c_str(), O_RDWR | O_CLOEXEC));
    struct flock byte {};
    byte.l_type = F_WRLCK;
    byte.l_start = static_cast<off_t>(at);
    byte.l_len = 1;
    EXPECT_NE(fcntl(file.get(), F_OFD_SETLK, &byte), 0) << name;
    byte.l_start = static_cast<off_t>(pool::kDataOffset - 1);
    EXPECT_EQ(fcntl(file.get(), F_OFD_SETLK, &byte), 0) << name << ": nobody's byte";
  }
  for (const auto* one : {&disk, &other}) ASSERT_TRUE(host_.Await((*one)->Release()).ok());
  ASSERT_TRUE(acquire(whole).ok());
  EXPECT_FALSE(acquire(disk).ok());
  for (const auto* one : {&disk, &again, &other, &whole}) EXPECT_TRUE(host_.Await((*one)->Close()).ok());
}

// What somebody wrote to the disk's extents through the block device lies in its page cache: it is not written over the disk's data later, and
// who reads there afterwards sees the disk's.
TEST_P(NamespacePool, NobodysOldPagesAreWrittenOverADisk) {
  const auto disk = OpenAsDisk(&disks_[0]);
  const uint64_t size = test::BytesOf(disks_[0]);
  std::vector<uint64_t> places;
  for (uint64_t end = 0; end < size; end += test::kPoolExtentBytes) {
    places.push_back(end);
    places.push_back(end + test::kPoolExtentBytes - 4096);
  }
  test::Arena arena(4096);
  const UniqueFd buffered(open(path_.c_str(), O_RDWR | O_CLOEXEC));
  std::memset(arena.data(), 'o', 4096);
  for (const uint64_t at : places) {
    const auto on_drive = static_cast<off_t>(test::OnDrive(disks_[0], at));
    ASSERT_EQ(pwrite(buffered.get(), arena.data(), 4096, on_drive), 4096);
  }
  ASSERT_TRUE(host_.Await(disk->pipeline().Acquire()).ok());
  std::memset(arena.data(), 'n', 4096);
  for (const uint64_t at : places) ASSERT_EQ(disk->Do(Op::kWrite, at, 4096, &arena), IoStatus::kOk);
  sync();
  for (const uint64_t at : places) {
    ASSERT_EQ(disk->Do(Op::kRead, at, 4096, &arena), IoStatus::kOk);
    EXPECT_EQ(arena.data()[0], 'n') << "at " << at;
    const auto on_drive = static_cast<off_t>(test::OnDrive(disks_[0], at));
    ASSERT_EQ(pread(buffered.get(), arena.data(), 4096, on_drive), 4096);
    EXPECT_EQ(arena.data()[0], 'n') << "through the block device, at " << at;
  }
  EXPECT_TRUE(host_.Await(disk->pipeline().Release()).ok());
  host_.Close(*disk);
}

}  // namespace
}  // namespace cleat::modules::nvme_namespace
