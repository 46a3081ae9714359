// SPDX-License-Identifier: Apache-2.0
// cleatd starts while its store's file system is full, or read-only: it is read from and gives engines their orders, changes are refused
// with the reason, and taken as soon as it can be written, without a restart. Costs 6 s.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "expect_ok.h"
#include "host.h"
#include "io_load.h"
#include "peer.h"
#include "perf/vhost_user/deadline.h"

namespace cleat::system_test::full_store_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDiskBytes = uint64_t{8} << 20;
constexpr uint64_t kRequests = kSanitized ? 100 : 300;
constexpr int kRetryMs = 50;

class FullStore : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting needs root";
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      GTEST_SKIP() << "no mount namespace";
    host_ = std::make_unique<Host>();
    ASSERT_TRUE(host_->ok());
    ASSERT_TRUE(host_->AttachNew("vm", FileDisk(kDiskBytes, host_->Path("vm.img"))));
    // What was done last is in the log beside the file alone.
    host_->KillCleatd();
    MoveState();
  }
  void TearDown() override {
    if (host_ == nullptr) return;
    host_->TerminateEngine();
    host_->TerminateCleatd();
    umount2(State().c_str(), MNT_DETACH);
  }

  std::string State() const { return host_->Path("state"); }
  // Onto a small file system of its own.
  void MoveState() {
    const std::string aside = host_->Path("aside");
    fs::rename(State(), aside);
    fs::create_directory(State());
    ASSERT_EQ(mount("tmpfs", State().c_str(), "tmpfs", 0, "size=4m,mode=0700"), 0);
    fs::copy(aside, State(), fs::copy_options::recursive);
  }
  void Fill() {
    const UniqueFd file(open((State() + "/filler").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const std::vector<char> piece(4096);
    while (write(file.get(), piece.data(), piece.size()) > 0) {
    }
  }
  void SetReadOnly(bool read_only) {
    ASSERT_EQ(mount(nullptr, State().c_str(), nullptr, MS_REMOUNT | (read_only ? MS_RDONLY : 0), nullptr), 0);
  }

  // By the engine that runs now: it has its orders.
  void ExpectGuestIsServed() {
    auto peer = Peer::Start(host_->SocketPath("vm"));
    ASSERT_TRUE(peer.ok());
    ASSERT_TRUE(host_->WaitController("vm", v1::CONTROLLER_STATE_READY));
    IoLoad load((*peer)->driver(), blocks_);
    EXPECT_OK(load.Run(kRequests));
  }

  // The episode: cleatd starts in it, and an engine, whose guest goes on.
  void ExpectServes(grpc::StatusCode code, const char* why) {
    host_->StartCleatd();
    EXPECT_TRUE(host_->WaitEngine()) << "no API, or no way for engines";
    EXPECT_OK(host_->api().GetDisk("vm"));
    host_->RestartEngine();
    ExpectGuestIsServed();
    const auto refused = host_->api().CreateDisk("refused", NullDisk(kDiskBytes));
    EXPECT_EQ(refused.status.error_code(), code) << refused.status.error_message();
    for (const std::string& part : {std::string("cleat.db"), std::string(why), std::string("repeat")})
      EXPECT_NE(refused.status.error_message().find(part), std::string::npos)
          << refused.status.error_message();
    EXPECT_TRUE(host_->WaitCleatdLog("; changes are refused until then"));
  }
  // By the same cleatd.
  void ExpectTakesChanges(const std::string& disk) {
    const pid_t pid = host_->cleatd().pid();
    const perf::Deadline deadline(kWaitTimeoutNs);
    grpc::Status made;
    do {
      made = host_->api().CreateDisk(disk, NullDisk(kDiskBytes)).status;
      poll(nullptr, 0, kRetryMs);
    } while (!made.ok() && !deadline.passed());
    EXPECT_TRUE(made.ok()) << made.error_message();
    EXPECT_TRUE(host_->WaitCleatdLog("can be written again after"));
    EXPECT_EQ(host_->cleatd().pid(), pid);
    host_->RestartCleatd();
    EXPECT_OK(host_->api().GetDisk(disk));
    ExpectGuestIsServed();
    host_->KillCleatd();
  }

  std::unique_ptr<Host> host_;
  perf::StampedBlocks blocks_{kDiskBytes, 512, 1};
};

TEST_F(FullStore, AFullFileSystemAtTheStart) {
  Fill();
  ExpectServes(grpc::StatusCode::RESOURCE_EXHAUSTED, "ENOSPC");
  fs::remove(State() + "/filler");
  ExpectTakesChanges("made");
}

TEST_F(FullStore, AReadOnlyFileSystemAtTheStart) {
  SetReadOnly(true);
  ExpectServes(grpc::StatusCode::UNAVAILABLE, "EROFS");
  SetReadOnly(false);
  ExpectTakesChanges("made");
}

}  // namespace
}  // namespace cleat::system_test::full_store_test
