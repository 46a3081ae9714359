// SPDX-License-Identifier: Apache-2.0
// cleatd as a caller sees it: gRPC over a unix socket, and cleatctl's exit codes and output.
#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "control/daemon.h"
#include "daemon_options.h"
#include "fake_engine.h"
#include "requests.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace cleat::control::api_test {
namespace {

class ApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_ = OptionsIn(dir_);
    options_.watch_queue_max = 16;
    auto daemon = Daemon::Start(options_);
    ASSERT_TRUE(daemon.ok()) << daemon.error().message;
    daemon_ = std::move(*daemon);
    stub_ = v1::Cleat::NewStub(
        grpc::CreateChannel("unix:" + options_.api_socket, grpc::InsecureChannelCredentials()));
  }

  grpc::Status Create(const v1::CreateDiskRequest& request) {
    grpc::ClientContext context;
    v1::Disk disk;
    return stub_->CreateDisk(&context, request, &disk);
  }

  struct Run {
    int exit_code = -1;
    std::string out;  // both streams
  };
  // cleatctl, with this daemon's address unless `arguments` name another.
  Run Ctl(const std::string& arguments) {
    const std::string command = "CLEAT_ADDRESS=unix:" + options_.api_socket + " " +
                                test::Program("cleatctl") + " " + arguments + " 2>&1";
    Run run;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return run;
    char buffer[4096];
    while (const size_t size = fread(buffer, 1, sizeof(buffer), pipe)) run.out.append(buffer, size);
    const int status = pclose(pipe);
    run.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return run;
  }
  void ExpectCtl(const std::string& arguments, int exit_code, const std::vector<std::string>& says = {}) {
    const Run run = Ctl(arguments);
    EXPECT_EQ(run.exit_code, exit_code) << arguments << "\n" << run.out;
    for (const std::string& part : says) EXPECT_NE(run.out.find(part), std::string::npos) << run.out;
  }

  test::TempDir dir_;
  DaemonOptions options_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<v1::Cleat::Stub> stub_;
};

