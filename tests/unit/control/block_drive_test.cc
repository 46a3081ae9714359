// SPDX-License-Identifier: Apache-2.0
// A pool's drive on regular files, and on a loop device where there are any.
#include "control/pools/block_drive.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/random.h"
#include "pool/pool_drive.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::block_drive_test {
namespace {

using Bytes = std::vector<uint8_t>;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBlock = pool::kBlockBytes;

Bytes AnyBytes(size_t size) {
  Random random(size);
  Bytes bytes(size);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Between(1, 255));
  return bytes;
}

Result<std::unique_ptr<BlockDrive>> OpenDrive(const std::string& path) {
  const UniqueFd found(open(path.c_str(), O_PATH | O_CLOEXEC));
  EXPECT_TRUE(found) << strerror(errno);
  return BlockDrive::Open(found, path);
}

ErrorCode WhyNotOpened(const std::string& path) {
  const auto drive = OpenDrive(path);
  if (drive.ok()) return ErrorCode::kInternal;
  EXPECT_TRUE(drive.error().message.starts_with(path)) << drive.error().message;
  return drive.error().code;
}

Bytes ReadOf(BlockDrive& drive, uint64_t offset, size_t size) {
  Bytes bytes(size);
  const Status read = drive.Read(offset, bytes);
  EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
  return bytes;
}

// What the drive promises of reads, writes and erasing, with more than one piece at a time and from memory at any address.
void ExpectKeepsBytes(BlockDrive& drive) {
  const Bytes bytes = AnyBytes(3 * kMiB + kBlock);
  Bytes moved(bytes.size() + 1);
  std::copy(bytes.begin(), bytes.end(), moved.begin() + 1);
  ASSERT_TRUE(drive.Write(kMiB, std::span(moved).subspan(1)).ok());
  ASSERT_TRUE(drive.Flush().ok());
  EXPECT_TRUE(ReadOf(drive, kMiB, bytes.size()) == bytes);

  ASSERT_TRUE(drive.Zero(kMiB + kBlock, 2 * kMiB).ok());
  ASSERT_TRUE(drive.Flush().ok());
  Bytes expected = bytes;
  std::fill_n(expected.begin() + kBlock, 2 * kMiB, 0);
  EXPECT_TRUE(ReadOf(drive, kMiB, bytes.size()) == expected);
  EXPECT_TRUE(drive.Zero(0, 0).ok());
}

class BlockDriveTest : public ::testing::Test {
 protected:
  std::string MakeFile(uint64_t size, const std::string& name = "drive") {
    std::string path = dir_ / name;
    std::ofstream(path).close();
    EXPECT_EQ(truncate(path.c_str(), static_cast<off_t>(size)), 0);
    return path;
  }
  void Put(const std::string& path, uint64_t offset, const Bytes& bytes) {
    const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }
  // The message with which CheckEmpty refuses; empty when it doesn't.
  std::string Refusal(const std::string& path) {
    const auto drive = OpenDrive(path);
    EXPECT_TRUE(drive.ok()) << drive.error().message;
    const Status empty = (*drive)->CheckEmpty();
    if (empty.ok()) return {};
    EXPECT_EQ(empty.error().code, ErrorCode::kFailedPrecondition) << empty.error().message;
    return empty.error().message;
  }

  test::TempDir dir_;
};

TEST_F(BlockDriveTest, KeepsBytesInAFile) {
  const auto drive = OpenDrive(MakeFile(8 * kMiB));
  ASSERT_TRUE(drive.ok()) << drive.error().message;
  EXPECT_FALSE((*drive)->is_block_device());
  ExpectKeepsBytes(**drive);
}

// Where there is no O_DIRECT, at least on older kernels.
TEST_F(BlockDriveTest, KeepsBytesInMemory) {
  const test::TempDir memory(test::FolderInMemory());
  const std::string path = memory / "drive";
  std::ofstream(path).close();
  ASSERT_EQ(truncate(path.c_str(), 8 * kMiB), 0);
  const auto drive = OpenDrive(path);
  ASSERT_TRUE(drive.ok()) << drive.error().message;
  ExpectKeepsBytes(**drive);
}

TEST_F(BlockDriveTest, WhatIsErasedIsGivenBack) {
  const std::string path = MakeFile(8 * kMiB);
  const auto drive = OpenDrive(path);
  ASSERT_TRUE(drive.ok());
  ASSERT_TRUE((*drive)->Write(0, AnyBytes(8 * kMiB)).ok());
  ASSERT_TRUE((*drive)->Flush().ok());
  struct stat before {};
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  ASSERT_TRUE((*drive)->Zero(0, 8 * kMiB).ok());
  ASSERT_TRUE((*drive)->Flush().ok());
  struct stat after {};
  ASSERT_EQ(stat(path.c_str(), &after), 0);
  EXPECT_LT(after.st_blocks, before.st_blocks);
  EXPECT_EQ(after.st_size, before.st_size);
}

