// SPDX-License-Identifier: Apache-2.0
// The condition of pools' drives: where it comes from, what is missing and why, and what of it watchers and the log hear.
#include "control/pools/drive_health.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/sysmacros.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "pool_rig.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::pool_rig::drive_health_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

void Write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

void Link(const fs::path& to, const fs::path& from) {
  fs::create_directories(from.parent_path());
  fs::create_directory_symlink(to, from);
}

// Devices as Linux 6.12 has them in sysfs: a namespace of one controller (259:0) with a partition (259:1), one that two controllers reach
// (259:2), and a SCSI disk (8:0).
class DriveHealthTest : public ::testing::Test {
 protected:
  DriveHealthTest() {
    const fs::path one = root_ / "devices/pci/nvme/nvme0";
    MakeDevice(one / "nvme0n1", "259:0", one);
    MakeDevice(one / "nvme0n1/nvme0n1p1", "259:1", {});
    Write(one / "nvme0n1/nvme0n1p1/partition", "1\n");
    const fs::path subsystem = root_ / "devices/virtual/nvme-subsystem/nvme-subsys1";
    MakeDevice(subsystem / "nvme1n1", "259:2", subsystem);
    for (const char* name : {"nvme1", "nvme2"}) {
      fs::create_directories(root_ / "devices/pci/nvme" / name);
      Link(root_ / "devices/pci/nvme" / name, subsystem / name);
    }
    const fs::path disk = root_ / "devices/pci/0:0:0:0";
    MakeDevice(disk / "block/sda", "8:0", disk);
  }
  void MakeDevice(const fs::path& folder, const std::string& number, const fs::path& device) {
    fs::create_directories(folder);
    Link(folder, root_ / "dev/block" / number);
    if (!device.empty()) Link(device, folder / "device");
  }
  void MakeSensor(const std::string& folder, const std::string& millicelsius,
                  const std::string& alarm = "0") {
    Write(root_ / "devices/pci/nvme" / folder / "temp1_input", millicelsius + "\n");
    Write(root_ / "devices/pci/nvme" / folder / "temp1_alarm", alarm + "\n");
  }
  v1::DriveHealth Read(unsigned minor_number, int result, unsigned major_number = 259) {
    const auto get_log = [&](std::span<uint8_t, nvme::kSmartLogBytes> page) {
      ++asked_;
      std::copy(page_.begin(), page_.end(), page.begin());
      return result;
    };
    return ReadHealth(makedev(major_number, minor_number), {.get_log = get_log, .sysfs = root_});
  }

  test::TempDir dir_;
  const fs::path root_{dir_.path()};
  std::array<uint8_t, nvme::kSmartLogBytes> page_{};
  int asked_ = 0;
};

TEST_F(DriveHealthTest, IsTheDrivesSmartLog) {
  page_[0] = 1U << 2;
  page_[1] = (273 + 35) & 0xff;
  page_[2] = (273 + 35) >> 8;
  page_[3] = 90;
  page_[4] = 5;
  page_[5] = 101;
  page_[48] = 2;
  page_[160] = 7;
  MakeSensor("nvme0/hwmon1", "60000");
  for (const unsigned minor_number : {0U, 1U, 2U}) {
    const v1::DriveHealth health = Read(minor_number, 0);
    EXPECT_EQ(health.unknown_because(), "");
    EXPECT_TRUE(health.has_read_at());
    EXPECT_EQ(health.temperature_celsius(), 35);
    EXPECT_EQ(health.wear_percent(), 101U);
    EXPECT_EQ(health.spare_percent(), 90U);
    EXPECT_EQ(health.spare_threshold_percent(), 5U);
    EXPECT_EQ(health.written_bytes(), 1'024'000U);
    EXPECT_EQ(health.media_errors(), 7U);
    EXPECT_TRUE(health.has_unsafe_shutdowns() && health.has_power_on_hours());
    EXPECT_THAT(health.warnings(), ElementsAre(HasSubstr("not reliable any more")));
  }
}

