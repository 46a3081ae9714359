// SPDX-License-Identifier: Apache-2.0
// What a disk over NVMe-oF does with writes in doubt, as its spec says it: what may be said, how it comes to engines, and what they tell of
// it.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "control/api/apply_host.h"
#include "control/model/reasons.h"
#include "control/validate/disk_settings.h"
#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control::in_doubt_test {
namespace {

v1::InDoubt Rule(v1::InDoubtPolicy policy, uint32_t fail_after_s = 0) {
  v1::InDoubt rule;
  rule.set_policy(policy);
  rule.set_fail_after_s(fail_after_s);
  return rule;
}

v1::UpdateDiskRequest SetInDoubt(const v1::InDoubt& rule) {
  v1::UpdateDiskRequest request;
  request.mutable_disk()->set_name("disks/a");
  *request.mutable_disk()->mutable_spec()->mutable_in_doubt() = rule;
  request.mutable_update_mask()->add_paths("spec.in_doubt");
  return request;
}

class InDoubtTest : public ReconcilerRig {
 protected:
  void SetUp() override { ASSERT_TRUE(state_->subsystems().Create(NewSubsystem("array")).ok()); }
  static v1::CreateDiskRequest NewDisk(const std::optional<v1::InDoubt>& rule) {
    v1::CreateDiskRequest request = NvmeDisk("a");
    if (rule) *request.mutable_disk()->mutable_spec()->mutable_in_doubt() = *rule;
    return request;
  }
  void Attach(const std::optional<v1::InDoubt>& rule) {
    ASSERT_TRUE(engine_.Connect());
    ASSERT_TRUE(state_->disks().Create(NewDisk(rule)).ok());
    ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
    ASSERT_TRUE(state_->attachments().Attach(control::Attach("a", "vm")).ok());
    AwaitReady();
  }
  void AwaitReady() {
    for (const char* const name : {"controllers/vm/attachments/a", "disks/a"}) {
      v1::WaitRequest request;
      request.set_name(name);
      request.mutable_timeout()->set_seconds(60);
      ASSERT_TRUE(state_->waits().Wait(request, [] { return false; }).ok()) << name;
    }
  }
  v1::AttachmentStatus Status() { return state_->attachments().Get(GetAttachment("vm", "a"))->status(); }
  // How often the engine was told of the disk's settings since this was asked last.
  size_t Limited() {
    const auto requests = engine_.TakeRequests();
    return static_cast<size_t>(std::count(requests.begin(), requests.end(), "LimitDisk disks/a 0"));
  }
  engine::v1::InDoubt Told() { return engine_.DiskAt("controllers/vm", 0).in_doubt(); }
};

TEST_F(InDoubtTest, ARuleThatMakesNoSenseIsRefusedWithItsFieldAndItsRange) {
  const auto refused = [this](const v1::CreateDiskRequest& request, const std::string& field) {
    const auto made = state_->disks().Create(request);
    ASSERT_FALSE(made.ok()) << field;
    EXPECT_EQ(ReasonOf(made.error()), v1::REASON_INVALID_FIELD) << made.error().message;
    EXPECT_EQ(MetadataOf(made.error(), "field"), field) << made.error().message;
  };
  refused(NewDisk(Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER)), "spec.in_doubt.fail_after_s");
  refused(NewDisk(Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER, kFailAfterMaxS + 1)), "spec.in_doubt.fail_after_s");
  refused(NewDisk(Rule(v1::IN_DOUBT_POLICY_ACCEPT, 1)), "spec.in_doubt.fail_after_s");
  refused(NewDisk(Rule(v1::IN_DOUBT_POLICY_UNSPECIFIED, 1)), "spec.in_doubt.fail_after_s");
  refused(NewDisk(Rule(static_cast<v1::InDoubtPolicy>(7))), "spec.in_doubt.policy");
  v1::CreateDiskRequest readers = NewDisk(Rule(v1::IN_DOUBT_POLICY_ACCEPT));
  readers.mutable_disk()->mutable_spec()->set_access_mode(v1::ACCESS_MODE_MANY_READERS);
  refused(readers, "spec.in_doubt");
  v1::CreateDiskRequest other = NullDisk("n");
  *other.mutable_disk()->mutable_spec()->mutable_in_doubt() = Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER, 9);
  refused(other, "spec.in_doubt");
}

TEST_F(InDoubtTest, WhatSaysNoMoreThanTheDefaultIsNotKept) {
  const auto made = state_->disks().Create(NewDisk(Rule(v1::IN_DOUBT_POLICY_HOLD)));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_FALSE(made->spec().has_in_doubt());
  EXPECT_TRUE(state_->disks().Update(SetInDoubt(Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER, 1))).ok());
  const auto held = state_->disks().Update(SetInDoubt({}));
  ASSERT_TRUE(held.ok());
  EXPECT_FALSE(held->spec().has_in_doubt());
}

