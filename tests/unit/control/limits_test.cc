// SPDX-License-Identifier: Apache-2.0
// Limits and groups: what the API takes, what is kept, what engines are asked for, and when they are ready.
#include <gtest/gtest.h>

#include <functional>

#include "control/model/reasons.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::limits_test {
namespace {

class LimitsTest : public ReconcilerRig {
 protected:
  Result<v1::WaitResponse> WaitFor(const std::string& name, int seconds = 20) {
    v1::WaitRequest request;
    request.set_name(name);
    if (seconds == 0) request.mutable_timeout()->set_nanos(1);
    if (seconds != 0) request.mutable_timeout()->set_seconds(seconds);
    return state_->waits().Wait(request, [] { return false; });
  }
  bool IsReady(const std::string& name) { return WaitFor(name, 0).ok(); }

  void Create(const std::string& disk, const std::string& controller) {
    ASSERT_TRUE(state_->disks().Create(NullDisk(disk)).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController(controller)).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach(disk, controller)).ok());
    ASSERT_TRUE(WaitFor(AttachmentName(controller, disk)).ok());
  }

  void ExpectRefused(const v1::Limits& limits, const std::string& says) {
    auto request = NullDisk("refused");
    *request.mutable_disk()->mutable_spec()->mutable_limits() = limits;
    const auto made = state_->disks().Create(request);
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(ReasonOf(made.error()), v1::REASON_INVALID_FIELD);
    EXPECT_NE(made.error().message.find(says), std::string::npos) << made.error().message;
  }
};

// ---- What they may say ----

TEST_F(LimitsTest, WrongLimitsAreRefusedWithTheFieldAndItsRange) {
  v1::Limits limits;
  *limits.mutable_iops() = Rate(kIopsMax + 1);
  ExpectRefused(limits, "limits.iops.per_second");
  *limits.mutable_iops() = Rate(0, 10, 1);
  ExpectRefused(limits, "limits.iops.per_second");
  *limits.mutable_iops() = Rate(10, 10, 1);
  ExpectRefused(limits, "limits.iops.burst_per_second");
  *limits.mutable_iops() = Rate(10, 20);
  ExpectRefused(limits, "limits.iops.burst_duration");
  *limits.mutable_iops() = Rate(10, 0, 5);
  ExpectRefused(limits, "limits.iops.burst_per_second");
  *limits.mutable_iops() = Rate(10, 20, 3601);
  ExpectRefused(limits, "limits.iops.burst_duration");
  *limits.mutable_iops() = Rate(10, 20, -1);
  ExpectRefused(limits, "limits.iops.burst_duration");
  limits.mutable_iops()->mutable_burst_duration()->set_seconds(0);
  limits.mutable_iops()->mutable_burst_duration()->set_nanos(1500);
  ExpectRefused(limits, "limits.iops.burst_duration");
  limits.clear_iops();
  *limits.mutable_write_bytes() = Rate(kBytesPerSecondMin - 1);
  ExpectRefused(limits, "limits.write_bytes.per_second");
  *limits.mutable_write_bytes() = Rate(kBytesPerSecondMax + 1);
  ExpectRefused(limits, "limits.write_bytes.per_second");
}

TEST_F(LimitsTest, LimitsThatSayNothingAreNone) {
  auto request = NullDisk("d");
  request.mutable_disk()->mutable_spec()->mutable_limits()->mutable_iops()->mutable_burst_duration();
  const auto made = state_->disks().Create(request);
  ASSERT_TRUE(made.ok());
  EXPECT_FALSE(made->spec().has_limits());
  EXPECT_TRUE(state_->disks().Create(NullDisk("d")).ok()) << "the same, said in another way";
}

// ---- Groups ----