TEST_F(DriveHealthTest, WithoutThePrivilegeTheTemperatureIsTheKernels) {
  MakeSensor("nvme0/hwmon3", "34850");
  for (const unsigned minor_number : {0U, 1U}) {
    const v1::DriveHealth health = Read(minor_number, -EACCES);
    EXPECT_THAT(health.unknown_because(), HasSubstr("CAP_SYS_ADMIN"));
    EXPECT_TRUE(health.has_read_at());
    EXPECT_EQ(health.temperature_celsius(), 35);
    EXPECT_FALSE(health.has_wear_percent() || health.has_media_errors() || health.has_spare_percent());
    EXPECT_TRUE(health.warnings().empty());
  }
  MakeSensor("nvme0/hwmon3", "90850", "1");
  EXPECT_EQ(Read(0, -EACCES).temperature_celsius(), 91);
  EXPECT_THAT(Read(0, -EACCES).warnings(), ElementsAre("the temperature is beyond a threshold"));
  // The temperature of a drive that answers with an error, or not now, is not known.
  EXPECT_FALSE(Read(0, -EAGAIN).has_temperature_celsius());
}

TEST_F(DriveHealthTest, TheSensorIsFoundWhereverTheKernelHasIt) {
  EXPECT_FALSE(Read(0, -EACCES).has_temperature_celsius());
  EXPECT_FALSE(Read(0, -EACCES).has_read_at());
  MakeSensor("nvme0/device/hwmon/hwmon0", "20850");  // as older kernels do
  EXPECT_EQ(Read(0, -EACCES).temperature_celsius(), 21);
  MakeSensor("nvme2/hwmon12", "24850");
  EXPECT_EQ(Read(2, -EPERM).temperature_celsius(), 25);
}

TEST_F(DriveHealthTest, ASensorThatSaysNonsenseSaysNothing) {
  for (const char* nonsense : {"-273150", "9223372036854775807", "-9223372036854775808", "warm", ""}) {
    MakeSensor("nvme0/hwmon0", nonsense, "yes");
    const v1::DriveHealth health = Read(0, -EACCES);
    EXPECT_FALSE(health.has_temperature_celsius()) << nonsense;
    EXPECT_FALSE(health.has_read_at()) << nonsense;
    EXPECT_TRUE(health.warnings().empty()) << nonsense;
  }
}

TEST_F(DriveHealthTest, ADriveThatGivesNoLogSaysWhy) {
  EXPECT_THAT(Read(0, 0x4002).unknown_because(), HasSubstr("does not give its SMART log: Invalid Field"));
  EXPECT_THAT(Read(0, -EIO).unknown_because(), HasSubstr("can't be read: Input/output error"));
  EXPECT_FALSE(Read(0, -EIO).has_read_at());
  EXPECT_FALSE(Read(0, -EIO).has_wear_percent());
}

