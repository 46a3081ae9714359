// SPDX-License-Identifier: Apache-2.0
// Upgrades, while one of the engines or cleatd dies.
#include <gtest/gtest.h>

#include <tuple>

#include "moves_rig.h"

namespace cleat::control::upgrade_deaths_test {
namespace {

class UpgradeDeathsTest : public TwoEngines {};

TEST_F(UpgradeDeathsTest, BlueDiesBeforeItHasAnswered) {
  PassLimits();  // the host was started long ago
  CreateSome({"a", "b"});
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  green_.TakeRequests();
  blue_.Die();
  green_.WaitForRequest("TakeController controllers/a");  // without a hand-over
  AwaitServed("a", "engine-1");
  AwaitServed("b", "engine-1");
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.moved(), 2u);
  EXPECT_LT(static_cast<uint64_t>(status.longest_pause().seconds()), kHourNs / kNsPerSecond)
      << "from the death on, not from the host's start";
}

TEST_F(UpgradeDeathsTest, BlueDiesAfterItHasLetGo) {
  CreateSome({"a", "b"});
  green_.Hold("TakeController");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/a handed over");
  blue_.Die();
  green_.Release();
  AwaitServed("a", "engine-1");
  AwaitServed("b", "engine-1");
}

TEST_F(UpgradeDeathsTest, GreenDiesBeforeAndWhileItTakes) {
  CreateSome({"a", "b"});
  green_.Hold("Attach");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("Attach controllers/a 0 disks/da");
  green_.Die();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 2u);
  AwaitServed("a", "engine-0");
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  green_.Hold("TakeController");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/a handed over");
  green_.Die();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 2u);
  AwaitServed("a", "engine-0");
  AwaitServed("b", "engine-0");
}

// Blue could not take it back while green was at it, and has nothing to try again by itself.
TEST_F(UpgradeDeathsTest, GreenDiesWhenNobodyWaitsForItsTakeAnyMore) {
  CreateSome({"a"});
  green_.Hold("TakeController");
  blue_.FailTakes(1);
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/a handed over");
  PassLimits();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1U);
  blue_.TakeRequests();
  for (const char* probe : {"p1", "p2"}) {  // it is looked at again, in vain
    PassLimits();
    auto request = NewController(probe);
    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    blue_.WaitForRequest(std::string("PutController ") + ControllerName(probe));
  }
  EXPECT_EQ(blue_.TakeRequests(), (Requests{"PutController controllers/p1", "PutController controllers/p2"}));
  EXPECT_EQ(host_.ServerOf("controllers/a"), "");
  green_.Die();
  AwaitServed("a", "engine-0");
}

// What green is known to serve is not taken back, however late the answer was.
TEST_F(UpgradeDeathsTest, GreenAnswersLateAndBlueIsAway) {
  CreateSome({"a"});
  green_.Hold("TakeController");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/a handed over");
  blue_.Disconnect();
  EXPECT_EQ(AwaitUpgradePassingLimits().failed_total(), 1U);
  green_.Release();
  Await("it is its", [&] { return EngineOf("a") == "engines/engine-1"; });
  ASSERT_TRUE(blue_.Connect());
  AwaitProbe();
  AwaitServed("a", "engine-1");
}

class GreenIsAwayTest : public UpgradeDeathsTest {
 protected:
  // Green has taken it and nobody heard of that; blue's connection is lost as well, and the upgrade is over.
  void SetUp() override {
    UpgradeDeathsTest::SetUp();
    CreateSome({"a"});
    green_.Hold("TakeController");
    ASSERT_TRUE(Upgrade().ok());
    green_.WaitForRequest("TakeController controllers/a handed over");
    blue_.Disconnect();
    Await("that is noticed", [&] { return !IsConnected("engine-0"); });
    green_.DisconnectBeforeAnswers();
    EXPECT_EQ(AwaitUpgradePassingLimits().failed_total(), 1U);
  }
};

TEST_F(GreenIsAwayTest, WhenBlueDies) {
  blue_.Die();
  ASSERT_TRUE(blue_.Connect());
  AwaitProbe();
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
}

