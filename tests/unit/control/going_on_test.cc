// SPDX-License-Identifier: Apache-2.0
// What the service manager hears of cleatd, and by which it judges whether cleatd hangs.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/notify.h"
#include "control/signal_wait.h"
#include "daemon_rig.h"
#include "fake_engine.h"
#include "held_syncs.h"
#include "open_paths.h"
#include "requests.h"

namespace cleat::control::going_on_test {
namespace {

// ---- Whether it goes on

class GoingOnTest : public DaemonRig {
 protected:
  GoingOnTest() {
    options_.paths_file = OpenPaths(dir_ / "paths.conf");
    Start();
  }

  // A disk that is detached as soon as the engine answers, which the link's thread then stores.
  void DetachUntilTheAnswer() {
    ASSERT_TRUE(engine_.Connect());
    ASSERT_TRUE(state().disks().Create(NullDisk("d")).ok());
    ASSERT_TRUE(state().controllers().Create(NewController("c")).ok());
    ASSERT_TRUE(state().attachments().Attach(Attach("d", "c")).ok());
    v1::WaitRequest attached;
    attached.set_name("controllers/c/attachments/d");
    attached.mutable_timeout()->set_seconds(60);
    ASSERT_TRUE(state().waits().Wait(attached, [] { return false; }).ok());
    engine_.Hold("Detach");
    ASSERT_TRUE(state().attachments().Detach(Detach("c", "d")).ok());
    engine_.WaitForRequest("Detach controllers/c 0");
  }
  void ExpectGoesOn() {
    static_cast<void>(daemon_->GoesOn());  // notes the rounds of before
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(daemon_->GoesOn());
    EXPECT_TRUE(state().disks().Get(GetDisk("d")).ok()) << "readers wait";
  }
  void AwaitDetached() {
    v1::WaitRequest gone;
    gone.set_name("controllers/c/attachments/d");
    gone.set_condition(v1::WAIT_CONDITION_GONE);
    gone.mutable_timeout()->set_seconds(60);
    EXPECT_TRUE(state().waits().Wait(gone, [] { return false; }).ok());
  }

  FakeEngine engine_{options_.engine_socket};
};

TEST_F(GoingOnTest, WhileTheLinkWaitsForTheStoresDisk) {
  ASSERT_NO_FATAL_FAILURE(DetachUntilTheAnswer());
  HeldSyncs syncs;
  engine_.Release();
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  ExpectGoesOn();
  HeldSyncs::Release();
  AwaitDetached();
}

TEST_F(GoingOnTest, WhileTheLinkWaitsForAWriteOfAnother) {
  ASSERT_NO_FATAL_FAILURE(DetachUntilTheAnswer());
  HeldSyncs syncs;
  std::thread caller([this] {
    v1::UpdateControllerRequest request;
    request.mutable_controller()->set_name("controllers/c");
    (*request.mutable_controller()->mutable_labels())["label"] = "x";
    request.mutable_update_mask()->add_paths("labels");
    EXPECT_TRUE(state().controllers().Update(request).ok());
  });
  ASSERT_TRUE(HeldSyncs::AwaitHeld());
  engine_.Release();
  const uint64_t deadline_ns = MonotonicClock().NowNs() + 60 * kNsPerSecond;
  while (state().waiting_changes() == 0 && MonotonicClock().NowNs() < deadline_ns) std::this_thread::yield();
  EXPECT_GT(state().waiting_changes(), 0U);
  ExpectGoesOn();
  HeldSyncs::Release();
  caller.join();
  AwaitDetached();
}

// ---- When it says so

class SignalWaitTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimitNs = 30 * kNsPerSecond;
  static constexpr uint64_t kIntervalNs = kLimitNs / SignalWait::kProofsPerLimit;

  SignalWaitTest() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~SignalWaitTest() override { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  // The manager's end.
  static UniqueFd Bound(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    UniqueFd bound(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    CLEAT_CHECK(bind(bound.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    return bound;
  }
  ServiceNotifier Notifier() const {
    const std::string limit_us = std::to_string(kLimitNs / kNsPerUs);
    return ServiceNotifier::From([&](const char* name) -> const char* {
             if (std::string(name) == "NOTIFY_SOCKET") return path_.c_str();
             return std::string(name) == "WATCHDOG_USEC" ? limit_us.c_str() : nullptr;
           })
        .value();
  }
  int Proofs() const {
    int proofs = 0;
    std::array<char, 64> message{};
    while (recv(socket_.get(), message.data(), message.size(), MSG_DONTWAIT) > 0) ++proofs;
    return proofs;
  }

  const test::TempDir dir_;
  const std::string path_ = dir_ / "notify";
  const UniqueFd socket_ = Bound(path_);
  ManualClock clock_;
  ServiceNotifier manager_ = Notifier();
  sigset_t signals_{};
  sigset_t before_{};
};

TEST_F(SignalWaitTest, AProofIsSentWhenItIsDueHoweverOftenSignalsCome) {
  SignalWait wait(signals_, manager_, clock_);
  int proofs = 0;
  for (int i = 1; i <= 20; ++i) {
    clock_.AdvanceBy(kIntervalNs / 2);
    ASSERT_EQ(raise(SIGHUP), 0);
    ASSERT_EQ(wait.Next([] { return true; }), SIGHUP);
    proofs += Proofs();
    EXPECT_EQ(proofs, i / 2) << "in " << i << " halves of an interval";
  }
}

TEST_F(SignalWaitTest, NoneIsSentForOneThatHangs) {
  SignalWait wait(signals_, manager_, clock_);
  int asked = 0;
  for (int i = 0; i < 4; ++i) {
    clock_.AdvanceBy(kIntervalNs);
    ASSERT_EQ(raise(SIGHUP), 0);
    ASSERT_EQ(wait.Next([&asked] { return ++asked == 4; }), SIGHUP);
    EXPECT_EQ(Proofs(), i == 3 ? 1 : 0);
  }
}

}  // namespace
}  // namespace cleat::control::going_on_test
