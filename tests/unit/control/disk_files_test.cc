// SPDX-License-Identifier: Apache-2.0
// Which files may become disks: none by which a cleatd lives, and no file twice, whatever its names.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "control/daemon.h"
#include "control/reasons.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::disk_files_test {
namespace {

class DiskFilesTest : public ::testing::Test {
 protected:
  DiskFilesTest() {
    std::filesystem::create_directories(state_dir_ + "/disks");
    options_.state_dir = state_dir_;
    options_.api_socket = dir_ / "api.sock";
    options_.engine_socket = dir_ / "engine.sock";
  }
  void SetUp() override { Start(); }
  void Start() {
    daemon_.reset();
    auto daemon = Daemon::Start(options_);
    ASSERT_TRUE(daemon.ok()) << daemon.error().message;
    daemon_ = std::move(*daemon);
  }

  std::string MakeFile(const std::string& name) {
    const std::string path = dir_ / name;
    std::ofstream(path) << std::string(kMiB, '\0');
    return path;
  }
  static v1::CreateDiskRequest FileDisk(const std::string& id, const std::string& path) {
    v1::CreateDiskRequest request = NullDisk(id);
    request.mutable_disk()->mutable_spec()->mutable_file()->set_path(path);
    return request;
  }
  static v1::CreateDiskRequest Readers(v1::CreateDiskRequest request) {
    request.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
    return request;
  }
  v1::Reason ReasonOfCreate(const v1::CreateDiskRequest& request) {
    const auto disk = daemon_->state().CreateDisk(request);
    message_ = disk.ok() ? "" : disk.error().message;
    return disk.ok() ? v1::REASON_UNSPECIFIED : ReasonOf(disk.error());
  }
  v1::Reason ReasonOfCreate(const std::string& id, const std::string& path) {
    return ReasonOfCreate(FileDisk(id, path));
  }
  void ExpectTakenByA(const std::string& path) {
    EXPECT_EQ(ReasonOfCreate("b", path), v1::REASON_FILE_TAKEN) << path;
    EXPECT_NE(message_.find("disks/a"), std::string::npos) << message_;
  }

