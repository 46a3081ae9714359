// SPDX-License-Identifier: Apache-2.0
// An engine whose process is stopped or hangs: it is connected, and does nothing. What is shown of it, and who takes its controllers.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>

#include "moves_rig.h"

namespace cleat::control::stopped_engine_test {
namespace {

class StoppedEngineTest : public MovesRig {
 protected:
  StoppedEngineTest() {
    options_.heartbeat = {};  // as cleatd has them
    green_.set_stands_by_for("engine-0");
  }

  void Begin() {
    RestartCleatd();
    ASSERT_TRUE(blue_.Connect());
    ASSERT_TRUE(green_.Connect());
    AwaitEngines();
    CreateSome({"a", "b"});
    for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  }
  v1::EngineStatus StatusOf(const std::string& engine) {
    return state_->engines().Get(GetEngine(engine))->status();
  }
  void AwaitNotAnswering(const std::string& engine) {
    Await(engine + " is known not to answer",
          [&] { return StatusOf(engine).state() == v1::ENGINE_STATE_NOT_ANSWERING; });
  }
  v1::ControllerStatus ControllerStatusOf(const std::string& id) {
    return state_->controllers().Get(GetController(id))->status();
  }
  v1::AttachmentState AttachmentStateOf(const std::string& id) {
    return state_->attachments().Get(GetAttachment(id, "d" + id))->status().state();
  }
  bool EverNotAnswering(Watcher& watcher) {
    bool ever = false;
    while (const WatchEvent event = *watcher.Next(std::chrono::milliseconds(1)))
      ever |= event->engine().status().state() == v1::ENGINE_STATE_NOT_ANSWERING;
    return ever;
  }
};

TEST_F(StoppedEngineTest, IsNotReadyToAnybody) {
  Begin();
  const auto watcher = state_->Watch();
  blue_.Freeze();
  AwaitNotAnswering("engine-0");
  EXPECT_TRUE(StatusOf("engine-0").connected());
  EXPECT_NE(StatusOf("engine-0").message().find("no answer"), std::string::npos);
  EXPECT_NE(StatusOf("engine-0").not_answering_since().seconds(), 0);
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(ControllerStatusOf(id).state(), v1::CONTROLLER_STATE_NOT_ANSWERING);
    EXPECT_NE(ControllerStatusOf(id).message().find("engines/engine-0"), std::string::npos);
    EXPECT_EQ(AttachmentStateOf(id), v1::ATTACHMENT_STATE_NOT_ANSWERING);
  }
  EXPECT_EQ(StatusOf("engine-1").state(), v1::ENGINE_STATE_CONNECTED);

  v1::WaitRequest wait;
  wait.set_name("controllers/a");
  wait.mutable_timeout()->set_nanos(1'000'000);
  EXPECT_FALSE(state_->waits().Wait(wait, [] { return false; }).ok());
  // Neither it nor its standby gets what is new.
  ASSERT_TRUE(state_->controllers().Create(NewController("new")).ok());
  EXPECT_EQ(EngineOf("new"), "");

  blue_.Thaw();
  Await("it answers", [&] { return StatusOf("engine-0").state() == v1::ENGINE_STATE_CONNECTED; });
  EXPECT_EQ(ControllerStatusOf("a").state(), v1::CONTROLLER_STATE_CONNECTING);
  EXPECT_EQ(AttachmentStateOf("b"), v1::ATTACHMENT_STATE_READY);
  Await("what waited for it is placed", [&] { return EngineOf("new") == "engines/engine-0"; });
  EXPECT_EQ(kills_, 0) << "nobody has set a limit";
}

TEST_F(StoppedEngineTest, IsOneWhoseReactorHangs) {
  Begin();
  blue_.HangReactor(true);
  AwaitNotAnswering("engine-0");
  EXPECT_NE(StatusOf("engine-0").message().find("reactor-0"), std::string::npos);
  blue_.HangReactor(false);
  Await("it goes on", [&] { return StatusOf("engine-0").state() == v1::ENGINE_STATE_CONNECTED; });
}

// Time in which cleatd did not run is nobody's silence.
TEST_F(StoppedEngineTest, IsNotOneThatCleatdCouldNotHear) {
  options_.heartbeat.limit_ns = kHourNs / 2;
  Begin();
  const auto watcher = state_->Watch();
  blue_.Freeze();
  Await("it is asked", [&] { return blue_.IsAskedInVain(); });
  PassLimits();
  StallLink([] {});
  StallLink([] {});  // all that the leap brought about has been done
  blue_.Thaw();
  Await("it answers", [&] { return !blue_.IsAskedInVain(); });
  StallLink([] {});
  EXPECT_FALSE(EverNotAnswering(**watcher));
}

TEST_F(StoppedEngineTest, IsKilledAfterTheLimitIfItsStandbyCanTakeOver) {
  options_.kill_after_ns = kNsPerSecond;
  Begin();
  blue_.Freeze();
  Await("it is killed", [&] { return kills_ == 1; });
  EXPECT_EQ(EngineOf("a"), "engines/engine-0") << "its process has not ended";
  Await("the standby says why it waits", [&] {
    return StatusOf("engine-1").message().find("was killed and has not ended") != std::string::npos;
  });
  EXPECT_NE(StatusOf("engine-0").message().find("was killed and has not ended"), std::string::npos);
  EXPECT_EQ(kills_, 1);
  blue_.Die();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-1");
  Await("nothing is waited for", [&] { return StatusOf("engine-1").message().empty(); });
}

TEST_F(StoppedEngineTest, IsNotKilledWithoutAStandbyThatAnswers) {
  options_.kill_after_ns = kNsPerSecond;
  Begin();
  green_.Freeze();
  AwaitNotAnswering("engine-1");
  blue_.Freeze();
  AwaitNotAnswering("engine-0");
  std::this_thread::sleep_for(std::chrono::seconds(2));  // twice the limit: a lower bound
  EXPECT_EQ(kills_, 0);
  green_.Thaw();
  Await("it is killed", [&] { return kills_ == 1; });
}

// ---- The standby is the one that does not answer ----

class StoppedStandbyTest : public StoppedEngineTest {
 protected:
  void TearDown() override { EXPECT_EQ(host_.Violations(), std::vector<std::string>{}); }

