// SPDX-License-Identifier: Apache-2.0
// An engine that stands by for another one: what it has ready, and what happens when the other one dies.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "control/model/reasons.h"
#include "moves_rig.h"

namespace cleat::control::standby_test {
namespace {

class StandbyTest : public MovesRig {
 protected:
  void SetUp() override {
    green_.set_stands_by_for("engine-0");
    ASSERT_TRUE(blue_.Connect());
    ASSERT_TRUE(green_.Connect());
    AwaitEngines();
  }
  void TearDown() override { EXPECT_EQ(host_.Violations(), std::vector<std::string>{}); }
};

TEST_F(StandbyTest, ItHasReadyWhatTheOtherServesWhateverComesAndGoes) {
  Create(NullDisk("d"), "s", v1::CONTROLLER_TYPE_SCSI);
  Create(MemoryDisk("m"), "s");
  AwaitServed("s", "engine-0");
  AwaitStandby(green_, "s", 2);
  EXPECT_EQ(state_->engines().Get(GetEngine("engine-1"))->status().stands_by_for(), "engines/engine-0");
  Await("it is counted",
        [&] { return state_->engines().Get(GetEngine("engine-1"))->status().standing_by() == 1; });

  v1::UpdateDiskRequest grow;
  grow.mutable_disk()->set_name("disks/d");
  grow.mutable_disk()->mutable_spec()->set_size_bytes(2 * kMiB);
  grow.mutable_update_mask()->add_paths("spec.size_bytes");
  ASSERT_TRUE(state_->disks().Update(grow).ok());
  ASSERT_TRUE(state_->disks().Update(LimitDisk("d", 77)).ok());
  Await("both know it", [&] {
    return green_.DiskAt("controllers/s", 0).size_bytes() == 2 * kMiB &&
           green_.DiskAt("controllers/s", 0).limits().iops().per_second() == 77;
  });

  ASSERT_TRUE(state_->attachments().Detach(Detach("s", "m")).ok());
  Await("it is gone from both", [&] { return !state_->attachments().Get(GetAttachment("s", "m")).ok(); });
  EXPECT_FALSE(green_.Has("controllers/s", 1)) << "what is gone is open nowhere";
  EXPECT_FALSE(blue_.Has("controllers/s", 1));

  ASSERT_TRUE(state_->attachments().Detach(Detach("s", "d")).ok());
  Await("it is gone", [&] { return !state_->attachments().Get(GetAttachment("s", "d")).ok(); });
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("s")).ok());
  Await("it is gone", [&] { return !state_->controllers().Get(GetController("s")).ok(); });
  EXPECT_EQ(green_.StateOf("controllers/s"), kAbsent);
}

TEST_F(StandbyTest, ItTakesEverythingWhenTheOtherDies) {
  CreateSome({"a", "b", "c"});
  for (const char* id : {"a", "b", "c"}) AwaitStandby(green_, id);
  green_.TakeRequests();
  blue_.Die();
  for (const char* id : {"a", "b", "c"}) AwaitServed(id, "engine-1");
  Requests requests = green_.TakeRequests();
  std::sort(requests.begin(), requests.end());
  EXPECT_EQ(requests, (Requests{"TakeController controllers/a", "TakeController controllers/b",
                                "TakeController controllers/c"}));
  EXPECT_NE(UpgradeOf().message().find("3 controllers were taken at once, 0"), std::string::npos);

  // It is an ordinary engine now, and what comes back under the old name has nothing.
  ASSERT_TRUE(state_->controllers().Create(NewController("new")).ok());
  EXPECT_EQ(EngineOf("new"), "engines/engine-1");
  ASSERT_TRUE(blue_.Connect());
  AwaitEngines();
  AwaitServed("a", "engine-1");
  EXPECT_EQ(blue_.StateOf("controllers/a"), kAbsent);
  // And back. Then it stands by again.
  ASSERT_TRUE(Upgrade("engine-1", "engine-0").ok());
  EXPECT_EQ(AwaitUpgrade("engine-1").moved(), 4u);
  AwaitServed("a", "engine-0");
  AwaitStandby(green_, "a");
}