  test::TempDir dir_;
  const std::string state_dir_ = dir_ / "state";
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
  std::string message_;
};

// ---- One file, several names

TEST_F(DiskFilesTest, AFileIsOneDiskByWhateverName) {
  const std::string path = MakeFile("file");
  std::filesystem::create_hard_link(path, dir_ / "hard");
  std::filesystem::create_symlink(path, dir_ / "soft");
  std::filesystem::create_directory_symlink(dir_.path(), dir_ / "folder");
  ASSERT_EQ(ReasonOfCreate("a", path), v1::REASON_UNSPECIFIED) << message_;
  for (const char* name : {"hard", "soft", "folder/file"}) ExpectTakenByA(dir_ / name);
  // What is known of a file is found out anew.
  Start();
  ExpectTakenByA(dir_ / "hard");
  v1::DeleteDiskRequest remove;
  remove.set_name("disks/a");
  ASSERT_TRUE(daemon_->state().DeleteDisk(remove).ok());
  EXPECT_EQ(ReasonOfCreate("b", dir_ / "hard"), v1::REASON_UNSPECIFIED) << message_;
  // The other way round: a deleted disk does not come back to a file that another one has.
  v1::UndeleteDiskRequest undelete;
  undelete.set_name("disks/a");
  const auto back = daemon_->state().UndeleteDisk(undelete);
  ASSERT_FALSE(back.ok());
  EXPECT_EQ(ReasonOf(back.error()), v1::REASON_FILE_TAKEN) << back.error().message;
}

TEST_F(DiskFilesTest, ABindMountIsNoOtherFile) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
  ASSERT_EQ(ReasonOfCreate("a", MakeFile("file")), v1::REASON_UNSPECIFIED) << message_;
  std::filesystem::create_directory(dir_ / "mounted");
  v1::Reason reason = v1::REASON_UNSPECIFIED;
  // In a mount namespace of its own, that of a thread.
  std::thread([&] {
    if (unshare(CLONE_FS | CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount(dir_.path().c_str(), (dir_ / "mounted").c_str(), nullptr, MS_BIND, nullptr) != 0) {
      message_ = "no mount namespace";
      return;
    }
    reason = ReasonOfCreate("b", dir_ / "mounted/file");
  }).join();
  if (message_ == "no mount namespace") GTEST_SKIP() << message_;
  EXPECT_EQ(reason, v1::REASON_FILE_TAKEN) << message_;
}

TEST_F(DiskFilesTest, ReadersMayShareItByTwoNames) {
  const std::string path = MakeFile("file");
  std::filesystem::create_hard_link(path, dir_ / "hard");
  ASSERT_EQ(ReasonOfCreate(Readers(FileDisk("a", path))), v1::REASON_UNSPECIFIED) << message_;
  ExpectTakenByA(dir_ / "hard");
  EXPECT_EQ(ReasonOfCreate(Readers(FileDisk("c", dir_ / "hard"))), v1::REASON_UNSPECIFIED) << message_;
}

TEST_F(DiskFilesTest, OfManyThatComeAtOnceOneHasTheFile) {
  constexpr int kCallers = 16;
  const std::string path = MakeFile("file");
  std::vector<std::thread> callers;
  std::atomic<int> made = 0;
  for (int i = 0; i < kCallers; ++i) {
    const std::string name = dir_ / ("name-" + std::to_string(i));
    std::filesystem::create_hard_link(path, name);
    callers.emplace_back([this, &made, name, id = "d" + std::to_string(i)] {
      if (daemon_->state().CreateDisk(FileDisk(id, name)).ok()) ++made;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(made, 1);
}

// ---- cleatd's own

class OwnFilesTest : public DiskFilesTest {
 protected:
  static std::map<std::string, std::string> Contents(const std::string& folder) {
    std::map<std::string, std::string> contents;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_regular_file() || entry.path().extension() == ".db-shm") continue;
      std::ostringstream content;
      content << std::ifstream(entry.path()).rdbuf();
      contents[entry.path().filename()] = content.str();
    }
    return contents;
  }
  void ExpectOwn(v1::CreateDiskRequest request) {
    request.mutable_disk()->mutable_spec()->set_size_bytes(512);
    EXPECT_EQ(ReasonOfCreate(request), v1::REASON_PATH_NOT_ALLOWED)
        << request.disk().spec().file().path() << " " << message_;
    EXPECT_NE(message_.find("disks/own"), std::string::npos) << message_;
    EXPECT_NE(message_.find(state_dir_ + "/disks"), std::string::npos) << message_;
  }
};

TEST_F(OwnFilesTest, NoneBecomesADisk) {
  const auto before = Contents(state_dir_);
  ASSERT_TRUE(before.contains("cleat.db") && before.contains("lock") && before.contains("kek"));
  for (const auto& [name, content] : before) {
    const std::string path = state_dir_ + "/" + name;
    ExpectOwn(FileDisk("own", path));
    std::filesystem::create_hard_link(path, dir_ / ("hard-" + name));
    ExpectOwn(FileDisk("own", dir_ / ("hard-" + name)));
    std::filesystem::create_symlink(path, dir_ / ("soft-" + name));
    ExpectOwn(FileDisk("own", dir_ / ("soft-" + name)));
  }
  std::filesystem::create_directory(state_dir_ + "/folder");
  for (const char* name : {"new", "folder/new", "disks/../new"}) {
    auto request = FileDisk("own", state_dir_ + "/" + name);
    request.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
    EXPECT_NE(ReasonOfCreate(request), v1::REASON_UNSPECIFIED);
    EXPECT_FALSE(std::filesystem::exists(state_dir_ + "/" + name)) << name;
  }
  EXPECT_EQ(Contents(state_dir_), before);
  auto request = FileDisk("fine", state_dir_ + "/disks/fine");
  request.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
  EXPECT_EQ(ReasonOfCreate(request), v1::REASON_UNSPECIFIED) << message_;
}

TEST_F(OwnFilesTest, NorThoseOfAnotherCleatd) {
  const test::TempDir other;
  DaemonOptions options = options_;
  options.state_dir = other.path();
  options.api_socket = other / "api.sock";
  options.engine_socket = other / "engine.sock";
  const auto neighbour = Daemon::Start(options);
  ASSERT_TRUE(neighbour.ok()) << neighbour.error().message;
  ExpectOwn(FileDisk("own", other / "cleat.db"));
  ExpectOwn(FileDisk("own", other / "kek"));
}

}  // namespace
}  // namespace cleat::control::disk_files_test