TEST_F(LimitsTest, AGroupIsMadeOnceChangedAndSurvivesARestart) {
  const auto made = state_->groups().Create(NewGroup("vm1", 5000));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made->spec().limits().iops().per_second(), 5000U);
  EXPECT_TRUE(state_->groups().Create(NewGroup("vm1", 5000)).ok());
  EXPECT_EQ(ReasonOf(state_->groups().Create(NewGroup("vm1", 6000)).error()), v1::REASON_CONTENT_DIFFERS);
  auto update = LimitGroup("vm1", 7000);
  update.mutable_group()->set_etag("0");
  EXPECT_EQ(ReasonOf(state_->groups().Update(update).error()), v1::REASON_ETAG_MISMATCH);
  update.mutable_group()->set_etag(made->etag());
  const auto updated = state_->groups().Update(update);
  ASSERT_TRUE(updated.ok()) << updated.error().message;
  EXPECT_NE(updated->etag(), made->etag());
  update.mutable_update_mask()->add_paths("spec.size_bytes");
  EXPECT_EQ(ReasonOf(state_->groups().Update(update).error()), v1::REASON_INVALID_UPDATE_MASK);
  Stop();
  Start();
  EXPECT_EQ(state_->groups().Get(GetGroup("vm1"))->spec().limits().iops().per_second(), 7000U);
  EXPECT_EQ(state_->groups().List({})->groups_size(), 1);
  EXPECT_TRUE(state_->groups().Delete(DeleteGroup("vm1")).ok());
  EXPECT_TRUE(state_->groups().Delete(DeleteGroup("vm1")).ok());
  EXPECT_EQ(ReasonOf(state_->groups().Get(GetGroup("vm1")).error()), v1::REASON_RESOURCE_NOT_FOUND);
}

TEST_F(LimitsTest, AGroupStaysWhileItHasControllers) {
  EXPECT_EQ(ReasonOf(state_->controllers().Create(ControllerIn("a", "vm1")).error()),
            v1::REASON_RESOURCE_NOT_FOUND);
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1")).ok());
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "vm1")).ok());
  EXPECT_EQ(state_->groups().Get(GetGroup("vm1"))->status().controllers(0), "controllers/a");
  EXPECT_EQ(ReasonOf(state_->groups().Delete(DeleteGroup("vm1")).error()), v1::REASON_GROUP_IN_USE);
  Stop();
  Start();
  EXPECT_EQ(ReasonOf(state_->groups().Delete(DeleteGroup("vm1")).error()), v1::REASON_GROUP_IN_USE);
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  EXPECT_TRUE(state_->groups().Delete(DeleteGroup("vm1")).ok());
}

TEST_F(LimitsTest, ThereAreSoManyGroupsAndNoMore) {
  for (size_t i = 0; i < kGroupsMax; ++i) {
    ASSERT_TRUE(state_->groups().Create(NewGroup("g" + std::to_string(i))).ok());
  }
  EXPECT_EQ(ReasonOf(state_->groups().Create(NewGroup("more")).error()), v1::REASON_TOO_MANY_RESOURCES);
  ASSERT_TRUE(state_->groups().Delete(DeleteGroup("g77")).ok());
  EXPECT_TRUE(state_->groups().Create(NewGroup("more")).ok()) << "in the slot of the one that went";
}

TEST_F(LimitsTest, AnEngineGetsAGroupBeforeItsControllersAndDropsItAfterThem) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1", 5000)).ok());
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "vm1")).ok());
  ASSERT_TRUE(WaitFor("controllers/a").ok());
  EXPECT_EQ(engine_.TakeRequests(),
            (Requests{"ShareGroups", "PutGroup groups/vm1 5000", "PutController controllers/a"}));
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("b", "vm1")).ok());
  ASSERT_TRUE(WaitFor("controllers/b").ok());
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"PutController controllers/b"}));
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("b")).ok());
  engine_.WaitForRequest("DropGroup groups/vm1");
  const auto dropped = engine_.TakeRequests();
  EXPECT_EQ(std::count(dropped.begin(), dropped.end(), "DropGroup groups/vm1"), 1);
}

// The group for which the memory was shared first is used no more when that is tried again.
TEST_F(LimitsTest, AnEngineThatCouldNotHaveTheMemoryOfGroupsIsAskedAgainForWhicheverNeedsIt) {
  Stop();
  options_.retry_min_ns = options_.retry_max_ns = kHourNs;
  Start();
  ASSERT_TRUE(engine_.Connect());
  for (const char* id : {"first", "second"}) ASSERT_TRUE(state_->groups().Create(NewGroup(id)).ok());
  engine_.FailShareGroups(1);
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "first")).ok());
  Await("the failure is known", [&] {
    return state_->groups().Get(GetGroup("first"))->status().message().find("no memory today") !=
           std::string::npos;
  });
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("b", "second")).ok());
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  Await("it is gone", [&] { return !state_->controllers().Get(GetController("a")).ok(); });
  EXPECT_EQ(engine_.TakeRequests(), Requests{"ShareGroups"});
  clock_.Leap(kHourNs);
  link_->Wake();
  ASSERT_TRUE(WaitFor("controllers/b").ok());
  EXPECT_EQ(engine_.TakeRequests(),
            (Requests{"ShareGroups", "PutGroup groups/second 0", "PutController controllers/b"}));
}