// An ioctl may mean anything to another driver.
TEST_F(DriveHealthTest, OtherDevicesAreNotAsked) {
  EXPECT_THAT(Read(0, 0, 8).unknown_because(), HasSubstr("no NVMe namespace"));
  EXPECT_THAT(Read(7, 0).unknown_because(), HasSubstr("no NVMe namespace"));  // not in sysfs at all
  EXPECT_EQ(asked_, 0);
  const UniqueFd file(open((dir_ / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_THAT(ReadHealth(file).unknown_because(), HasSubstr("regular file"));
  EXPECT_FALSE(ReadHealth(file).has_read_at());
}

// ---- What is news

v1::DriveHealth Good() {
  v1::DriveHealth health;
  health.mutable_read_at()->set_seconds(1);
  health.set_wear_percent(3);
  health.set_temperature_celsius(40);
  health.set_spare_percent(100);
  health.set_media_errors(0);
  health.set_written_bytes(1000);
  health.set_power_on_hours(5);
  health.set_unsafe_shutdowns(1);
  return health;
}

TEST(KnownHealthTest, NobodyIsWokenForWhatChangesEveryMinute) {
  KnownHealth known;
  EXPECT_EQ(known.latest(), nullptr);
  EXPECT_TRUE(known.Take(Good()).to_tell);
  v1::DriveHealth later = Good();
  later.mutable_read_at()->set_seconds(61);
  later.set_written_bytes(2000);
  later.set_power_on_hours(6);
  for (const int celsius : {44, 36, 40, 43}) {
    later.set_temperature_celsius(celsius);
    EXPECT_FALSE(known.Take(later).to_tell) << celsius;
    ASSERT_NE(known.latest(), nullptr);
    EXPECT_EQ(known.latest()->temperature_celsius(), celsius);
    EXPECT_EQ(known.latest()->written_bytes(), 2000U);
  }
  // Small steps add up.
  later.set_temperature_celsius(45);
  EXPECT_TRUE(known.Take(later).to_tell);
  later.set_temperature_celsius(41);
  EXPECT_FALSE(known.Take(later).to_tell);
}

TEST(KnownHealthTest, AnythingElseIsNews) {
  const auto is_news = [](const std::function<void(v1::DriveHealth&)>& change) {
    KnownHealth known;
    (void)known.Take(Good());
    v1::DriveHealth changed = Good();
    change(changed);
    const bool told = known.Take(changed).to_tell;
    EXPECT_FALSE(known.Take(changed).to_tell) << "once";
    return told;
  };
  EXPECT_TRUE(is_news([](auto& health) { health.set_wear_percent(4); }));
  EXPECT_TRUE(is_news([](auto& health) { health.set_spare_percent(99); }));
  EXPECT_TRUE(is_news([](auto& health) { health.set_media_errors(1); }));
  EXPECT_TRUE(is_news([](auto& health) { health.set_unsafe_shutdowns(2); }));
  EXPECT_TRUE(is_news([](auto& health) { health.clear_temperature_celsius(); }));
  EXPECT_TRUE(is_news([](auto& health) { health.set_unknown_because("no answer"); }));
  EXPECT_TRUE(is_news([](auto& health) { health.add_warnings("the media is read-only"); }));
  // With other news the temperature is told as it is, and counts from there.
  KnownHealth known;
  (void)known.Take(Good());
  v1::DriveHealth changed = Good();
  changed.set_wear_percent(4);
  changed.set_temperature_celsius(44);
  EXPECT_TRUE(known.Take(changed).to_tell);
  changed.set_temperature_celsius(48);
  EXPECT_FALSE(known.Take(changed).to_tell);
  changed.set_temperature_celsius(49);
  EXPECT_TRUE(known.Take(changed).to_tell);
}

TEST(KnownHealthTest, ADriveThatCantBeAskedHasNotWithdrawnItsWarnings) {
  KnownHealth known;
  EXPECT_FALSE(known.Take(Good()).warnings_changed);
  v1::DriveHealth bad = Good();
  bad.add_warnings("the media is read-only");
  EXPECT_TRUE(known.Take(bad).warnings_changed);
  EXPECT_FALSE(known.Take(bad).warnings_changed);
  v1::DriveHealth silent;
  silent.set_unknown_because("it can't be read");
  EXPECT_FALSE(known.Take(silent).warnings_changed);
  EXPECT_FALSE(known.Take(bad).warnings_changed);
  EXPECT_TRUE(known.Take(Good()).warnings_changed);
}

// ---- In the state

using PoolHealthTest = PoolRig;

TEST_F(PoolHealthTest, APoolThatIsReadySaysWhatIsKnownOfItsDrive) {
  const auto made = state_->pools().Create(NewPool("p", dir_ / "drive"));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_THAT(Pool().status().health().unknown_because(), HasSubstr("regular file"));
  Open();
  const v1::Pool again = Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_READY; });
  EXPECT_THAT(again.status().health().unknown_because(), HasSubstr("regular file"));
}

TEST_F(PoolHealthTest, WatchersHearOfWhatMattersAndCallersSeeTheLatest) {
  MakePool();
  Open(/*threads=*/false);
  const PoolWork::Key key = state_->pool_work().DriveOf("p")->key;
  state_->pool_work().SetHealth(key, Good());
  const uint64_t told = Pool().revision();
  v1::DriveHealth later = Good();
  later.set_written_bytes(5000);
  later.set_temperature_celsius(42);
  state_->pool_work().SetHealth(key, later);
  EXPECT_EQ(Pool().revision(), told);
  EXPECT_EQ(Pool().status().health().written_bytes(), 5000U);
  EXPECT_EQ(Pool().status().health().temperature_celsius(), 42);

  const auto watcher = state_->Watch(Pool().revision());
  ASSERT_TRUE(watcher.ok()) << watcher.error().message;
  later.add_warnings("the spare is below its threshold");
  state_->pool_work().SetHealth(key, later);
  v1::DriveHealth heard;
  for (;;) {
    const auto event = (*watcher)->Next(std::chrono::milliseconds(0));
    ASSERT_TRUE(event.ok());
    if (*event == nullptr) break;
    if ((*event)->has_pool()) heard = (*event)->pool().status().health();
  }
  EXPECT_THAT(heard.warnings(), ElementsAre("the spare is below its threshold"));
  EXPECT_EQ(heard.written_bytes(), 5000U);

  // Nothing is kept for a pool that is gone, or is another one by now.
  PoolWork::Key other = key;
  other.uid[0] ^= 1;
  state_->pool_work().SetHealth(other, Good());
  EXPECT_THAT(Pool().status().health().warnings(), ElementsAre("the spare is below its threshold"));
}

// ---- The pool's thread

TEST_F(PoolHealthTest, TheDriveIsAskedAgainAndAgainBesideItsOtherWork) {
  MakePool();
  Open(/*threads=*/false);
  std::atomic<uint32_t> asked = 0;
  const auto read = [&asked](const UniqueFd&) {
    v1::DriveHealth health = Good();
    health.set_wear_percent(++asked);
    return health;
  };
  PoolThreads threads(state_->pool_work(), {.read = read, .every = std::chrono::milliseconds(10)});
  threads.Start();
  Await([](const v1::PoolStatus& s) { return s.state() == v1::POOL_STATE_READY; });
  Create(PoolDisk("a", 2));
  EXPECT_TRUE(MapOnDrive().contains("disks/a"));
  Delete("a", true);
  AwaitErased();
  const uint32_t by_then = asked;
  Await([&](const v1::PoolStatus& s) { return s.health().wear_percent() >= by_then + 3; });
  threads.Stop();
}

TEST_F(PoolHealthTest, ADriveThatDoesNotAnswerTheQuestionIsNoticed) {
  MakePool();
  Open(/*threads=*/false);
  std::atomic<int> asked = 0;
  std::promise<void> answer;
  const auto read = [&, answered = answer.get_future().share()](const UniqueFd&) {
    if (++asked == 2) answered.wait();
    return Good();
  };
  PoolThreads threads(state_->pool_work(), {.read = read, .every = std::chrono::milliseconds(1)});
  threads.SetPace({.patience = std::chrono::milliseconds(500), .look_at = std::chrono::milliseconds(5)});
  threads.Start();
  const v1::Pool silent =
      Await([&](const auto& s) { return asked == 2 && s.state() == v1::POOL_STATE_NOT_ANSWERING; });
  EXPECT_THAT(silent.status().message(), HasSubstr("the drive does not answer"));
  EXPECT_EQ(silent.status().health().wear_percent(), Good().wear_percent()) << "as it was";
  answer.set_value();
  Await([](const auto& s) { return s.state() == v1::POOL_STATE_READY; });
  threads.Stop();
}

}  // namespace
}  // namespace cleat::control::pool_rig::drive_health_test