// Some of the other's controllers are its own by then.
TEST_F(StandbyTest, AfterHalfAnUpgradeItStandsByForTheRest) {
  CreateSome({"a", "b"});
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  blue_.FailYields(1, "deadline_exceeded", "requests are still in the storage");
  ASSERT_TRUE(Upgrade("engine-0", "engine-1").ok());
  EXPECT_EQ(AwaitUpgrade("engine-0").failed_total(), 1U);
  const std::string stays = EngineOf("a") == "engines/engine-0" ? "a" : "b";
  const std::string moved = stays == "a" ? "b" : "a";
  AwaitServed(moved, "engine-1");
  AwaitStandby(green_, stays);
  Await("it is counted",
        [&] { return state_->engines().Get(GetEngine("engine-1"))->status().standing_by() == 1; });
  blue_.Die();
  for (const std::string& id : {stays, moved}) AwaitServed(id, "engine-1");
}

// Which of two controllers has the guest of a migration now, it does not know.
TEST_F(StandbyTest, ItDoesNotTakeWhatIsBeingMigrated) {
  CreateSome({"a"});
  ASSERT_TRUE(state_->disks().Create(NullDisk("m")).ok());
  auto controller = NewController("m");
  controller.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(state_->controllers().Create(controller).ok());
  auto attach = Attach("m", "m");
  attach.mutable_attachment()->mutable_spec()->set_mode(v1::ATTACHMENT_MODE_INCOMING);
  ASSERT_TRUE(state_->attachments().Attach(attach).ok());
  for (const char* id : {"a", "m"}) AwaitStandby(green_, id);
  green_.TakeRequests();
  blue_.Die();
  AwaitServed("a", "engine-1");
  EXPECT_EQ(EngineOf("m"), "engines/engine-0");
  const Requests requests = green_.TakeRequests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "TakeController controllers/m"), 0);
  ASSERT_TRUE(blue_.Connect());
  Await("its engine has it again", [&] { return blue_.Has("controllers/m", 0); });
}

TEST_F(StandbyTest, WhereTheyAreOutlivesCleatd) {
  CreateSome({"a", "b"});
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  blue_.Die();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-1");
  RestartCleatd();
  EXPECT_EQ(EngineOf("a"), "engines/engine-1");
  EXPECT_EQ(EngineOf("b"), "engines/engine-1");
}

// The engine that has died is back at once, under its name, and cleatd is started anew before the other one has answered: whoever is
// heard first must not get what the other one may serve.
TEST_F(StandbyTest, NobodyUpgradesAwayWhatIsOnItsWayAndItsPlaceOutlivesCleatd) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Hold("TakeController");
  blue_.Die();
  Await("it is on its way", [&] { return UpgradeOf().state() == v1::UPGRADE_STATE_RUNNING; });
  ASSERT_TRUE(blue_.Connect());
  AwaitEngines();
  const auto refused = Upgrade("engine-0", "engine-1");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_UPGRADE_RUNNING);
  EXPECT_NE(refused.error().message.find("engines/engine-1 is taking"), std::string::npos)
      << refused.error().message;
  green_.DisconnectBeforeAnswers();
  RestartCleatd();
  ASSERT_EQ(host_.ServerOf("controllers/a"), "engine-1");
  ASSERT_TRUE(blue_.Connect());
  AwaitProbe();
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
}

TEST_F(StandbyTest, TheEndOfAConnectionIsNoDeath) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.TakeRequests();
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("a", "engine-0");
  AwaitStandby(green_, "a");
  EXPECT_EQ(green_.TakeRequests(), Requests{});
}

TEST_F(StandbyTest, ASuccessorOfTheOtherThatIsThereFirstGetsEverything) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.TakeRequests();
  // The new process connects before the old one's end is known: EngineLink tells of the death only then.
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  FakeEngine successor(socket_, "engine-0");
  successor.set_host(&host_);
  successor.set_incarnation(77);
  host_.ReleaseAll("engine-0");
  ASSERT_TRUE(successor.Connect());
  AwaitServed("a", "engine-0");
  blue_.Die();
  host_.Serve("controllers/a", "engine-0", "as before");
  AwaitProbe();
  EXPECT_EQ(EngineOf("a"), "engines/engine-0");
  const Requests requests = green_.TakeRequests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "TakeController controllers/a"), 0);
}

TEST_F(StandbyTest, WhatCanNotBeTakenInTimeIsAttachedTheOrdinaryWay) {
  CreateSome({"a", "b"});
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  green_.TakeRequests();
  green_.FailTakes(1000000);
  blue_.Die();
  for (const char* id : {"a", "b"}) green_.WaitForRequest(std::string("TakeController controllers/") + id);
  AwaitPassingLimits("they are served", [&] {
    return host_.ServerOf("controllers/a") == "engine-1" && host_.ServerOf("controllers/b") == "engine-1";
  });
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-1");
  const Requests requests = green_.TakeRequests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "PutController controllers/a"), 1);
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "Attach controllers/a 0 disks/da"), 1);
}

