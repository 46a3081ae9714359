// SPDX-License-Identifier: Apache-2.0
// Whatever name leads to a file or device, it is the same one.
#include "control/storage_identity.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "control/known_storages.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::storage_identity_test {
namespace {

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

Result<StorageIdentity> Identify(const std::string& path) {
  const UniqueFd opened(open(path.c_str(), O_PATH | O_CLOEXEC));
  return IdentifyStorage(opened, path);
}

TEST(StorageIdentityTest, AFileIsTheSameByEachOfItsNames) {
  const test::TempDir dir;
  Write(dir / "a", "content");
  Write(dir / "b", "content");
  std::filesystem::create_hard_link(dir / "a", dir / "hard");
  std::filesystem::create_symlink(dir / "a", dir / "soft");
  const auto a = Identify(dir / "a");
  ASSERT_TRUE(a.ok()) << a.error().message;
  EXPECT_EQ(*a, *Identify(dir / "hard"));
  EXPECT_EQ(*a, *Identify(dir / "soft"));
  EXPECT_FALSE(a->Overlaps(*Identify(dir / "b")));
}

TEST(StorageIdentityTest, WhatIsNeitherFileNorDeviceHasNone) {
  const test::TempDir dir;
  for (const std::string& path : {dir.path(), std::string("/dev/null")}) {
    const auto identity = Identify(path);
    ASSERT_FALSE(identity.ok()) << path;
    EXPECT_EQ(identity.error().code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(identity.error().message.find(path), std::string::npos);
  }
}

// A disk of 1 MiB with two partitions, as the kernel shows it.
class SysfsTest : public ::testing::Test {
 protected:
  SysfsTest() {
    const std::filesystem::path disk = std::filesystem::path(sysfs_.path()) / "devices/sda";
    std::filesystem::create_directories(sysfs_ / "dev/block");
    MakeDevice(disk, "8:0", "");
    MakeDevice(disk / "sda1", "8:1", "1");
    Write(disk / "sda1/start", "64\n");
    Write(disk / "sda1/size", "1024\n");
    MakeDevice(disk / "sda2", "8:2", "2");
    Write(disk / "sda2/start", "1088\n");
    Write(disk / "sda2/size", "512\n");
  }
  void MakeDevice(const std::filesystem::path& folder, const std::string& number,
                  const std::string& partition) {
    std::filesystem::create_directories(folder);
    Write(folder / "dev", number + "\n");
    if (!partition.empty()) Write(folder / "partition", partition + "\n");
    std::filesystem::create_directory_symlink(folder, sysfs_ / ("dev/block/" + number));
  }
  StorageIdentity Device(unsigned minor_number) const {
    return IdentifyDevice(makedev(8, minor_number), sysfs_.path());
  }

  test::TempDir sysfs_;
};

TEST_F(SysfsTest, APartitionIsAPartOfItsDevice) {
  EXPECT_EQ(Device(1).whole, Device(0).whole);
  EXPECT_EQ(Device(1).begin_bytes, 64u * 512);
  EXPECT_EQ(Device(1).end_bytes, (64u + 1024) * 512);
  EXPECT_TRUE(Device(0).Overlaps(Device(1)));
  EXPECT_TRUE(Device(2).Overlaps(Device(0)));
  EXPECT_FALSE(Device(1).Overlaps(Device(2)));
  EXPECT_FALSE(Device(0).Overlaps(IdentifyDevice(makedev(8, 16), sysfs_.path())));
}

TEST(LoopDeviceTest, IsTheFileBehindIt) {
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control) GTEST_SKIP() << "no loop devices here: " << strerror(errno);
  const test::TempDir dir;
  Write(dir / "file", std::string(1 << 20, 'x'));
  const UniqueFd file(open((dir / "file").c_str(), O_RDWR | O_CLOEXEC));
  const int number = ioctl(control.get(), LOOP_CTL_GET_FREE);
  if (number < 0) GTEST_SKIP() << "no free loop device: " << strerror(errno);
  const std::string path = "/dev/loop" + std::to_string(number);
  const UniqueFd loop(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!loop || ioctl(loop.get(), LOOP_SET_FD, file.get()) != 0)
    GTEST_SKIP() << path << " can't be set up: " << strerror(errno);
  const auto device = Identify(path);
  EXPECT_TRUE(device.ok() && device->Overlaps(*Identify(dir / "file")));
  EXPECT_EQ(ioctl(loop.get(), LOOP_CLR_FD, 0), 0);
}

// ---- Who has what

class KnownStoragesTest : public ::testing::Test {
 protected:
  KnownStoragesTest() {
    Write(dir_ / "a", "a");
    Write(dir_ / "b", "b");
  }
  std::vector<std::string> OthersWith(const std::string& path) {
    EXPECT_TRUE(known_.AwaitLooks());
    return known_.OthersWith("new", *Identify(path));
  }
  using Disks = std::vector<std::string>;

  test::TempDir dir_;
  KnownStorages known_;
};

TEST_F(KnownStoragesTest, WhatWasLookedAtIsFoundByWhatItIs) {
  std::filesystem::create_hard_link(dir_ / "a", dir_ / "hard");
  known_.Look({{"first", dir_ / "a"}, {"other", dir_ / "b"}, {"gone", dir_ / "not-there"}});
  EXPECT_EQ(OthersWith(dir_ / "hard"), Disks{"first"});
  known_.Forget("first");
  EXPECT_EQ(OthersWith(dir_ / "hard"), Disks{});
}

TEST_F(KnownStoragesTest, APathIsLookedAtAnew) {
  known_.Keep({"first", dir_ / "a"}, *Identify(dir_ / "a"));
  std::filesystem::rename(dir_ / "a", dir_ / "moved");
  Write(dir_ / "a", "another file");
  known_.Look({{"first", dir_ / "a"}});
  EXPECT_EQ(OthersWith(dir_ / "moved"), Disks{});
  EXPECT_EQ(OthersWith(dir_ / "a"), Disks{"first"});
}

// A removed file's inode may be another file's by then.
TEST_F(KnownStoragesTest, OneThatIsGoneIsNobodys) {
  const auto identity = *Identify(dir_ / "a");
  known_.Keep({"first", dir_ / "a"}, identity);
  known_.LookAtOthersWith("new", identity);
  EXPECT_EQ(OthersWith(dir_ / "a"), Disks{"first"});
  std::filesystem::remove(dir_ / "a");
  known_.LookAtOthersWith("new", identity);
  EXPECT_TRUE(known_.AwaitLooks());
  EXPECT_TRUE(known_.OthersWith("new", identity).empty());
}

TEST_F(KnownStoragesTest, WhatIsKeptMeanwhileIsNewerThanALook) {
  std::vector<KnownStorages::File> files;
  for (int i = 0; i < 1000; ++i) files.push_back({"disk-" + std::to_string(i), dir_ / "a"});
  known_.Look(files);
  known_.Keep({"disk-999", dir_ / "b"}, *Identify(dir_ / "b"));
  known_.Forget("disk-998");
  EXPECT_EQ(OthersWith(dir_ / "b"), Disks{"disk-999"});
  EXPECT_EQ(OthersWith(dir_ / "a").size(), 998u);
}

}  // namespace
}  // namespace cleat::control::storage_identity_test