TEST_F(GreenIsAwayTest, WhenBluesSuccessorComesBeforeItsDeathIsKnown) {
  FakeEngine successor(socket_, "engine-0");
  successor.set_host(&host_);
  successor.set_incarnation(77);
  ASSERT_TRUE(successor.Connect());
  AwaitProbe();
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
}

TEST_F(UpgradeDeathsTest, ItEndsWhenNobodyIsThereAnyMore) {
  CreateSome({"a", "b"});
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  blue_.Disconnect();
  green_.Disconnect();
  EXPECT_EQ(AwaitUpgradePassingLimits().failed_total(), 2U);
}

// Its connection is lost first, so that nobody is there to take it when blue dies.
TEST_F(UpgradeDeathsTest, GreenIsNotHeardOfWhileItTakesAndBlueDies) {
  CreateSome({"a"});
  green_.Hold("TakeController");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/a handed over");
  green_.DisconnectBeforeAnswers();
  Await("that is noticed", [&] { return !IsConnected("engine-1"); });
  blue_.Die();
  ASSERT_TRUE(blue_.Connect());
  // Once the upgrade is over, for nothing is placed on an engine that is being left.
  ASSERT_TRUE(state_->controllers().Create(NewController("probe")).ok());
  AwaitPassingLimits("it goes on", [&] { return IsProbed(); });
  const auto shown = state_->controllers().Get(GetController("a"));
  EXPECT_NE(shown->status().message().find("engines/engine-1 is not connected"), std::string::npos)
      << shown->status().ShortDebugString();
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
}

TEST_F(UpgradeDeathsTest, AnEngineThatOnlyLosesItsConnectionIsNotTakenFrom) {
  CreateSome({"a"});
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  green_.TakeRequests();
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  EXPECT_EQ(host_.ServerOf("controllers/a"), "engine-0") << "it serves on";
  EXPECT_EQ(green_.TakeRequests(), Requests{});
  ASSERT_TRUE(blue_.Connect());
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1u);
  AwaitServed("a", "engine-0");
}

// ---- What another engine waits for, and the death of the one that has it ----

class LeftoverTest : public UpgradeDeathsTest {
 protected:
  // Green serves "a", and blue does not answer that request about what is left of it there.
  void MoveAndHold(const std::string& request) {
    CreateSome({"a"});
    blue_.Hold(request);
    ASSERT_TRUE(Upgrade().ok());
    AwaitUpgrade();
    AwaitServed("a", "engine-1");
    blue_.WaitForRequest(request);
    green_.TakeRequests();
  }
  // When this returns cleatd has read whatever that engine had answered before, and has done what follows.
  void AwaitRead(const std::string& engine, const std::string& probe) {
    auto request = NewController(probe);
    request.mutable_controller()->mutable_spec()->set_engine(EngineName(engine));
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    Await(probe + " is there", [&] {
      return state_->controllers().Get(GetController(probe))->status().state() == v1::CONTROLLER_STATE_IDLE;
    });
  }
  bool IsAttached() { return state_->attachments().Get(GetAttachment("a", "da")).ok(); }
  bool IsThere() { return state_->controllers().Get(GetController("a")).ok(); }
};

TEST_F(LeftoverTest, ADetachEndsWhenTheLastEngineThatHasTheDiskDies) {
  MoveAndHold("Detach controllers/a 0");
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "da")).ok());
  green_.WaitForRequest("Detach controllers/a 0");
  AwaitRead("engine-1", "probe1");
  EXPECT_TRUE(IsAttached()) << "blue has the disk";
  blue_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  AwaitRead("engine-1", "probe2");
  EXPECT_TRUE(IsAttached()) << "blue may have the disk";
  blue_.Die();
  Await("it is detached", [&] { return !IsAttached(); });
}

TEST_F(LeftoverTest, ADeletionEndsWhenTheLastEngineThatHadTheControllerIsBackWithoutIt) {
  MoveAndHold("DeleteController controllers/a");
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "da")).ok());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  AwaitRead("engine-1", "probe1");
  EXPECT_TRUE(IsThere()) << "blue has the controller";
  blue_.DisconnectBeforeAnswers();
  Await("that is noticed", [&] { return !IsConnected("engine-0"); });
  AwaitRead("engine-1", "probe2");
  EXPECT_TRUE(IsThere()) << "blue may have the controller";
  ASSERT_TRUE(blue_.Connect());
  Await("it is gone", [&] { return !IsThere(); });
}

