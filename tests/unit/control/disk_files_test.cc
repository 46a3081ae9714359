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
#include "control/model/reasons.h"
#include "daemon_options.h"
#include "requests.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::disk_files_test {
namespace {

class DiskFilesTest : public ::testing::Test {
 protected:
  DiskFilesTest() {
    std::filesystem::create_directories(state_dir_ + "/disks");
    options_ = OptionsIn(dir_);
    options_.state_dir = state_dir_;
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
    const auto disk = daemon_->state().disks().Create(request);
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
  ASSERT_TRUE(daemon_->state().disks().Delete(remove).ok());
  EXPECT_EQ(ReasonOfCreate("b", dir_ / "hard"), v1::REASON_UNSPECIFIED) << message_;
  // The other way round: a deleted disk does not come back to a file that another one has.
  v1::UndeleteDiskRequest undelete;
  undelete.set_name("disks/a");
  const auto back = daemon_->state().kept_disks().Undelete(undelete);
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
      if (daemon_->state().disks().Create(FileDisk(id, name)).ok()) ++made;
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

// A disk called cleat.db would keep everybody from making disks in its folder.
TEST_F(OwnFilesTest, NoDiskMakesAFolderLookLikeACleatds) {
  for (const char* name : {"cleat.db", "cleat.db-wal"}) {
    auto request = FileDisk("own", state_dir_ + "/disks/" + name);
    request.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
    ExpectOwn(request);
    EXPECT_FALSE(std::filesystem::exists(state_dir_ + "/disks/" + name));
  }
}

TEST_F(OwnFilesTest, WhatADiskBecomesLaterIsNotMadeLarger) {
  const std::string path = MakeFile("file");
  auto request = FileDisk("a", path);
  request.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
  ASSERT_EQ(ReasonOfCreate(request), v1::REASON_UNSPECIFIED) << message_;
  std::filesystem::remove(path);
  std::filesystem::create_symlink(state_dir_ + "/cleat.db", path);
  const auto before = std::filesystem::file_size(state_dir_ + "/cleat.db");
  v1::UpdateDiskRequest update;
  update.mutable_disk()->set_name("disks/a");
  update.mutable_disk()->mutable_spec()->set_size_bytes(8 * kMiB);
  update.mutable_update_mask()->add_paths("spec.size_bytes");
  const auto grown = daemon_->state().disks().Update(update);
  ASSERT_FALSE(grown.ok());
  EXPECT_EQ(ReasonOf(grown.error()), v1::REASON_PATH_NOT_ALLOWED) << grown.error().message;
  EXPECT_EQ(std::filesystem::file_size(state_dir_ + "/cleat.db"), before);
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
  std::filesystem::create_hard_link(other / "cleat.db", dir_ / "hard");
  ExpectOwn(FileDisk("own", dir_ / "hard"));
}

// ---- The paths that callers may name

class ListedPathsTest : public DiskFilesTest {
 protected:
  ListedPathsTest() {
    for (const char* folder : {"vms", "vms/deep", "other", "sockets", "ceph"})
      std::filesystem::create_directory(dir_ / folder);
    List({"files " + dir_ / "vms", "sockets " + dir_ / "sockets", "keys " + dir_ / "ceph", "devices none"});
  }
  void List(const std::vector<std::string>& lines) {
    std::ofstream file(options_.paths_file, std::ios::trunc);
    for (const std::string& line : lines) file << line << "\n";
  }
  void ExpectRefused(v1::Reason reason, const std::string& path) {
    EXPECT_EQ(ReasonName(reason), ReasonName(v1::REASON_PATH_NOT_ALLOWED)) << path << " " << message_;
    for (const std::string& part : {path, std::string("/etc/cleat/paths.conf")})
      EXPECT_NE(message_.find(part), std::string::npos) << message_;
  }
  template <typename T>
  v1::Reason ReasonOf(const Result<T>& result) {
    message_ = result.ok() ? "" : result.error().message;
    return result.ok() ? v1::REASON_UNSPECIFIED : control::ReasonOf(result.error());
  }
  v1::Reason ReasonOfController(const std::string& id, const std::string& socket) {
    v1::CreateControllerRequest request = NewController(id);
    request.mutable_controller()->mutable_spec()->set_socket_path(socket);
    return ReasonOf(daemon_->state().controllers().Create(request));
  }
  static v1::CreateClusterRequest Cluster(const std::string& id, const std::string& conf_file) {
    v1::CreateClusterRequest request;
    request.set_cluster_id(id);
    v1::ClusterSpec& spec = *request.mutable_cluster()->mutable_spec();
    spec.set_user("cleat");
    spec.set_conf_file(conf_file);
    return request;
  }
  std::string MessageOfDisk(const std::string& id) {
    const auto disk = daemon_->state().disks().Get(GetDisk(id));
    return disk.ok() ? disk->status().message() : disk.error().message;
  }
};

TEST_F(ListedPathsTest, NoOthersBecomeDisks) {
  EXPECT_EQ(ReasonOfCreate("deep", MakeFile("vms/deep/file")), v1::REASON_UNSPECIFIED) << message_;
  for (const std::string& path : {MakeFile("other/file"), std::string("/etc/shadow"), std::string("/dev/sda"),
                                  std::string("/dev/null"), dir_ / "vms2/new"}) {
    ExpectRefused(ReasonOfCreate("a", path), path);
    auto create = FileDisk("a", path);
    create.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
    ExpectRefused(ReasonOfCreate(create), path);
  }
  // A link does not lead out, and a file may be made in a listed folder only.
  std::filesystem::create_symlink(dir_ / "other/file", dir_ / "vms/link");
  EXPECT_EQ(ReasonOfCreate("a", dir_ / "vms/link"), v1::REASON_PATH_NOT_ALLOWED) << message_;
  std::filesystem::create_directory_symlink(dir_ / "other", dir_ / "vms/folder");
  auto create = FileDisk("a", dir_ / "vms/folder/new");
  create.mutable_disk()->mutable_spec()->mutable_file()->set_create(true);
  EXPECT_EQ(ReasonOfCreate(create), v1::REASON_PATH_NOT_ALLOWED) << message_;
  EXPECT_FALSE(std::filesystem::exists(dir_ / "other/new"));
}

TEST_F(ListedPathsTest, NorSocketsAndConfFiles) {
  EXPECT_EQ(ReasonOfController("a", dir_ / "sockets/vm1/a.sock"), v1::REASON_UNSPECIFIED) << message_;
  ExpectRefused(ReasonOfController("b", "/run/b.sock"), "/run/b.sock");
  std::filesystem::create_directory_symlink("/run", dir_ / "sockets/link");
  EXPECT_EQ(ReasonOfController("b", dir_ / "sockets/link/b.sock"), v1::REASON_PATH_NOT_ALLOWED) << message_;
  const std::string listed = dir_ / "ceph/ceph.conf";
  EXPECT_EQ(ReasonOf(daemon_->state().clusters().Create(Cluster("a", listed))), v1::REASON_UNSPECIFIED)
      << message_;
  ExpectRefused(ReasonOf(daemon_->state().clusters().Create(Cluster("b", "/etc/shadow"))), "/etc/shadow");
  v1::UpdateClusterRequest update;
  *update.mutable_cluster() = Cluster("a", "/etc/shadow").cluster();
  update.mutable_cluster()->set_name("clusters/a");
  update.mutable_update_mask()->add_paths("spec");
  ExpectRefused(ReasonOf(daemon_->state().clusters().Update(update)), "/etc/shadow");
}

TEST_F(ListedPathsTest, WhatIsStoredStaysServedAndIsNamed) {
  const std::string path = MakeFile("vms/file");
  ASSERT_EQ(ReasonOfCreate("a", path), v1::REASON_UNSPECIFIED) << message_;
  ASSERT_EQ(ReasonOfController("c", dir_ / "sockets/c"), v1::REASON_UNSPECIFIED) << message_;
  ASSERT_TRUE(daemon_->state().clusters().Create(Cluster("x", dir_ / "ceph/ceph.conf")).ok());
  EXPECT_TRUE(daemon_->state().Unlisted().empty());
  List({"files " + dir_ / "other", "sockets none", "keys none"});
  for (const bool restarted : {false, true}) {
    if (restarted) {
      Start();
    } else {
      daemon_->Reload();
    }
    EXPECT_EQ(daemon_->state().Unlisted().size(), 3u);
    EXPECT_NE(MessageOfDisk("a").find(path), std::string::npos) << MessageOfDisk("a");
    // The same calls again, as from callers that repeat them, and changes.
    EXPECT_EQ(ReasonOfCreate("a", path), v1::REASON_UNSPECIFIED) << message_;
    EXPECT_EQ(ReasonOfController("c", dir_ / "sockets/c"), v1::REASON_UNSPECIFIED) << message_;
  }
  EXPECT_EQ(ReasonOf(daemon_->state().attachments().Attach(Attach("a", "c"))), v1::REASON_UNSPECIFIED)
      << message_;
  ExpectRefused(ReasonOfCreate("b", MakeFile("vms/second")), dir_ / "vms/second");
  List({"files " + dir_ / "vms", "sockets /", "keys /"});
  daemon_->Reload();
  EXPECT_TRUE(daemon_->state().Unlisted().empty());
  EXPECT_EQ(MessageOfDisk("a"), "");
}

TEST_F(ListedPathsTest, ListsThatMakeNoSenseChangeNothingAndAreNoStart) {
  List({"files relative/path"});
  daemon_->Reload();
  EXPECT_EQ(ReasonOfCreate("a", MakeFile("vms/file")), v1::REASON_UNSPECIFIED) << message_;
  daemon_.reset();
  const auto refused = Daemon::Start(options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find(options_.paths_file + ", line 1"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace cleat::control::disk_files_test