TEST_F(BlockDriveTest, IsUsedInWholeBlocks) {
  struct Case {
    uint64_t file;
    uint64_t drive;
  };
  for (const Case& size :
       {Case{0, 0}, Case{kBlock - 1, 0}, Case{kMiB + 513, kMiB}, Case{kMiB + kBlock, kMiB + kBlock}}) {
    const auto drive = OpenDrive(MakeFile(size.file));
    ASSERT_TRUE(drive.ok()) << drive.error().message;
    EXPECT_EQ((*drive)->size_bytes(), size.drive);
    EXPECT_EQ(*pool::ReadLabel(**drive), std::nullopt);
    if (size.drive == 0) continue;
    const Bytes bytes = AnyBytes(kBlock);
    ASSERT_TRUE((*drive)->Write(size.drive - kBlock, bytes).ok());
    EXPECT_TRUE(ReadOf(**drive, size.drive - kBlock, kBlock) == bytes);
  }
}

TEST_F(BlockDriveTest, ADriveThatBecameShorterIsAnErrorAndNoZeroes) {
  const std::string path = MakeFile(4 * kMiB);
  const auto drive = OpenDrive(path);
  ASSERT_TRUE(drive.ok());
  ASSERT_EQ(truncate(path.c_str(), kMiB), 0);
  Bytes bytes(2 * kMiB);
  const Status read = (*drive)->Read(0, bytes);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_NE(read.error().message.find(path), std::string::npos) << read.error().message;
}

TEST_F(BlockDriveTest, HasOneOwnerUntilItIsClosed) {
  const std::string path = MakeFile(kMiB);
  auto first = OpenDrive(path);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_EQ(WhyNotOpened(path), ErrorCode::kUnavailable);
  first->reset();
  EXPECT_TRUE(OpenDrive(path).ok());
}

TEST_F(BlockDriveTest, AFileThatIsAWholeDiskIsRefused) {
  const std::string path = MakeFile(kMiB);
  for (const short type : {F_RDLCK, F_WRLCK}) {
    // The lock that modules/uring takes.
    const UniqueFd engine(open(path.c_str(), O_RDWR | O_CLOEXEC));
    struct flock whole {};
    whole.l_type = type;
    ASSERT_EQ(fcntl(engine.get(), F_OFD_SETLK, &whole), 0);
    EXPECT_EQ(WhyNotOpened(path), ErrorCode::kUnavailable);
  }
  const auto drive = OpenDrive(path);
  ASSERT_TRUE(drive.ok());
  const UniqueFd engine(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  EXPECT_NE(fcntl(engine.get(), F_OFD_SETLK, &whole), 0) << "nor does a pool's become one";
}

TEST_F(BlockDriveTest, IsAFileOrABlockDevice) {
  const std::string pipe = dir_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {pipe, dir_.path(), std::string("/dev/null")})
    EXPECT_EQ(WhyNotOpened(path), ErrorCode::kFailedPrecondition) << path;
}

// ---- What else a drive has

TEST_F(BlockDriveTest, NothingThatAnybodyKnowsIsEmpty) {
  const std::string path = MakeFile(16 * kMiB);
  EXPECT_EQ(Refusal(path), "");
  Put(path, 0, AnyBytes(kMiB));
  EXPECT_EQ(Refusal(path), "");
  EXPECT_EQ(Refusal(MakeFile(0, "small")), "");
}

TEST_F(BlockDriveTest, AFileSystemIsNamed) {
  const std::string path = MakeFile(16 * kMiB);
  Put(path, 1024 + 56, {0x53, 0xef});                      // magic
  Put(path, 1024 + 96, {0x40});                            // extents: ext4
  Put(path, 1024 + 120, {'b', 'a', 'c', 0x1b, 'u', 'p'});  // label
  const std::string refusal = Refusal(path);
  EXPECT_TRUE(refusal.starts_with(path + " has a file system (ext4, label bac?up): ")) << refusal;
  EXPECT_NE(refusal.find("--overwrite"), std::string::npos) << refusal;
}

TEST_F(BlockDriveTest, SwapAndPartitionsAreSomebodys) {
  const std::string swap = MakeFile(16 * kMiB, "swap");
  Put(swap, 1024, {1, 0, 0, 0, 255, 0, 0, 0});
  const std::string magic = "SWAPSPACE2";
  Put(swap, kBlock - magic.size(), Bytes(magic.begin(), magic.end()));
  EXPECT_NE(Refusal(swap).find("(swap)"), std::string::npos);

  const std::string table = MakeFile(16 * kMiB, "table");
  Put(table, 446, {0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0});  // from sector 2048 on, 4096 of them
  Put(table, 510, {0x55, 0xaa});
  EXPECT_NE(Refusal(table).find("a partition table (dos)"), std::string::npos);
}

// What was written past the page cache counts.
TEST_F(BlockDriveTest, WhatThePoolWroteOverIsGone) {
  const std::string path = MakeFile(16 * kMiB);
  Put(path, 1024 + 56, {0x53, 0xef});
  EXPECT_NE(Refusal(path), "");
  {
    const auto drive = OpenDrive(path);
    ASSERT_TRUE(drive.ok());
    ASSERT_TRUE((*drive)->Write(0, Bytes(kBlock)).ok());
    EXPECT_TRUE((*drive)->CheckEmpty().ok());
  }
  EXPECT_EQ(Refusal(path), "");
}