TEST_F(InDoubtTest, ComesWithTheAttachAndChangesInPlace) {
  Attach(Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER, 30));
  EXPECT_EQ(Told().policy(), engine::v1::IN_DOUBT_POLICY_FAIL_AFTER);
  EXPECT_EQ(Told().fail_after_s(), 30U);
  RestartCleatd();
  (void)Limited();
  ASSERT_TRUE(engine_.Connect());
  AwaitReady();
  EXPECT_EQ(Limited(), 0U) << "the engine does it already";
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().in_doubt().fail_after_s(), 30U);

  ASSERT_TRUE(state_->disks().Update(SetInDoubt(Rule(v1::IN_DOUBT_POLICY_ACCEPT))).ok());
  AwaitReady();
  EXPECT_EQ(Limited(), 1U);
  EXPECT_EQ(Told().policy(), engine::v1::IN_DOUBT_POLICY_ACCEPT);
  ASSERT_TRUE(state_->disks().Update(SetInDoubt(Rule(v1::IN_DOUBT_POLICY_HOLD))).ok());
  AwaitReady();
  EXPECT_EQ(Told().policy(), engine::v1::IN_DOUBT_POLICY_UNSPECIFIED);
  EXPECT_EQ(Limited(), 1U);
  ASSERT_TRUE(state_->disks().Update(SetInDoubt({})).ok());
  EXPECT_EQ(Limited(), 0U) << "it is the same";
}

TEST_F(InDoubtTest, TheStatusSaysHowThePathsDoAndWhatTheEngineDoes) {
  Attach(Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER, 30));
  EXPECT_FALSE(Status().has_paths()) << "of an engine that does not tell";
  EXPECT_FALSE(Status().has_in_doubt());
  EXPECT_TRUE(state_->attachments().OverPaths().empty());
  engine::v1::PathsStatus paths;
  paths.set_optimized(1);
  paths.set_unusable(2);
  paths.set_losses(3);
  paths.set_failovers(4);
  paths.set_doubt_ranges(5);
  paths.set_doubt_bytes(6);
  paths.set_waiting(7);
  paths.set_waiting_since_s(1'700'000'000);
  paths.set_failed(8);
  paths.set_accepted(9);
  engine_.SetPaths("controllers/vm", 0, paths);
  engine_.SetStorage("controllers/vm", 0, engine::v1::STORAGE_STATE_STUCK);
  Await("the status is told", [this] { return Status().storage_state() == v1::STORAGE_STATE_STUCK; });
  const v1::AttachmentStatus status = Status();
  EXPECT_EQ(status.state(), v1::ATTACHMENT_STATE_READY) << "the guest has it";
  EXPECT_EQ(status.in_doubt().fail_after_s(), 30U);
  EXPECT_EQ(status.paths().optimized(), 1U);
  EXPECT_EQ(status.paths().unusable(), 2U);
  EXPECT_EQ(status.paths().losses(), 3U);
  EXPECT_EQ(status.paths().failovers(), 4U);
  EXPECT_EQ(status.paths().doubt_ranges(), 5U);
  EXPECT_EQ(status.paths().doubt_bytes(), 6U);
  EXPECT_EQ(status.paths().waiting(), 7U);
  EXPECT_EQ(status.paths().waiting_since().seconds(), 1'700'000'000);
  EXPECT_EQ(status.paths().failed(), 8U);
  EXPECT_EQ(status.paths().accepted(), 9U);
  const std::vector<v1::StuckAttachment> stuck = state_->attachments().Stuck();
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].reason(), v1::STUCK_REASON_WRITES_IN_DOUBT);
  EXPECT_EQ(stuck[0].engine(), "engines/engine-0");
  EXPECT_EQ(stuck[0].waiting(), 7U);
  EXPECT_EQ(stuck[0].message(), status.message());
  ASSERT_EQ(state_->attachments().OverPaths().size(), 1U);
  EXPECT_EQ(state_->attachments().OverPaths()[0].name(), "controllers/vm/attachments/a");
}

TEST_F(InDoubtTest, IsDeclaredAndADryRunSaysWhatWouldChange) {
  ASSERT_TRUE(state_->disks().Create(NewDisk(std::nullopt)).ok());
  v1::ApplyHostRequest request;
  v1::Disk& disk = *request.add_disks();
  disk = NewDisk(Rule(v1::IN_DOUBT_POLICY_FAIL_AFTER, 60)).disk();
  disk.set_name("disks/a");
  const auto apply = [&](bool dry_run) {
    request.set_dry_run(dry_run);
    const auto applied = ApplyHostCall(*state_, [] { return false; }).Apply(request);
    EXPECT_TRUE(applied.ok());
    return applied.ok() ? applied->results(0).action() : v1::APPLY_ACTION_UNSPECIFIED;
  };
  EXPECT_EQ(apply(true), v1::APPLY_ACTION_UPDATED);
  EXPECT_FALSE(state_->disks().Get(GetDisk("a"))->spec().has_in_doubt());
  EXPECT_EQ(apply(false), v1::APPLY_ACTION_UPDATED);
  EXPECT_EQ(state_->disks().Get(GetDisk("a"))->spec().in_doubt().fail_after_s(), 60U);
  EXPECT_EQ(apply(false), v1::APPLY_ACTION_UNCHANGED);
}

}  // namespace
}  // namespace cleat::control::in_doubt_test
