// SPDX-License-Identifier: Apache-2.0
// Negative controls of the hand-over between two engines: the real cleatd and real engines, of which the old one says that
// it has let its controller go when it has not (lying_link.h). The guests' judge has to find what comes of it. Four things
// keep two engines from one guest's data, and each control breaks as many as it takes:
//
//   order       cleatd has the new engine take only when the old one has answered. Broken here in all of them.
//   drain       an engine hangs up when its requests are done, not before.
//   connection  the front end's socket takes one back end at a time.
//   lock        a disk is one engine's; it is not free before the last request of a dead one is over. Broken by
//               no_lock.c.
//
// With the lock in its place, the same lies do no harm: that is seen as well.
//
// Over a disk that stands still for the old engine and not for the new one (throttled_disk.h): what the old one has in the
// storage lands when the new one has served for a while, or waits for the lock.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "lying_link.h"
#include "perf/vhost_user/deadline.h"
#include "tests/support/paths.h"
#include "throttled_disk.h"
#include "upgrade_rig.h"

namespace cleat::system_test::hand_over_control_test {
namespace {

constexpr char kBlue[] = "blue";
constexpr char kGreen[] = "green";
constexpr uint64_t kInFlight = 16;  // requests of the guest: 8 on each of two queues
// The new engine has written most blocks anew by then.
constexpr uint64_t kServed = 500;
// Something must have been found by then, where nothing protects.
constexpr uint64_t kHarmNs = 60 * kNsPerSecond;
constexpr int kLookMs = 5;  // no event tells that a line was logged or a guest has found something
// Of the guests without protection, who are to lose requests; the others are not, on no machine.
constexpr uint64_t kLostNs = 10 * kNsPerSecond;

// A second back end of one virtio-blk guest, beside the one that it has: the next that connects gets the same rings, the
// same memory and the same in-flight log. No front end does that.
class SecondBackEnd {
 public:
  explicit SecondBackEnd(Peer& guest) : guest_(guest) {}

  Status Serve(uint64_t timeout_ns) {
    pollfd listener{.fd = guest_.frontend().listener_fd(), .events = POLLIN, .revents = 0};
    if (poll(&listener, 1, static_cast<int>(timeout_ns / kNsPerMs)) <= 0) {
      return Error(ErrorCode::kDeadlineExceeded, "no second back end came");
    }
    frontend_ = perf::Frontend::Wrap(UniqueFd(accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC)));
    if (Status opened = frontend_->Open(); !opened) return opened;
    if (Status set = frontend_->SetFeatures(guest_.driver().features()); !set) return set;
    if (Status set = frontend_->SetInflightFd(*guest_.frontend().inflight()); !set) return set;
    if (Status set = frontend_->SetMemTable(guest_.memory()); !set) return set;
    for (uint16_t i = 0; i < guest_.driver().num_queues(); ++i) {
      if (Status set = SetUp(i); !set) return set;
    }
    return Ok{};
  }

  void Kick() {
    for (uint16_t i = 0; i < guest_.driver().num_queues(); ++i)
      eventfd_write(guest_.driver().ring(i).kick_fd(), 1);
  }

 private:
  Status SetUp(uint16_t index) {
    const perf::DriverRing& ring = guest_.driver().ring(index);
    const perf::GuestMemory& memory = guest_.memory();
    perf::RingSetup setup;
    setup.desc_user = memory.UserAddress(ring.desc_gpa());
    setup.avail_user = memory.UserAddress(ring.avail_gpa());
    setup.used_user = memory.UserAddress(ring.used_gpa());
    Status set = frontend_->SetVringNum(index, ring.size());
    if (set) set = frontend_->SetVringBase(index, ring.base_after_crash());
    if (set) set = frontend_->SetVringAddr(index, setup);
    if (set) set = frontend_->SetVringKick(index, ring.kick_fd());
    if (set) set = frontend_->SetVringCall(index, ring.call_fd());
    if (set) set = frontend_->SetVringEnable(index, true);
    return set;
  }

  Peer& guest_;
  std::unique_ptr<perf::Frontend> frontend_;
};

enum class Lock : uint8_t { kThere, kMissing };

class HandOverControl : public testing::TestWithParam<Lock> {
 protected:
  bool locked() const { return GetParam() == Lock::kThere; }

  // Two engines, the old one with its guest's writes in a disk that stands still.
  void Begin(bool hold) {
    if (kSanitized && !locked())
      GTEST_SKIP() << "sanitizers don't share a process with preloaded libraries: NOTHING was tested";
    auto disk = ThrottledDisk::Make(CrashRig::kDiskBytes);
    if (!disk) GTEST_SKIP() << disk.error().message << ": NOTHING was tested here";
    disk_ = std::move(*disk);
    host_ = std::make_unique<Host>(HostOptions{
        .with_engine = false, .engine_preload = locked() ? "" : test::BuiltForTests("libcleat_no_lock.so")});
    link_ = std::make_unique<LyingLink>(host_->Path("lying.sock"), host_->Path("engine.sock"));
    host_->AddEngine(kBlue, {}, link_->path());
    rig_ = std::make_unique<CrashRig>(*host_, 1);
    ASSERT_OK(rig_->Add(
        {.queues = 2, .device = disk_->path()},
        {.load = {.only_reads_and_writes = true, .lost_after_ns = locked() ? kWaitTimeoutNs : kLostNs}}));
    host_->AddEngine(kGreen);
    upgrades_ = std::make_unique<UpgradeRig>(*host_, kBlue, kGreen, 1);
    ASSERT_OK(rig_->Start());
    ASSERT_TRUE(guest().load().WaitProgress(200, kWaitTimeoutNs));
    if (!hold) return;
    ASSERT_OK(disk_->Hold(host_->engine(kBlue).pid()));
    ASSERT_TRUE(rig_->WaitAllInFlight(guest(), kInFlight)) << "the disk does not stand still";
  }

