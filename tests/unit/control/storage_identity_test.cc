// SPDX-License-Identifier: Apache-2.0
// Whatever name leads to a file or device, it is the same one.
#include "control/paths/storage_identity.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "control/paths/known_storages.h"
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

// ---- Files that hang

// Calls that hang until they are answered. The threads that make them may outlive their KnownStorages.
class HangingCalls {
 public:
  void Hang(const std::string& path) {
    const std::lock_guard lock(mutex_);
    hanging_.insert(path);
  }
  void Answer(const std::string& path) {
    const std::lock_guard lock(mutex_);
    hanging_.erase(path);
    answered_.notify_all();
  }
  void AnswerAll() {
    const std::lock_guard lock(mutex_);
    hanging_.clear();
    answered_.notify_all();
  }
  Result<StorageIdentity> Identify(const KnownStorages::File& file) {
    std::unique_lock lock(mutex_);
    ++calls_[file.path];
    most_ = std::max(most_, ++under_way_);
    answered_.wait(lock, [&] { return !hanging_.contains(file.path); });
    --under_way_;
    lock.unlock();
    return KnownStorages::IdentifyFile(file);
  }
  int calls(const std::string& path) const {
    const std::lock_guard lock(mutex_);
    const auto found = calls_.find(path);
    return found == calls_.end() ? 0 : found->second;
  }
  size_t under_way() const {
    const std::lock_guard lock(mutex_);
    return under_way_;
  }
  size_t most() const {
    const std::lock_guard lock(mutex_);
    return most_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable answered_;
  std::set<std::string> hanging_;
  std::map<std::string, int> calls_;
  size_t under_way_ = 0;
  size_t most_ = 0;
};

class HangingFilesTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kShort{20};
  static constexpr std::chrono::minutes kLong{1};
  using Disks = std::vector<std::string>;

