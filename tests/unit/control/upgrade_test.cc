// SPDX-License-Identifier: Apache-2.0
// Upgrades: all controllers of an engine go to another one, whatever fails meanwhile.
#include <gtest/gtest.h>

#include <array>

#include "control/model/reasons.h"
#include "moves_rig.h"

namespace cleat::control::upgrade_test {
namespace {

class UpgradeTest : public TwoEngines {
 protected:
  void ExpectRefused(const std::string& from, const std::string& to, v1::Reason reason,
                     const std::string& words) {
    const auto refused = Upgrade(from, to);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(ReasonOf(refused.error()), reason) << refused.error().message;
    EXPECT_NE(refused.error().message.find(words), std::string::npos) << refused.error().message;
  }
};

TEST_F(UpgradeTest, EachControllerIsPreparedThenYieldedThenTaken) {
  Create(NullDisk("d"), "a");
  Create(NullDisk("e"), "s", v1::CONTROLLER_TYPE_SCSI);
  Create(NullDisk("f"), "s");
  AwaitServed("a", "engine-0");
  AwaitServed("s", "engine-0");
  blue_.TakeRequests();
  const auto answer = Upgrade();
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->controllers_size(), 2);
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_DONE) << status.ShortDebugString();
  EXPECT_EQ(status.moved(), 2u);
  EXPECT_EQ(status.prepared(), 2u);
  EXPECT_EQ(status.to(), "engines/engine-1");
  AwaitServed("a", "engine-1");
  AwaitServed("s", "engine-1");
  Await("blue has nothing any more", [&] {
    return blue_.StateOf("controllers/a") == kAbsent && blue_.StateOf("controllers/s") == kAbsent;
  });
  const Requests green = green_.TakeRequests();
  const auto place = [&](const std::string& request) {
    return std::find(green.begin(), green.end(), request) - green.begin();
  };
  const auto take = static_cast<std::ptrdiff_t>(green.size()) - 2;
  for (const char* request : {"PutController controllers/a standby", "PutController controllers/s standby",
                              "Attach controllers/a 0 disks/d", "Attach controllers/s 0 disks/e",
                              "Attach controllers/s 1 disks/f"}) {
    EXPECT_LT(place(request), take) << request << " comes before the first is taken";
  }
  EXPECT_EQ(place("TakeController controllers/a handed over"), take);
  EXPECT_EQ(place("TakeController controllers/s handed over"), take + 1);
  EXPECT_EQ(green_.TakenWith().disks_size(), 2) << "what the limits have used goes along";
  const Requests blue = blue_.TakeRequests();
  const auto yielded = std::find(blue.begin(), blue.end(), "YieldController controllers/a");
  EXPECT_EQ(std::count(yielded, blue.end(), "YieldController controllers/s"), 1);
  EXPECT_EQ(state_->engines().Get(GetEngine("engine-1"))->status().controllers(), 2u);
}

TEST_F(UpgradeTest, TheWayBackIsTheSame) {
  CreateSome({"a", "b"});
  ASSERT_TRUE(Upgrade().ok());
  AwaitUpgrade();
  ASSERT_TRUE(Upgrade("engine-1", "engine-0").ok());
  EXPECT_EQ(AwaitUpgrade("engine-1").moved(), 2u);
  AwaitServed("a", "engine-0");
  AwaitServed("b", "engine-0");
}

TEST_F(UpgradeTest, WhereAControllerIsOutlivesCleatd) {
  CreateSome({"a"});
  ASSERT_TRUE(Upgrade().ok());
  AwaitUpgrade();
  RestartCleatd();
  EXPECT_EQ(EngineOf("a"), "engines/engine-1");
  EXPECT_EQ(UpgradeOf().state(), v1::UPGRADE_STATE_DONE);
  blue_.TakeRequests();
  green_.TakeRequests();
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  AwaitServed("a", "engine-1");
  EXPECT_EQ(green_.TakeRequests(), Requests{});
}

TEST_F(UpgradeTest, MemoryIsHeldByBothAndThenByTheOther) {
  Create(MemoryDisk("m"), "a");
  AwaitServed("a", "engine-0");
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().moved(), 1u);
  EXPECT_TRUE(green_.MemoryOf("disks/m").valid());
  Await("blue has let go of it", [&] { return !blue_.MemoryOf("disks/m").valid(); });
  blue_.Die();  // and is never seen again
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "m")).ok());
  Await("it is detached", [&] { return !state_->attachments().Get(GetAttachment("a", "m")).ok(); });
  ASSERT_TRUE(state_->disks().Delete(DeleteDisk("m")).ok());
  Await("it is deleted", [&] { return !state_->disks().Get(GetDisk("m")).ok(); });
}