TEST_F(LimitsTest, NewLimitsOfAGroupGoToEachEngineThatHasIt) {
  FakeEngine other(socket_, "engine-1");
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(other.Connect());
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1", 5000)).ok());
  for (const auto& [id, engine] : std::map<std::string, std::string>{{"a", "engine-0"}, {"b", "engine-1"}}) {
    auto request = ControllerIn(id, "vm1");
    request.mutable_controller()->mutable_spec()->set_engine(EngineName(engine));
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    ASSERT_TRUE(WaitFor(ControllerName(id)).ok());
  }
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  EXPECT_EQ(engine_.Groups().at("groups/vm1").slot(), other.Groups().at("groups/vm1").slot());
  other.Hold();
  ASSERT_TRUE(state_->groups().Update(LimitGroup("vm1", 9000)).ok());
  other.WaitForRequest("PutGroup groups/vm1 9000");
  EXPECT_FALSE(IsReady("groups/vm1"));
  EXPECT_NE(state_->groups().Get(GetGroup("vm1"))->status().message().find("engine-1"), std::string::npos);
  other.Release();
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  EXPECT_EQ(engine_.Groups().at("groups/vm1").limits().iops().per_second(), 9000U);
  EXPECT_EQ(other.Groups().at("groups/vm1").limits().iops().per_second(), 9000U);
  EXPECT_EQ(state_->groups().Get(GetGroup("vm1"))->status().message(), "");
}

TEST_F(LimitsTest, AfterARestartOfCleatdAnEngineGetsTheMemoryAndNothingElse) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1", 5000)).ok());
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "vm1")).ok());
  ASSERT_TRUE(WaitFor("controllers/a").ok());
  RestartCleatd();
  (void)engine_.TakeRequests();
  EXPECT_FALSE(IsReady("groups/vm1")) << "nobody knows what the engine has";
  ASSERT_TRUE(engine_.Connect());
  engine_.WaitForRequest("ShareGroups");
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"ShareGroups"}));
}

TEST_F(LimitsTest, AnEngineThatLostItsGroupsGetsThemAnew) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1", 5000)).ok());
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "vm1")).ok());
  ASSERT_TRUE(WaitFor("controllers/a").ok());
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  (void)engine_.TakeRequests();
  engine_.Restart();
  engine_.WaitForRequest("PutController controllers/a");
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  EXPECT_TRUE(engine_.Groups().contains("groups/vm1"));
}

TEST_F(LimitsTest, AGroupThatWasMadeAnewWhileItsEngineWasAwayReplacesTheOldOne) {
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1", 5000)).ok());
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "vm1")).ok());
  ASSERT_TRUE(WaitFor("controllers/a").ok());
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  const uint32_t slot = engine_.Groups().at("groups/vm1").slot();
  ASSERT_TRUE(state_->controllers().Delete(DeleteController("a")).ok());
  v1::WaitRequest gone;
  gone.set_name("controllers/a");
  gone.set_condition(v1::WAIT_CONDITION_GONE);
  ASSERT_TRUE(state_->waits().Wait(gone, [] { return false; }).ok());
  engine_.Hold();  // it does not get to dropping the group
  ASSERT_TRUE(state_->groups().Delete(DeleteGroup("vm1")).ok());
  ASSERT_TRUE(state_->groups().Create(NewGroup("vm1", 6000)).ok());
  ASSERT_TRUE(state_->controllers().Create(ControllerIn("a", "vm1")).ok());
  engine_.Release();
  ASSERT_TRUE(WaitFor("controllers/a").ok());
  ASSERT_TRUE(WaitFor("groups/vm1").ok());
  EXPECT_NE(engine_.Groups().at("groups/vm1").slot(), slot);
  EXPECT_EQ(engine_.Groups().at("groups/vm1").limits().iops().per_second(), 6000U);
}

// ---- Disks ----

TEST_F(LimitsTest, NewLimitsReachADiskWhereItIsAttachedAndNothingIsDetached) {
  ASSERT_TRUE(engine_.Connect());
  Create("d", "a");
  (void)engine_.TakeRequests();
  ASSERT_TRUE(state_->disks().Update(LimitDisk("d", 700)).ok());
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"LimitDisk disks/d 700"}));
  EXPECT_EQ(engine_.DiskAt("controllers/a", 0).limits().iops().per_second(), 700U);
  auto labels = LimitDisk("d", 700);
  labels.mutable_update_mask()->add_paths("labels");
  (*labels.mutable_disk()->mutable_labels())["k"] = "v";
  ASSERT_TRUE(state_->disks().Update(labels).ok());
  ASSERT_TRUE(state_->disks().Update(LimitDisk("d", 0)).ok());
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"LimitDisk disks/d 0"})) << "labels are none of its business";
  EXPECT_FALSE(state_->disks().Get(GetDisk("d"))->spec().has_limits());
}