  void BlueDies() {
    blue_.Die();
    Await("blue's death is known", [&] { return StatusOf("engine-0").state() == v1::ENGINE_STATE_ENDED; });
  }
  void BlueReturns() {
    ASSERT_TRUE(blue_.Connect());
    Await("blue is back", [&] { return StatusOf("engine-0").state() == v1::ENGINE_STATE_CONNECTED; });
  }
  // Green was asked to take a and b, and stops before it has done so.
  void GreenStopsBeforeItTakes() {
    green_.Hold("TakeController");
    blue_.Die();
    for (const char* id : {"a", "b"}) green_.WaitForRequest("TakeController " + ControllerName(id));
    green_.Freeze();
    AwaitNotAnswering("engine-1");
  }
};

TEST_F(StoppedStandbyTest, TakesNothingAndThePrincipalServesWhenItIsBack) {
  Begin();
  green_.Freeze();
  AwaitNotAnswering("engine-1");
  BlueDies();
  PassLimits();
  BlueReturns();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-0");
  green_.Thaw();
  for (const char* id : {"a", "b"}) AwaitStandby(green_, id);
  AwaitProbe();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-0");
}

TEST_F(StoppedStandbyTest, TakesWhatADeadEngineServedWhenItAnswersAgain) {
  Begin();
  green_.Freeze();
  AwaitNotAnswering("engine-1");
  BlueDies();
  PassLimits();
  EXPECT_EQ(EngineOf("a"), "engines/engine-0");
  green_.Thaw();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-1");
}

TEST_F(StoppedStandbyTest, MayServeWhatItWasAskedToTakeUntilItHasEnded) {
  Begin();
  GreenStopsBeforeItTakes();
  BlueReturns();
  PassLimits();
  for (const char* id : {"a", "b"}) {
    Await("it says what it waits for", [&] {
      return ControllerStatusOf(id).message().find("engines/engine-1, which was asked") != std::string::npos;
    });
  }
  AwaitProbe();
  for (const char* id : {"a", "b"}) {
    EXPECT_EQ(EngineOf(id), "engines/engine-0") << "nobody knows that the standby has it";
    EXPECT_EQ(host_.ServerOf(ControllerName(id)), "");
  }
  green_.Die();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-0");
}

TEST_F(StoppedStandbyTest, HasWhatItWasAskedToTakeIfItAnswers) {
  Begin();
  GreenStopsBeforeItTakes();
  BlueReturns();
  PassLimits();
  AwaitProbe();
  green_.Thaw();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-1");
}

TEST_F(StoppedStandbyTest, KeepsWhatItHasTakenAndLetsGoOfWhatItWasNotAskedFor) {
  Begin();
  green_.Hold("Attach");
  CreateSome({"c"});
  green_.WaitForRequest("Attach controllers/c 0 disks/dc");
  blue_.Die();
  for (const char* id : {"a", "b"})
    Await("it is taken", [&] { return host_.ServerOf(ControllerName(id)) == "engine-1"; });
  green_.Freeze();
  AwaitNotAnswering("engine-1");
  BlueReturns();
  AwaitServed("c", "engine-0");
  PassLimits();
  for (const char* id : {"a", "b"})
    Await("it is green's", [&] { return EngineOf(id) == "engines/engine-1"; });
  green_.Thaw();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-1");
  AwaitServed("c", "engine-0");
}

// The first of two engines by name stands by as long as it answers.
TEST_F(StoppedStandbyTest, LeavesItToAnotherStandbyThatAnswers) {
  Begin();
  FakeEngine other(socket_, "engine-2");
  other.set_host(&host_);
  other.set_stands_by_for("engine-0");
  ASSERT_TRUE(other.Connect());
  Await("it is there", [&] { return IsConnected("engine-2"); });
  EXPECT_EQ(other.StateOf("controllers/a"), kAbsent);
  green_.Freeze();
  for (const char* id : {"a", "b"}) AwaitStandby(other, id);
  blue_.Die();
  for (const char* id : {"a", "b"}) AwaitServed(id, "engine-2");
  green_.Thaw();
  Await("green has let go", [&] { return green_.StateOf("controllers/a") == kAbsent; });
}

}  // namespace
}  // namespace cleat::control::stopped_engine_test