TEST_F(UpgradeTest, GroupsGoFirstAndLimitsFollow) {
  ASSERT_TRUE(state_->groups().Create(NewGroup("g", 100)).ok());
  auto request = ControllerIn("a", "g");
  request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
  ASSERT_TRUE(state_->controllers().Create(request).ok());
  Create(NullDisk("d"), "a");
  AwaitServed("a", "engine-0");
  green_.Hold("YieldController");
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  EXPECT_TRUE(green_.Groups().contains("groups/g"));
  ASSERT_TRUE(state_->groups().Update(LimitGroup("g", 200)).ok());
  ASSERT_TRUE(state_->disks().Update(LimitDisk("d", 50)).ok());
  Await("both know the limits", [&] {
    return green_.Groups()["groups/g"].limits().iops().per_second() == 200 &&
           green_.DiskAt("controllers/a", 0).limits().iops().per_second() == 50;
  });
  blue_.Release();
  EXPECT_EQ(AwaitUpgrade().moved(), 1u);
  Await("blue has no group any more", [&] { return blue_.Groups().empty(); });
}

TEST_F(UpgradeTest, WhatIsAttachedAndDetachedMeanwhileIsSoAfterwards) {
  Create(NullDisk("d"), "s", v1::CONTROLLER_TYPE_SCSI);
  Create(NullDisk("e"), "s");
  CreateSome({"a"});
  AwaitServed("s", "engine-0");
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");  // s is prepared and waits
  ASSERT_TRUE(state_->attachments().Detach(Detach("s", "d")).ok());
  Create(NullDisk("f"), "s");
  Await("it is detached on both", [&] { return !state_->attachments().Get(GetAttachment("s", "d")).ok(); });
  const auto has_f = [](FakeEngine& engine) {
    return std::ranges::any_of(std::array{0U, 2U}, [&](uint32_t target) {
      return engine.Has("controllers/s", target) &&
             engine.DiskAt("controllers/s", target).name() == "disks/f";
    });
  };
  Await("it is attached on both", [&] { return has_f(green_) && has_f(blue_); });
  // And what comes while it is under way is done when it is there.
  ASSERT_TRUE(state_->attachments().Detach(Detach("a", "da")).ok());
  blue_.Release();
  EXPECT_EQ(AwaitUpgrade().moved(), 2u);
  Await("a has no disk", [&] { return !state_->attachments().Get(GetAttachment("a", "da")).ok(); });
  EXPECT_FALSE(green_.Has("controllers/a", 0));
  AwaitServed("s", "engine-1");
}

TEST_F(UpgradeTest, AControllerThatIsDeletedMeanwhileIsNoFailure) {
  CreateSome({"a"});
  ASSERT_TRUE(state_->controllers()
                  .Create([] {
                    auto request = NewController("z");
                    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
                    return request;
                  }())
                  .ok());
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("z")).ok());
  Await("it is gone", [&] { return !state_->controllers().Get(GetController("z")).ok(); });
  EXPECT_EQ(green_.StateOf("controllers/z"), kAbsent);
  blue_.Release();
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_DONE);
  EXPECT_EQ(status.total(), 1u);
}

// ---- Failures ----

TEST_F(UpgradeTest, WhatCanNotYieldStaysAndIsNamedAndASecondCallMovesIt) {
  CreateSome({"a", "b", "c"});
  blue_.FailYields(1, "deadline_exceeded", "3 requests are still in the storage");
  ASSERT_TRUE(Upgrade().ok());
  v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_FAILED);
  EXPECT_EQ(status.moved(), 2u);
  ASSERT_EQ(status.failed_size(), 1);
  EXPECT_EQ(status.failed(0).controller(), "controllers/a");
  EXPECT_EQ(status.failed(0).reason(), "3 requests are still in the storage");
  AwaitServed("a", "engine-0");
  Await("green has closed what it had opened", [&] { return green_.StateOf("controllers/a") == kAbsent; });
  ASSERT_TRUE(Upgrade().ok());
  status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_DONE);
  EXPECT_EQ(status.total(), 1u);
  AwaitServed("a", "engine-1");
}