// Of an earlier controller of that name.
TEST_F(LeftoverTest, AControllerIsPutWhenTheEngineThatServesAnOldOneDies) {
  green_.Disconnect();
  engine::v1::Controller old;
  old.set_name("controllers/a");
  green_.Plant(old);
  green_.SetControllerState("controllers/a", kConnecting);
  green_.Hold("DeleteController controllers/a");
  ASSERT_TRUE(green_.Connect());
  green_.WaitForRequest("DeleteController controllers/a");
  Create(NullDisk("da"), "a");
  AwaitRead("engine-0", "probe1");
  EXPECT_EQ(blue_.TakeRequests(), Requests{"PutController controllers/probe1"});
  green_.Disconnect();
  Await("that is noticed", [&] { return !IsConnected("engine-1"); });
  AwaitRead("engine-0", "probe2");
  EXPECT_EQ(blue_.TakeRequests(), Requests{"PutController controllers/probe2"}) << "green may serve";
  green_.Die();
  AwaitServed("a", "engine-0");
}

// ---- cleatd's restart, at each step, and whoever comes back first ----

struct Step {
  const char* held_at_blue;
  const char* held_at_green;
  bool done_there;  // what was held is done, and its answer lost
};

class RestartTest : public UpgradeDeathsTest, public ::testing::WithParamInterface<std::tuple<Step, bool>> {};

TEST_P(RestartTest, EachControllerIsServedByOneAndTheUpgradeIsOver) {
  const auto& [step, blue_first] = GetParam();
  CreateSome({"a", "b"});
  if (step.held_at_blue != nullptr) blue_.Hold(step.held_at_blue);
  if (step.held_at_green != nullptr) green_.Hold(step.held_at_green);
  ASSERT_TRUE(Upgrade().ok());
  if (step.held_at_blue != nullptr) blue_.WaitForRequest(std::string(step.held_at_blue) + " controllers/a");
  if (step.held_at_green != nullptr) {
    green_.WaitForRequest(std::string(step.held_at_green) + " controllers/a" +
                          (std::string(step.held_at_green) == "Attach" ? " 0 disks/da" : " handed over"));
  }
  Stop();
  if (step.done_there) {
    blue_.Release();
    green_.Release();
  }
  blue_.Disconnect();
  green_.Disconnect();
  Start();
  EXPECT_EQ(UpgradeOf().state(), v1::UPGRADE_STATE_INTERRUPTED);
  EXPECT_NE(UpgradeOf().message().find("cleatd was restarted"), std::string::npos);
  ASSERT_TRUE((blue_first ? blue_ : green_).Connect());
  AwaitProbe();  // before the other one has said what it has
  ASSERT_TRUE((blue_first ? green_ : blue_).Connect());
  for (const char* id : {"a", "b"}) {
    const std::string name = ControllerName(id);
    Await(name + " is served where its row is", [&] {
      const std::string server = host_.ServerOf(name);
      return !server.empty() && EngineOf(id) == EngineName(server) &&
             (blue_.StateOf(name) == kAbsent || green_.StateOf(name) == kAbsent);
    });
  }
  AwaitEngines();
  ASSERT_TRUE(Upgrade().ok());
  AwaitUpgrade();
  AwaitServed("a", "engine-1");
  AwaitServed("b", "engine-1");
}

INSTANTIATE_TEST_SUITE_P(AtEachStep, RestartTest,
                         ::testing::Combine(::testing::Values(Step{nullptr, "Attach", false},
                                                              Step{"YieldController", nullptr, false},
                                                              Step{"YieldController", nullptr, true},
                                                              Step{nullptr, "TakeController", false},
                                                              Step{nullptr, "TakeController", true}),
                                            ::testing::Bool()));

}  // namespace
}  // namespace cleat::control::upgrade_deaths_test