  HangingFilesTest() { Start(kShort); }
  ~HangingFilesTest() override {
    calls_->AnswerAll();
    known_.reset();
    Await("all threads have ended", [&] { return calls_.use_count() == 1; });
  }
  void Start(std::chrono::milliseconds patience) {
    known_ = std::make_unique<KnownStorages>(
        patience, [calls = calls_](const KnownStorages::File& file) { return calls->Identify(file); },
        [this](spdlog::level::level_enum, const std::string& line) {
          const std::lock_guard lock(mutex_);
          lines_.push_back(line);
        });
  }
  std::string MakeFile(const std::string& name) {
    Write(dir_ / name, name);
    return dir_ / name;
  }
  std::string Hang(const std::string& path) {
    calls_->Hang(path);
    return path;
  }
  Disks OthersWith(const std::string& path) const { return known_->OthersWith("new", *Identify(path)); }
  void AwaitKnown(const std::string& path, const Disks& disks) {
    Await("it is known who has " + path, [&] { return OthersWith(path) == disks; });
  }
  size_t LinesWith(const std::string& text) {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::ranges::count_if(
        lines_, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
  }
  static void Await(const std::string& what, const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + kLong;
    while (!condition()) {
      ASSERT_LT(std::chrono::steady_clock::now(), until) << "waited in vain until " << what;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  test::TempDir dir_;
  const std::shared_ptr<HangingCalls> calls_ = std::make_shared<HangingCalls>();
  std::mutex mutex_;
  std::vector<std::string> lines_;
  std::unique_ptr<KnownStorages> known_;
};

TEST_F(HangingFilesTest, OneStopsNoOther) {
  const std::string hangs = Hang(MakeFile("hangs"));
  known_->Look({{"a", hangs}, {"b", MakeFile("b")}, {"c", MakeFile("c")}});
  AwaitKnown(dir_ / "b", {"b"});
  AwaitKnown(dir_ / "c", {"c"});
  EXPECT_EQ(OthersWith(hangs), Disks{});
  known_->Look({{"d", MakeFile("d")}});
  AwaitKnown(dir_ / "d", {"d"});
  EXPECT_EQ(calls_->calls(hangs), 1);
}

TEST_F(HangingFilesTest, OneThatAnswersLaterIsKnown) {
  const std::string hangs = Hang(MakeFile("hangs"));
  known_->Look({{"a", hangs}});
  Await("it is told of", [&] { return LinesWith("disks/a: file does not answer: '" + hangs) == 1; });
  EXPECT_FALSE(known_->AwaitLooks());
  calls_->Answer(hangs);
  AwaitKnown(hangs, {"a"});
  Await("that is told of", [&] { return LinesWith("disks/a: file answers again: '" + hangs) == 1; });
  EXPECT_TRUE(known_->AwaitLooks());
  EXPECT_EQ(LinesWith(hangs), 2u);
}

TEST_F(HangingFilesTest, WhatIsForgottenMeanwhileStaysForgotten) {
  const std::string hangs = Hang(MakeFile("hangs"));
  known_->Look({{"a", hangs}});
  Await("it hangs", [&] { return calls_->under_way() == 1; });
  known_->Forget("a");
  calls_->Answer(hangs);
  Await("it has answered", [&] { return known_->AwaitLooks(); });
  EXPECT_EQ(OthersWith(hangs), Disks{});
}

TEST_F(HangingFilesTest, OneFileTakesOneThread) {
  const std::string hangs = Hang(MakeFile("hangs"));
  for (int i = 0; i < 10; ++i) {
    known_->Look({{"a", hangs}, {"reader", hangs}, {"z", MakeFile("z")}});
    Await("the other was looked at", [&] { return calls_->calls(dir_ / "z") > i; });
  }
  EXPECT_EQ(calls_->calls(hangs), 1);
  // What was asked for meanwhile is done then: the answer may be older than that.
  calls_->Answer(hangs);
  Await("all were looked at", [&] { return known_->AwaitLooks(); });
  EXPECT_EQ(calls_->calls(hangs), 3);
  const Disks others = OthersWith(hangs);
  EXPECT_EQ(std::set<std::string>(others.begin(), others.end()), (std::set<std::string>{"a", "reader"}));
}

TEST_F(HangingFilesTest, NoMoreThanTheLimitHangAndOthersWait) {
  std::vector<KnownStorages::File> files;
  for (size_t i = 0; i < 2 * KnownStorages::kLooksMax; ++i) {
    const std::string folder = "folder-" + std::to_string(i);
    std::filesystem::create_directory(dir_ / folder);
    files.push_back({"disk-" + std::to_string(i), Hang(MakeFile(folder + "/hangs"))});
  }
  known_->Look(files);
  Await("it is told that others wait", [&] { return LinesWith("wait to be examined") > 0; });
  Await("as many hang as may",
        [&] { return LinesWith(": file does not answer:") == KnownStorages::kLooksMax; });
  for (int i = 0; i < 10; ++i) {
    known_->Look({{"last", MakeFile("last")}});
    EXPECT_FALSE(known_->AwaitLooks());
  }
  EXPECT_EQ(calls_->calls(dir_ / "last"), 0);
  EXPECT_EQ(LinesWith("wait to be examined"), 1u);
  calls_->AnswerAll();
  AwaitKnown(dir_ / "last", {"last"});
  for (const KnownStorages::File& file : files) AwaitKnown(file.path, {file.disk});
  EXPECT_EQ(calls_->most(), KnownStorages::kLooksMax);
}

// A mount that is dead, with many disks.
TEST_F(HangingFilesTest, AFolderOfThemLeavesLooksToOthers) {
  std::vector<KnownStorages::File> files;
  for (size_t i = 0; i < 4 * KnownStorages::kLooksMax; ++i)
    files.push_back({"disk-" + std::to_string(i), Hang("/mount/" + std::to_string(i))});
  known_->Look(files);
  Await("it is told that others wait", [&] { return LinesWith("wait to be examined") > 0; });
  known_->Look({{"z", MakeFile("z")}});
  AwaitKnown(dir_ / "z", {"z"});
  EXPECT_EQ(calls_->most(), KnownStorages::kHangingInFolderMax + 1);
}

TEST_F(HangingFilesTest, NobodyWaitsForOneThatIsKnownToHang) {
  Start(std::chrono::milliseconds(200));
  known_->Look({{"a", Hang(MakeFile("hangs"))}});
  Await("it is told of", [&] { return LinesWith(": file does not answer:") == 1; });
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(known_->AwaitLooks());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kLong);
}

TEST_F(HangingFilesTest, TheEndWaitsForNone) {
  const std::string hangs = Hang(MakeFile("hangs"));
  known_->Look({{"a", hangs}, {"b", Hang(MakeFile("too"))}});
  Await("one hangs", [&] { return calls_->calls(hangs) == 1; });
  known_.reset();
  EXPECT_GE(LinesWith(": file not waited for:"), 1u);
  EXPECT_GE(calls_->under_way(), 1u);
}

}  // namespace
}  // namespace cleat::control::storage_identity_test