// ---- A whole pool

pool::Label ALabel() {
  pool::Label label;
  label.pool.fill(1);
  label.host.fill(2);
  label.extent_bytes = pool::kExtentBytesMin;
  label.extents = 2;
  label.name = "nvme0";
  return label;
}

TEST_F(BlockDriveTest, APoolIsFoundAgain) {
  const std::string path = MakeFile(pool::kDataOffset + 2 * pool::kExtentBytesMin);
  pool::Map map;
  map.disks.push_back({.identity = 5, .deleted = false, .extents = {{1, 1}}, .description = "disks/a"});
  {
    const auto drive = OpenDrive(path);
    ASSERT_TRUE(drive.ok());
    pool::PoolDrive pool(**drive, 1);
    ASSERT_TRUE(pool.Format(ALabel()).ok());
    ASSERT_TRUE(pool.WriteMap(map).ok());
    ASSERT_TRUE((*drive)->Write(pool::kDataOffset, AnyBytes(kMiB)).ok());
    uint64_t done_bytes = 0;
    while (done_bytes < pool::kExtentBytesMin) ASSERT_TRUE(pool.EraseStep(0, done_bytes).ok());
  }
  const auto drive = OpenDrive(path);
  ASSERT_TRUE(drive.ok());
  pool::PoolDrive pool(**drive, 1);
  ASSERT_TRUE(pool.Open(ALabel()).ok());
  const auto found = pool::ReadMap(**drive, ALabel());
  ASSERT_TRUE(found.ok() && *found);
  EXPECT_EQ((*found)->disks, map.disks);
  EXPECT_TRUE(ReadOf(**drive, pool::kDataOffset, kMiB) == Bytes(kMiB));
  EXPECT_TRUE((*drive)->CheckEmpty().ok()) << "a pool is nothing that other programs know";
}

// ---- A block device

class LoopDriveTest : public BlockDriveTest {
 protected:
  void SetUp() override {
    const std::string path = MakeFile(pool::kDataOffset + pool::kExtentBytesMin, "behind");
    const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
    if (!control) GTEST_SKIP() << "no loop devices here: " << strerror(errno);
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
    // Other tests want one, too.
    for (int tries = 0; tries < 20 && !loop_; ++tries) {
      const int number = ioctl(control.get(), LOOP_CTL_GET_FREE);
      path_ = "/dev/loop" + std::to_string(number);
      loop_.Reset(open(path_.c_str(), O_RDWR | O_CLOEXEC));
      if (loop_ && ioctl(loop_.get(), LOOP_SET_FD, file.get()) != 0) loop_.Reset();
    }
    if (!loop_) GTEST_SKIP() << "no free loop device: " << strerror(errno);
  }
  void TearDown() override {
    if (!loop_) return;
    EXPECT_EQ(ioctl(loop_.get(), LOOP_CLR_FD, 0), 0);
  }

  std::string path_;
  UniqueFd loop_;
};

TEST_F(LoopDriveTest, KeepsBytesAndAPool) {
  const auto drive = OpenDrive(path_);
  ASSERT_TRUE(drive.ok()) << drive.error().message;
  EXPECT_TRUE((*drive)->is_block_device());
  EXPECT_EQ((*drive)->size_bytes(), pool::kDataOffset + pool::kExtentBytesMin);
  ExpectKeepsBytes(**drive);
  EXPECT_TRUE((*drive)->CheckEmpty().ok());
  pool::Label label = ALabel();
  label.extents = 1;
  pool::PoolDrive pool(**drive, 1);
  ASSERT_TRUE(pool.Format(label).ok());
  EXPECT_EQ(*pool::ReadLabel(**drive), label);
  uint64_t done_bytes = 0;
  while (done_bytes < pool::kExtentBytesMin) ASSERT_TRUE(pool.EraseStep(0, done_bytes).ok());
}

TEST_F(LoopDriveTest, IsKeptFromEverybodyElse) {
  auto drive = OpenDrive(path_);
  ASSERT_TRUE(drive.ok()) << drive.error().message;
  EXPECT_EQ(WhyNotOpened(path_), ErrorCode::kUnavailable) << "another cleatd";
  const UniqueFd mount(open(path_.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
  EXPECT_TRUE(!mount && errno == EBUSY);
  const UniqueFd engine(open(path_.c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_TRUE(engine) << "of the pool's disks";
  EXPECT_NE(flock(engine.get(), LOCK_EX | LOCK_NB), 0) << "a whole disk";
  drive->reset();
  EXPECT_EQ(flock(engine.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(WhyNotOpened(path_), ErrorCode::kUnavailable);
  EXPECT_EQ(flock(engine.get(), LOCK_UN), 0);
  const UniqueFd mounted(open(path_.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
  ASSERT_TRUE(mounted);
  EXPECT_EQ(WhyNotOpened(path_), ErrorCode::kFailedPrecondition);
}

}  // namespace
}  // namespace cleat::control::block_drive_test