  // The upgrade; what the old engine has in the storage lands once the new one serves, or waits for the lock.
  void UpgradeAndLetLand() {
    const uint64_t answered = guest().load().counts().requests;
    ASSERT_EQ(upgrades_->Begin(), "");
    const perf::Deadline deadline(kWaitTimeoutNs);
    const auto waits = [this] {
      return ReadTextFile(host_->Path(std::string(kGreen) + ".log")).find("waiting for the lock") !=
             std::string::npos;
    };
    // A guest that has found its rings broken asks for nothing more.
    while (!waits() && guest().load().counts().requests < answered + kServed && rig_->findings() == 0) {
      ASSERT_FALSE(deadline.passed()) << "the new engine neither waits for the lock nor serves";
      poll(nullptr, 0, kLookMs);
    }
    EXPECT_EQ(waits(), locked());
    ASSERT_OK(disk_->Release());
    EXPECT_EQ(upgrades_->WaitDone(), "");
    EXPECT_TRUE(guest().load().WaitProgress(kServed, kWaitTimeoutNs) || rig_->findings() > 0);
  }

  CrashGuest& guest() { return *rig_->guests().front(); }

  // Nothing protects: until something was found.
  template <typename Meanwhile>
  void AwaitHarm(Meanwhile&& meanwhile) {
    const perf::Deadline deadline(locked() ? 0 : kHarmNs);
    while (!deadline.passed() && rig_->findings() == 0) {
      meanwhile();
      poll(nullptr, 0, kLookMs);
    }
  }
  void AwaitHarm() {
    AwaitHarm([] {});
  }

  void ExpectFoundWithoutTheLock() {
    rig_->Stop();
    fmt::print("{}: {}\n{}", locked() ? "with the lock" : "without it", rig_->Summary(),
               rig_->FindingsText());
    if (locked()) {
      EXPECT_EQ(rig_->findings(), 0U) << rig_->FindingsText();
    } else {
      EXPECT_GT(rig_->findings(), 0U);
    }
  }

  // The disk goes last: its device does with its last user.
  std::unique_ptr<ThrottledDisk> disk_;
  std::unique_ptr<Host> host_;
  std::unique_ptr<LyingLink> link_;
  std::unique_ptr<CrashRig> rig_;
  std::unique_ptr<UpgradeRig> upgrades_;
};

// The old engine hangs up with requests in the storage, as if there were no drain: it ends.
TEST_P(HandOverControl, DrainCutShort) {
  Begin(true);
  if (IsSkipped() || HasFatalFailure()) return;
  const pid_t blue = host_->engine(kBlue).pid();
  link_->SetYield(LyingLink::Yield::kNotAtAll, [blue] { kill(blue, SIGKILL); });
  ASSERT_NO_FATAL_FAILURE(UpgradeAndLetLand());
  host_->engine(kBlue).Kill();  // it is dead, and is waited for
  AwaitHarm();
  ExpectFoundWithoutTheLock();
}

// The old engine drains, and gives its disk up, while the new one serves already: the front end has not waited either.
TEST_P(HandOverControl, OwnershipGivenUpLate) {
  Begin(true);
  if (IsSkipped() || HasFatalFailure()) return;
  const int connection = guest().blk().frontend().socket().fd();
  link_->SetYield(LyingLink::Yield::kTooEarly, [connection] { shutdown(connection, SHUT_RDWR); });
  ASSERT_NO_FATAL_FAILURE(UpgradeAndLetLand());
  AwaitHarm();
  ExpectFoundWithoutTheLock();
}

// Both serve the same rings.
TEST_P(HandOverControl, BothEnginesServe) {
  // With the lock it takes as long as an engine waits for one.
  if (locked() && std::getenv("CLEAT_UPGRADES") == nullptr)  // NOLINT(concurrency-mt-unsafe)
    GTEST_SKIP() << "only in long runs (CLEAT_UPGRADES)";
  Begin(false);
  if (IsSkipped() || HasFatalFailure()) return;
  link_->SetYield(LyingLink::Yield::kNotAtAll);
  const std::string failure = upgrades_->Upgrade();
  if (locked()) {
    EXPECT_NE(failure.find("locked by process"), std::string::npos) << failure;
  } else {
    EXPECT_EQ(failure, "");
    SecondBackEnd green(guest().blk());
    EXPECT_OK(green.Serve(kWaitTimeoutNs));
    // While one polls, the guest is asked for no kicks: the other would sleep.
    AwaitHarm([&] { green.Kick(); });
  }
  ExpectFoundWithoutTheLock();
}

INSTANTIATE_TEST_SUITE_P(Upgrade, HandOverControl, testing::Values(Lock::kThere, Lock::kMissing),
                         [](const auto& what) {
                           return what.param == Lock::kThere ? "TheLockProtects" : "WithoutALockItIsFound";
                         });

}  // namespace
}  // namespace cleat::system_test::hand_over_control_test