TEST_F(UpgradeTest, WhatCanNotBeTakenIsTakenBack) {
  CreateSome({"a", "b"});
  green_.FailTakes(1);
  ASSERT_TRUE(Upgrade().ok());
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.moved(), 1u);
  ASSERT_EQ(status.failed_size(), 1);
  EXPECT_EQ(status.failed(0).reason(), "the disk is locked");
  AwaitServed("a", "engine-0");
  AwaitServed("b", "engine-1");
}

// Nobody can have it for a moment: it is tried until somebody can, also the ordinary way.
TEST_F(UpgradeTest, WhatNobodyCanTakeIsTriedUntilItCan) {
  CreateSome({"a"});
  green_.FailTakes(1);
  blue_.FailTakes(3);
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().failed_size(), 1);
  AwaitServed("a", "engine-0");
}

TEST_F(UpgradeTest, WhatCanNotBePreparedStaysUntouched) {
  CreateSome({"a"});
  green_.FailAttaches(1000000, "not_found", "no such file");
  blue_.TakeRequests();
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("Attach controllers/a 0 disks/da");
  EXPECT_EQ(UpgradeOf().state(), v1::UPGRADE_STATE_RUNNING);
  PassLimits();
  const v1::UpgradeStatus status = AwaitUpgrade();
  ASSERT_EQ(status.failed_size(), 1);
  EXPECT_NE(status.failed(0).reason().find("no such file"), std::string::npos) << status.failed(0).reason();
  EXPECT_EQ(blue_.TakeRequests(), Requests{});
  AwaitServed("a", "engine-0");
}

TEST_F(UpgradeTest, ADiskThatIsShutOutOfItsStorageKeepsItsControllerWhereItIs) {
  CreateSome({"a"});
  blue_.FenceAttachment("controllers/a", 0, "its client was blocklisted");
  Await("that is known", [&] {
    return state_->attachments().Get(GetAttachment("a", "da"))->status().state() ==
           v1::ATTACHMENT_STATE_FAILED;
  });
  const auto dry = Upgrade("engine-0", "engine-1", true);
  ASSERT_TRUE(dry.ok());
  ASSERT_EQ(dry->obstacles_size(), 1);
  EXPECT_NE(dry->obstacles(0).reason().find("cleatctl detach a da"), std::string::npos);
  EXPECT_FALSE(state_->engines().Get(GetEngine("engine-0"))->status().has_upgrade())
      << "a dry run changes nothing";
  ASSERT_TRUE(Upgrade().ok());
  EXPECT_EQ(AwaitUpgrade().failed_size(), 1);
  EXPECT_EQ(EngineOf("a"), "engines/engine-0");
}

TEST_F(UpgradeTest, AnEngineThatDoesNotAnswerIsWaitedForOnlySoLong) {
  CreateSome({"a", "b"});
  blue_.Hold("YieldController controllers/a");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  PassLimits();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1u);
  AwaitServed("b", "engine-1");
  blue_.Release();  // late: it has let go, and has to take it again
  blue_.WaitForRequest("TakeController controllers/a handed over");
  AwaitServed("a", "engine-0");
  // The other one's turn.
  green_.Hold("TakeController controllers/a");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("TakeController controllers/a handed over");
  PassLimits();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1u);
  AwaitServed("a", "engine-0");
}

// Which one waits for longer than a turn, only the test says; all the others are asked beside it, and none a second time.
TEST_F(UpgradeTest, AMoveThatIsHeldUpHoldsUpNoOther) {
  CreateSome({"a", "b", "c", "d"});
  blue_.Hold("YieldController controllers/a");
  green_.Hold("TakeController controllers/c");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  PassTurn();
  AwaitServed("b", "engine-1");
  green_.WaitForRequest("TakeController controllers/c handed over");
  PassTurn();
  AwaitServed("d", "engine-1");
  // A controller is served elsewhere a moment before its upgrade counts it.
  Await("both are counted", [&] { return UpgradeOf().moved() == 2; });
  EXPECT_EQ(UpgradeOf().state(), v1::UPGRADE_STATE_RUNNING);
  blue_.Release();
  green_.Release();
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.moved(), 4U) << status.ShortDebugString();
  AwaitServed("a", "engine-1");
  AwaitServed("c", "engine-1");
}