TEST_F(ApiTest, ErrorsArriveWithCodeAndMessage) {
  EXPECT_TRUE(Create(NullDisk("a")).ok());
  const grpc::Status taken = Create(NullDisk("a", 2 * kMiB));
  EXPECT_EQ(taken.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_NE(taken.error_message().find("disks/a"), std::string::npos);
  EXPECT_EQ(Create(NullDisk("A")).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext context;
  v1::Disk disk;
  EXPECT_EQ(stub_->GetDisk(&context, GetDisk("b"), &disk).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(ApiTest, SocketsAreForTheirUsersOnly) {
  struct stat info {};
  ASSERT_EQ(stat(options_.api_socket.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  ASSERT_EQ(stat(options_.engine_socket.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(ApiTest, ASecondDaemonOnTheSameFolderOrSocketIsRefused) {
  const auto second = Daemon::Start(options_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another cleatd"), std::string::npos);
  const test::TempDir other;
  DaemonOptions same_socket = options_;
  same_socket.state_dir = other.path();
  same_socket.engine_socket = other / "engine.sock";
  const auto third = Daemon::Start(same_socket);
  ASSERT_FALSE(third.ok());
  EXPECT_NE(third.error().message.find("api.sock"), std::string::npos);
  EXPECT_TRUE(Create(NullDisk("a")).ok()) << "the first one is not disturbed";
}

TEST_F(ApiTest, AKeyEncryptionKeyThatIsGoneIsNotReplacedInSilence) {
  auto request = NullDisk("secret");
  v1::Encryption& encryption = *request.mutable_disk()->mutable_spec()->mutable_encryption();
  std::string key;
  for (char c = 0; c < 64; ++c) key += c;
  encryption.set_plain_key(key);
  encryption.set_cipher(v1::CIPHER_AES_256_XTS);
  ASSERT_TRUE(Create(request).ok());
  daemon_.reset();
  const std::string kek = dir_ / "kek";
  const std::string away = dir_ / "elsewhere";
  std::filesystem::rename(kek, away);
  const auto refused = Daemon::Start(options_);
  ASSERT_FALSE(refused.ok());
  for (const std::string& part : {kek, std::string("disks/secret"), std::string("--kek-file")}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  EXPECT_FALSE(std::filesystem::exists(kek));
  // It is put back, or named; or all that needs it is gone.
  DaemonOptions named = options_;
  named.kek_files = {away};
  ASSERT_TRUE(Daemon::Start(named).ok());
  std::filesystem::rename(away, kek);
  auto daemon = Daemon::Start(options_);
  ASSERT_TRUE(daemon.ok()) << daemon.error().message;
  v1::DeleteDiskRequest remove;
  remove.set_name("disks/secret");
  ASSERT_TRUE((*daemon)->state().disks().Delete(remove).ok());
  daemon->reset();
  std::filesystem::rename(kek, away);
  const auto refused_again = Daemon::Start(options_);
  ASSERT_FALSE(refused_again.ok()) << "the deleted disk is kept, and its key with it";
  EXPECT_NE(refused_again.error().message.find("disks/secret (deleted, and kept)"), std::string::npos)
      << refused_again.error().message;
  std::filesystem::rename(away, kek);
  daemon = Daemon::Start(options_);
  ASSERT_TRUE(daemon.ok()) << daemon.error().message;
  v1::PurgeDiskRequest purge;
  purge.set_name("disks/secret");
  ASSERT_TRUE((*daemon)->state().kept_disks().Purge(purge).ok());
  daemon->reset();
  std::filesystem::remove(kek);
  EXPECT_TRUE(Daemon::Start(options_).ok());
}

TEST_F(ApiTest, CleatctlBringsDeletedDisksBackAndPurgesThem) {
  EXPECT_TRUE(Create(NullDisk("a")).ok());
  EXPECT_TRUE(Create(MemoryDisk("m")).ok());
  const Run plain = Ctl("disk delete a");
  EXPECT_EQ(plain.exit_code, 0);
  EXPECT_EQ(plain.out, "") << "as scripts know it";
  ExpectCtl("disk delete m", 0, {"disks/m: its content was freed"});
  ExpectCtl("disk list --deleted", 0, {"KEPT UNTIL", "\na ", "\nm "});
  ExpectCtl("disk list --deleted -o json", 0, {"\"delete_time\"", "\"uid\""});
  ExpectCtl("disk undelete m", 0, {"it is empty"});
  ExpectCtl("disk undelete a", 0, {"READY"});
  ExpectCtl("disk undelete a", 1, {"ID_TAKEN"});
  ExpectCtl("disk list --deleted -o json", 0, {"\"disks\": []"});
  ExpectCtl("disk delete a --purge", 0);
  ExpectCtl("disk undelete a", 1, {"RESOURCE_NOT_FOUND", "disk list --deleted"});
  ExpectCtl("disk delete m", 0);
  ExpectCtl("disk purge m", 0);
  ExpectCtl("disk purge m", 0, {"nothing was kept of disks/m"});
}

TEST_F(ApiTest, CleatctlDestroysAKeyOnlyWhenThatIsMeant) {
  auto request = NullDisk("a");
  std::string key;
  for (char c = 0; c < 64; ++c) key += c;
  request.mutable_disk()->mutable_spec()->mutable_encryption()->set_plain_key(key);
  ASSERT_TRUE(Create(request).ok());
  ExpectCtl("disk delete a --purge </dev/null", 2, {"disks/a is encrypted", "--yes", "Nothing was done"});
  ExpectCtl("disk get a", 0);
  ExpectCtl("disk delete a </dev/null", 0);
  ExpectCtl("disk purge a </dev/null", 2, {"--yes"});
  ExpectCtl("disk undelete a", 0);
  // At a terminal it asks. `script` gives it one.
  const std::string asked = "script -qec '" + test::Program("cleatctl") + " disk delete a --purge' /dev/null";
  const auto answer = [&](const std::string& text) {
    const std::string command = "echo " + text + " | CLEAT_ADDRESS=unix:" + options_.api_socket + " " + asked;
    return std::system((command + " >" + (dir_ / "out")).c_str());  // NOLINT(concurrency-mt-unsafe)
  };
  EXPECT_NE(answer("n"), 0);
  ExpectCtl("disk get a", 0);
  EXPECT_EQ(answer("y"), 0);
  ExpectCtl("disk get a", 1);
  // Where none are kept.
  daemon_.reset();
  options_.keep_deleted_days = 0;
  daemon_ = std::move(Daemon::Start(options_).value());
  ASSERT_TRUE(daemon_->state().disks().Create(request).ok());
  ExpectCtl("disk delete a </dev/null", 2, {"keeps no deleted disks", "--yes"});
  ExpectCtl("disk delete a --yes", 0);
  ExpectCtl("disk get a", 1);
}

TEST_F(ApiTest, WatchGivesASnapshotAndThenChangesUntilTheEnd) {
  ASSERT_TRUE(Create(NullDisk("a")).ok());
  grpc::ClientContext context;
  const auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse event;
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.disk().name(), "disks/a");
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_TRUE(event.has_synced());
  ASSERT_TRUE(Create(NullDisk("b")).ok());
  ASSERT_TRUE(reader->Read(&event));
  EXPECT_EQ(event.disk().name(), "disks/b");
  std::thread stopper([&] { daemon_.reset(); });
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  stopper.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(status.error_message().find("stopping"), std::string::npos);
}

TEST_F(ApiTest, AWatcherThatDoesNotReadIsDroppedWithAReason) {
  grpc::ClientContext context;
  const auto reader = stub_->Watch(&context, v1::WatchRequest());
  v1::WatchResponse event;
  ASSERT_TRUE(reader->Read(&event)) << "subscribed";
  // More than gRPC's buffers and the queue take: the rest is what the watcher does not see.
  constexpr int kChanges = 40'000;
  for (int i = 0; i < kChanges; ++i) {
    const auto state = i % 2 == 0 ? v1::DISK_STATE_LOST : v1::DISK_STATE_READY;
    if (i == 0) {
      ASSERT_TRUE(Create(NullDisk("a")).ok());
    }
    daemon_->state().disks().Report("a", state, std::string(1000, 'x'));
  }
  int seen = 0;
  while (reader->Read(&event)) ++seen;
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
      << seen << " " << status.error_message();
  EXPECT_NE(status.error_message().find("behind"), std::string::npos);
}

TEST_F(ApiTest, CleatctlDoesTheWholeRound) {
  std::filesystem::create_directory(dir_ / "disks");
  FakeEngine engine(options_.engine_socket);
  ASSERT_TRUE(engine.Connect());
  const std::string file = dir_ / "disks/root.img";
  ExpectCtl("disk create root --size 10M --create --file " + file, 0, {"root", "10 MiB", "READY"});
  ExpectCtl("controller create vm1 --socket /run/vm1 --queues 4 --wait", 0, {"vm1", "engine-0", "IDLE"});
  ExpectCtl("attach root vm1 --wait", 0, {"vm1", "root", "READY"});
  ExpectCtl("disk get root --output json", 0,
            {R"("size_bytes": "10485760")", "controllers/vm1/attachments/root"});
  ExpectCtl("disk list", 0, {"DISK", "root", "vm1"});
  ExpectCtl("controller list", 0, {"CONTROLLER", "/run/vm1"});
  ExpectCtl("attachment list", 0, {"READ-WRITE"});
  ExpectCtl("engine list", 0, {"engine-0", "CONNECTED", "1 of 100"});
  ExpectCtl("disk delete root", 1, {"reason: DISK_IN_USE", "cleatctl detach vm1 root"});
  ExpectCtl("detach vm1 --wait", 0);
  ExpectCtl("detach vm1", 0, {"nothing to do"});
  ExpectCtl("controller delete vm1 --wait=20", 0);
  ExpectCtl("disk delete disks/root --wait", 0);
  ExpectCtl("disk list --output=json", 0, {R"("disks": [])"});
}

TEST_F(ApiTest, CleatctlSaysWhatIsStuckAndWhatToDo) {
  FakeEngine engine(options_.engine_socket);
  ASSERT_TRUE(engine.Connect());
  ExpectCtl("disk create root --null --size 1M", 0);
  ExpectCtl("controller create vm1 --socket /run/vm1", 0);
  ExpectCtl("attach root vm1 --wait", 0);
  EXPECT_EQ(Ctl("slow").out.find("STUCK"), std::string::npos);
  const auto watcher = daemon_->state().Watch();
  ASSERT_TRUE(watcher.ok());
  engine.SetStorage("controllers/vm1", 0, engine::v1::STORAGE_STATE_NOT_ANSWERING);
  for (bool told = false; !told;) {
    const auto event = (*watcher)->Next(std::chrono::minutes(1));
    ASSERT_TRUE(event.ok());
    ASSERT_NE(*event, nullptr);
    told = (*event)->attachment().status().storage_state() == v1::STORAGE_STATE_NOT_ANSWERING;
  }
  for (const char* name : {"", "root", "vm1", "disks/root", "engines/engine-0"}) {
    ExpectCtl(fmt::format("slow {}", name), 0,
              {"STUCK BY", "NO_ANSWER", "see to the storage: cleatctl disk get root", "as its storage does"});
  }
  ExpectCtl("slow root -o json", 0,
            {R"("reason": "STUCK_REASON_NO_ANSWER")", "controllers/vm1/attachments/"});
  ExpectCtl("disk create other --null --size 1M", 0);
  EXPECT_EQ(Ctl("slow other").out.find("STUCK"), std::string::npos);
  ExpectCtl("slow none", 1, {"RESOURCE_NOT_FOUND"});
}

TEST_F(ApiTest, CleatctlUpgradesAnEngineAndSaysWhatHasStayed) {
  FakeEngine blue(options_.engine_socket, "engine-0");
  FakeEngine green(options_.engine_socket, "engine-1");
  ASSERT_TRUE(blue.Connect());
  ASSERT_TRUE(green.Connect());
  for (const std::string id : {"vm1", "vm2"}) {
    ExpectCtl(fmt::format("disk create d{} --null --size 1M", id), 0);
    ExpectCtl(fmt::format("controller create {0} --socket /run/{0} --engine engine-0", id), 0);
    ExpectCtl(fmt::format("attach d{0} {0} --wait", id), 0);
  }
  ExpectCtl("engine upgrade engine-0 --to engine-7", 1, {"RESOURCE_NOT_FOUND"});
  ExpectCtl("engine upgrade engine-0", 2, {"--to"});
  ExpectCtl("engine upgrade engine-0 --to engine-1 --dry-run", 0,
            {"2 of 2 controllers would be moved to engine-1"});
  blue.FailYields(1, "deadline_exceeded", "3 requests are still in the storage");
  ExpectCtl("engine upgrade engine-0 --to engine-1", 1,
            {"vm1 stays: 3 requests are still in the storage\n", "moved 1 of 2\n",
             "1 of 2 controllers stay on engine-0; repeat the command"});
  ExpectCtl("engine list", 0, {"to engine-1: FAILED, 1 of 2 moved, 1 stayed"});
  ExpectCtl("engine get engine-0", 0, {"vm1: 3 requests are still in the storage", "longest pause"});
  ExpectCtl("engine upgrade engine-0 --to engine-1 --drain-seconds 3 -o json", 0,
            {R"("UPGRADE_STATE_DONE")"});
  ExpectCtl("engine upgrade engine-1 --to engine-0 --no-wait", 0,
            {"2 controllers are being moved to engine-0"});
  ExpectCtl("engine cancel-upgrade engine-1", 0, {"engine-1"});
  ExpectCtl("controller list", 0, {"vm1", "vm2"});
}

TEST_F(ApiTest, CleatctlSaysWhatIsWrongByItsExitCode) {
  ExpectCtl("disk get none", 1, {"disks/none does not exist", "NOT_FOUND"});
  ExpectCtl("disk create a --size 1M", 2, {"--file"});
  ExpectCtl("disk create a --size 1X --null", 2);
  ExpectCtl("disk delete a --wait=soon", 2, {"--wait"});
  ExpectCtl("frobnicate", 2);
  ExpectCtl("", 2);
  ExpectCtl("disk list --address unix:/nowhere/cleatd.sock", 3, {"can't be reached", "--address"});
  ExpectCtl("disk list --address localhost:80", 2, {"--ca is missing"});
  ExpectCtl("--version", 0, {"cleatctl "});
  ExpectCtl("disk create --help", 0, {"Examples:", "--many-readers"});
  ExpectCtl("controller create a --socket /run/a --wait=1", 4,
            {"controllers/a is still PENDING", "WAIT_TIMED_OUT"});
}

}  // namespace
}  // namespace cleat::control::api_test