TEST_F(StandbyTest, AControllerThatWasJustBeingPreparedIsTakenAsSoonAsItIs) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Hold("Attach");
  CreateSome({"b"});
  green_.WaitForRequest("Attach controllers/b 0 disks/db");
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/a");
  green_.Release();
  AwaitServed("a", "engine-1");
  AwaitServed("b", "engine-1");
}

TEST_F(StandbyTest, BothDieAndWhoComesBackServes) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Hold("TakeController");
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/a");
  green_.Die();
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("a", "engine-0");
  ASSERT_TRUE(green_.Connect());
  AwaitStandby(green_, "a");
}

TEST_F(StandbyTest, BothDieAndTheStandbyComesBackFirst) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Die();
  Await("that is noticed", [&] { return !IsConnected("engine-1"); });
  blue_.Die();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
}

// What it had taken is not stored yet.
TEST_F(StandbyTest, ItsTotalsAreOfWhatWasThereToBeTaken) {
  CreateSome({"a", "b", "c", "gone"});
  for (const char* id : {"a", "b", "c", "gone"}) AwaitStandby(green_, id);
  blue_.Hold("DeleteController");
  ASSERT_TRUE(state_->attachments().Detach(Detach("gone", "dgone")).ok());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("gone")).ok());
  blue_.WaitForRequest("DeleteController controllers/gone");
  green_.Hold("TakeController controllers/c");
  blue_.Die();
  for (const char* id : {"a", "b"})
    Await("it is taken", [&] { return host_.ServerOf(ControllerName(id)) == "engine-1"; });
  green_.WaitForRequest("TakeController controllers/c");
  AwaitPassingLimits("it is over", [&] { return UpgradeOf().state() == v1::UPGRADE_STATE_DONE; });
  EXPECT_EQ(UpgradeOf().total(), 3U) << UpgradeOf().ShortDebugString();
  EXPECT_EQ(UpgradeOf().moved(), 3U);
  EXPECT_NE(UpgradeOf().message().find("2 controllers were taken at once, 1 are attached anew"),
            std::string::npos)
      << UpgradeOf().message();
  green_.Release();
  Await("the deleted one is gone", [&] { return !state_->controllers().Get(GetController("gone")).ok(); });
}

TEST_F(StandbyTest, TheStandbyDiesBeforeItHasTakenAll) {
  CreateSome({"a", "b"});
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  green_.Hold("TakeController controllers/b");
  blue_.Die();
  Await("a is taken", [&] { return host_.ServerOf("controllers/a") == "engine-1"; });
  green_.WaitForRequest("TakeController controllers/b");
  green_.Die();
  Await("that is over", [&] { return UpgradeOf().state() == v1::UPGRADE_STATE_FAILED; });
  EXPECT_EQ(UpgradeOf().failed_total(), 2U);
  EXPECT_EQ(EngineOf("a"), "engines/engine-0");
  ASSERT_TRUE(blue_.Connect());
  AwaitServed("a", "engine-0");
  AwaitServed("b", "engine-0");
}

TEST_F(StandbyTest, ItsSuccessorDiesWhileItIsTakenFrom) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Hold("TakeController controllers/a");
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/a");
  ASSERT_TRUE(blue_.Connect());
  AwaitEngines();
  CreateSome({"c"});
  AwaitStandby(green_, "c");
  blue_.Die();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  green_.Release();
  AwaitServed("a", "engine-1");
  AwaitServed("c", "engine-1");
}

TEST_F(StandbyTest, TheDeathOfAnEarlierProcessIsNotThatOfItsSuccessor) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  FakeEngine successor(socket_, "engine-0");
  successor.set_host(&host_);
  successor.set_incarnation(77);
  ASSERT_TRUE(successor.Connect());
  AwaitServed("a", "engine-0");
  AwaitStandby(green_, "a");
  green_.TakeRequests();
  successor.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  blue_.Die();
  host_.Serve("controllers/a", "engine-0", "as before");
  ASSERT_TRUE(successor.Connect());
  AwaitProbe();
  AwaitServed("a", "engine-0");
  const Requests requests = green_.TakeRequests();
  EXPECT_EQ(std::count(requests.begin(), requests.end(), "TakeController controllers/a"), 0);
}