// As long as the machine had no time for cleatd, the answer waited, and not cleatd for it.
TEST_F(UpgradeTest, AnAnswerThatHasComeIsInTimeHoweverLateItIsRead) {
  for (const bool other_news_first : {false, true}) {
    SCOPED_TRACE(other_news_first);
    const std::string id = other_news_first ? "b" : "a";
    CreateSome({id});
    green_.Hold("TakeController");
    ASSERT_TRUE(Upgrade().ok());
    green_.WaitForRequest("TakeController " + ControllerName(id) + " handed over");
    StallLink([&] {
      // By which the controller is looked at again, past its limit.
      if (other_news_first) blue_.BreakAttachment(ControllerName(id), 0, "it stands by in vain");
      green_.Release();
      PassLimits();
    });
    const v1::UpgradeStatus status = AwaitUpgrade();
    EXPECT_EQ(status.moved(), 1U) << status.ShortDebugString();
    AwaitServed(id, "engine-1");
  }
}

// A second call is not to say that all is done while the first one's question is open.
TEST_F(UpgradeTest, WhatAnEarlierUpgradeStillWaitsForIsNamed) {
  CreateSome({"a"});
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  PassLimits();
  EXPECT_EQ(AwaitUpgrade().failed_total(), 1u);
  ASSERT_TRUE(Upgrade().ok());
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_FAILED);
  ASSERT_EQ(status.failed_size(), 1);
  EXPECT_EQ(status.failed(0).controller(), "controllers/a");
  EXPECT_NE(status.failed(0).reason().find("an earlier attempt"), std::string::npos);
  blue_.Release();
  AwaitServed("a", "engine-0");
}

TEST_F(UpgradeTest, ItCanBeCancelled) {
  CreateSome({"a", "b", "c"});
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  blue_.WaitForRequest("YieldController controllers/a");
  ExpectRefused("engine-1", "engine-0", v1::REASON_UPGRADE_RUNNING,
                "cleatctl engine cancel-upgrade engine-0");
  v1::CancelUpgradeRequest request;
  request.set_name("engines/engine-0");
  ASSERT_TRUE(state_->upgrades().Cancel(request).ok());
  blue_.Release();
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_CANCELLED);
  EXPECT_EQ(status.moved(), 1u) << "what is under way is brought to its end";
  AwaitServed("b", "engine-0");
  Await("green has closed the others", [&] { return green_.StateOf("controllers/c") == kAbsent; });
  EXPECT_TRUE(state_->upgrades().Cancel(request).ok());
}

// ---- Refusals ----

TEST_F(UpgradeTest, WhatCanNotBeIsRefusedBeforeAnythingMoves) {
  CreateSome({"a"});
  ExpectRefused("engine-0", "engine-7", v1::REASON_RESOURCE_NOT_FOUND, "engines/engine-7 does not exist");
  ExpectRefused("engine-0", "engine-0", v1::REASON_INVALID_FIELD, "to itself");
  FakeEngine small(socket_, "small");
  small.set_controllers_max(1);
  ASSERT_TRUE(small.Connect());
  FakeEngine standby(socket_, "standby");
  standby.set_stands_by_for("engine-1");
  ASSERT_TRUE(standby.Connect());
  Await("they are there", [&] { return IsConnected("small") && IsConnected("standby"); });
  CreateSome({"b"});
  ExpectRefused("engine-0", "small", v1::REASON_ENGINE_FULL, "1 controllers at most");
  ExpectRefused("engine-0", "standby", v1::REASON_ENGINE_STANDS_BY, "stands by for engines/engine-1");
  green_.Disconnect();
  Await("it is lost", [&] { return !IsConnected("engine-1"); });
  ExpectRefused("engine-0", "engine-1", v1::REASON_ENGINE_NOT_CONNECTED, "not connected");
  EXPECT_FALSE(state_->engines().Get(GetEngine("engine-0"))->status().has_upgrade());
}

TEST_F(UpgradeTest, NothingIsPlacedOnAnEngineThatIsBeingLeftNorOnOneThatStandsBy) {
  CreateSome({"a"});
  FakeEngine standby(socket_, "e-standby");
  standby.set_stands_by_for("engine-1");
  ASSERT_TRUE(standby.Connect());
  Await("it is there", [&] { return IsConnected("e-standby"); });
  blue_.Hold("YieldController");
  ASSERT_TRUE(Upgrade().ok());
  for (const char* id : {"x", "y", "z"}) {
    ASSERT_TRUE(state_->controllers().Create(NewController(id)).ok());
    EXPECT_EQ(EngineOf(id), "engines/engine-1");
  }
  auto chosen = NewController("w");
  chosen.mutable_controller()->mutable_spec()->set_engine("engines/e-standby");
  const auto refused = state_->controllers().Create(chosen);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_ENGINE_STANDS_BY);
  blue_.Release();
  EXPECT_EQ(AwaitUpgrade().moved(), 1u);
}

}  // namespace
}  // namespace cleat::control::upgrade_test