TEST_F(LimitsTest, LimitsComeWithTheAttachAndARestartedCleatdAsksForNothing) {
  ASSERT_TRUE(engine_.Connect());
  auto disk = NullDisk("d");
  *disk.mutable_disk()->mutable_spec()->mutable_limits()->mutable_read_bytes() = Rate(1 << 20, 2 << 20, 30);
  ASSERT_TRUE(state_->disks().Create(disk).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("d", "a")).ok());
  ASSERT_TRUE(WaitFor("controllers/a/attachments/d").ok());
  EXPECT_EQ(engine_.DiskAt("controllers/a", 0).limits().read_bytes().burst_ms(), 30'000U);
  RestartCleatd();
  (void)engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/a/attachments/d").ok());
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(engine_.TakeRequests(), Requests{});
}

TEST_F(LimitsTest, WhatADiskDoesWithoutSpaceComesWithTheAttachAndChangesInPlace) {
  ASSERT_TRUE(engine_.Connect());
  auto disk = NullDisk("d");
  disk.mutable_disk()->mutable_spec()->set_on_no_space(v1::ON_NO_SPACE_WAIT);
  ASSERT_TRUE(state_->disks().Create(disk).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("a")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("d", "a")).ok());
  ASSERT_TRUE(WaitFor("controllers/a/attachments/d").ok());
  const auto does = [this] {
    return state_->attachments().Get(GetAttachment("a", "d"))->status().on_no_space();
  };
  EXPECT_EQ(engine_.DiskAt("controllers/a", 0).on_no_space(), engine::v1::ON_NO_SPACE_WAIT);
  EXPECT_EQ(does(), v1::ON_NO_SPACE_WAIT);
  RestartCleatd();
  (void)engine_.TakeRequests();
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(WaitFor("controllers/a/attachments/d").ok());
  EXPECT_EQ(engine_.TakeRequests(), Requests{}) << "the engine does it already";
  EXPECT_EQ(state_->disks().Get(GetDisk("d"))->spec().on_no_space(), v1::ON_NO_SPACE_WAIT);

  ASSERT_TRUE(state_->disks().Update(SetOnNoSpace("d", v1::ON_NO_SPACE_ERROR)).ok());
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(engine_.TakeRequests(), (Requests{"LimitDisk disks/d 0"}));
  EXPECT_NE(engine_.DiskAt("controllers/a", 0).on_no_space(), engine::v1::ON_NO_SPACE_WAIT);
  EXPECT_EQ(does(), v1::ON_NO_SPACE_ERROR);
  ASSERT_TRUE(state_->disks().Update(SetOnNoSpace("d", v1::ON_NO_SPACE_WAIT)).ok());
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(does(), v1::ON_NO_SPACE_WAIT);
  EXPECT_FALSE(state_->disks().Update(SetOnNoSpace("d", static_cast<v1::OnNoSpace>(7))).ok());
}

TEST_F(LimitsTest, ADiskIsReadyOnlyWhenItsLimitsHoldAndAFailureIsTriedAgain) {
  ASSERT_TRUE(engine_.Connect());
  Create("d", "a");
  engine_.Hold();
  ASSERT_TRUE(state_->disks().Update(LimitDisk("d", 700)).ok());
  engine_.WaitForRequest("LimitDisk disks/d 700");
  EXPECT_FALSE(IsReady("disks/d"));
  engine_.FailLimits(2);
  engine_.Release();
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(engine_.DiskAt("controllers/a", 0).limits().iops().per_second(), 700U);
  const auto attachment = state_->attachments().Get(GetAttachment("a", "d"));
  EXPECT_EQ(attachment->status().message(), "") << "what failed is over";
}

TEST_F(LimitsTest, LimitsThatChangeWhileTheyAreBeingSetArriveInTheEnd) {
  ASSERT_TRUE(engine_.Connect());
  Create("d", "a");
  engine_.Hold();
  for (uint64_t iops = 1; iops <= 50; ++iops) ASSERT_TRUE(state_->disks().Update(LimitDisk("d", iops)).ok());
  engine_.Release();
  ASSERT_TRUE(WaitFor("disks/d").ok());
  EXPECT_EQ(engine_.DiskAt("controllers/a", 0).limits().iops().per_second(), 50U);
}

}  // namespace
}  // namespace cleat::control::limits_test