// It took, and nobody heard of that: whoever is there meanwhile must not get it.
TEST_F(StandbyTest, OneThatWasAskedToTakeAndIsNotHeardOfMayServe) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Hold("TakeController");
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/a");
  green_.DisconnectBeforeAnswers();
  Await("that is noticed", [&] { return !IsConnected("engine-1"); });
  ASSERT_EQ(host_.ServerOf("controllers/a"), "engine-1");
  ASSERT_TRUE(blue_.Connect());
  AwaitProbe();
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
  EXPECT_EQ(host_.Violations(), Requests{});
}

TEST_F(StandbyTest, OneThatIsNotHeardOfAgainKeepsWhatItMayServe) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Hold("TakeController");
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/a");
  green_.DisconnectBeforeAnswers();
  ASSERT_TRUE(blue_.Connect());
  AwaitPassingLimits("it is its", [&] { return EngineOf("a") == "engines/engine-1"; });
  AwaitProbe();
  EXPECT_EQ(host_.ServerOf("controllers/a"), "engine-1");
  EXPECT_EQ(host_.Violations(), Requests{});
}

TEST_F(StandbyTest, AStandbyThatDiesAndReturnsPreparesAgain) {
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  green_.Die();
  Await("that is noticed", [&] { return !IsConnected("engine-1"); });
  ASSERT_TRUE(green_.Connect());
  AwaitStandby(green_, "a");
  AwaitServed("a", "engine-0");
}

TEST_F(StandbyTest, CleatdIsRestartedBetweenTheDeathAndTheRowsChange) {
  CreateSome({"a", "b"});
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  green_.Hold("TakeController controllers/b");
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/b");  // a is taken, and not yet committed
  Await("it has begun", [&] { return UpgradeOf().state() == v1::UPGRADE_STATE_RUNNING; });
  RestartCleatd();
  // The dead one's successor is there first: it has to wait for who may have taken.
  ASSERT_TRUE(blue_.Connect());
  AwaitProbe();
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
  AwaitServed("b", "engine-0");
}

TEST_F(StandbyTest, ItBecomesGreenInAnUpgrade) {
  CreateSome({"a", "b"});
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  green_.TakeRequests();
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().moved(), 2u);
  EXPECT_EQ(green_.TakeRequests(), (Requests{"TakeController controllers/a handed over",
                                             "TakeController controllers/b handed over"}));
}

TEST_F(StandbyTest, AnEngineCanNotStandByForItself) {
  FakeEngine odd(socket_, "odd");
  odd.set_stands_by_for("odd");
  EXPECT_FALSE(odd.Connect());
  EXPECT_NE(odd.refusal().find("itself"), std::string::npos);
}

// ---- With a real process ----

// Plays an engine in a process of its own, until it is killed: the kernel says that it has ended, and nobody else.
class RealProcess {
 public:
  // Before any other thread. It connects when it is told to.
  explicit RealProcess(const std::string& socket) {
    int ends[2];
    CLEAT_CHECK(pipe(ends) == 0);
    pid_ = fork();
    CLEAT_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      close(ends[1]);
      char go = 0;
      if (read(ends[0], &go, 1) != 1) _exit(0);
      FakeEngine engine(socket, "engine-0");
      if (!engine.Connect()) _exit(1);
      pause();
      _exit(0);
    }
    close(ends[0]);
    go_ = UniqueFd(ends[1]);
  }
  ~RealProcess() { Kill(); }
  void Connect() { CLEAT_CHECK(write(go_.get(), "x", 1) == 1); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
  UniqueFd go_;
};

class ProcessTest : public StandbyTest {
 protected:
  void SetUp() override {}
};

TEST_F(ProcessTest, ARealProcessDeathIsSeen) {
  Stop();
  RealProcess real(socket_);
  // Not as the other tests: pidfds.
  memory_ = std::make_unique<MemfdKeeper>();
  store_ = std::move(Store::Open(dir_.path()).value());
  state_ = std::move(HostState::Load(*store_, *memory_).value());
  link_ = std::move(EngineLink::Listen(socket_, clock_).value());
  reconciler_ = std::make_unique<Reconciler>(*state_, *memory_, *link_, clock_, options_);
  state_->SetWake([link = link_.get()] { link->Wake(); });
  link_->Start(*reconciler_);
  green_.set_stands_by_for("engine-0");
  real.Connect();
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  Create(NullDisk("d"), "a");
  AwaitStandby(green_, "a");
  Await("it is open", [&] {
    return state_->attachments().Get(GetAttachment("a", "d"))->status().state() == v1::ATTACHMENT_STATE_READY;
  });
  real.Kill();
  AwaitServed("a", "engine-1");
}

}  // namespace
}  // namespace cleat::control::standby_test
