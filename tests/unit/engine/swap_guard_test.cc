// SPDX-License-Identifier: Apache-2.0
// A blk controller whose disk is exchanged: which rings may start, and what it says of those that may not.
#include "engine/guest_devices/swap_guard.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace cleat::engine::swap_guard_test {
namespace {

constexpr DiskIdentity kA = DiskIdentity::Of(3, 10);
constexpr DiskIdentity kB = DiskIdentity::Of(3, 11);

struct Behind final : vhost::Ownership {
  bool owned() const override { return is_owned; }
  void AcquireAsync(std::function<void()> /*on_owned*/) override { calls += "acquire "; }
  void CancelAcquire() override { calls += "cancel "; }
  void HandOff() override { calls += "hand off "; }
  std::string pending_reason() const override { return is_owned ? "" : "another host has it"; }
  bool is_owned = true;
  std::string calls;
};

vhost::DriverMemory JustBooted() {
  return {.new_log = true};
}
vhost::DriverMemory InTheMiddle() {  // of a front end that keeps no log
  return {.at_start = false};
}
vhost::DriverMemory WithLogOf(DiskIdentity disk, DiskIdentity device) {
  return {
      .of_this_disk = disk == device, .of_another_disk = disk != device, .used_log = true, .at_start = false};
}
vhost::DriverMemory WithOldEnginesLog() {
  return {.used_log = true, .at_start = false};
}

class SwapGuardTest : public ::testing::Test {
 protected:
  SwapGuardTest() { Attach(kB); }
  void Attach(DiskIdentity disk, bool incoming = false) {
    attachment_.disk.identity = disk;
    attachment_.disk.name = disk == kA ? "disks/a" : "disks/b";
    attachment_.incoming = incoming;
    guard = std::make_unique<SwapGuard>(controller_, attachment_, behind, [this] { ++changes; });
  }
  void LastIs(DiskIdentity disk, const std::string& name) {
    controller_.name = "controllers/c";
    controller_.last_disk = disk;
    controller_.last_disk_name = name;
    guard->LastDiskChanged();
  }
  // A connection's first ring is complete.
  bool MayStart(const vhost::DriverMemory& memory) {
    guard->Learn(memory);
    guard->AcquireAsync([this] { ++woken; });
    return guard->owned();
  }

  ControllerSpec controller_;
  AttachmentSpec attachment_;
  Behind behind;
  std::unique_ptr<SwapGuard> guard;
  int changes = 0;
  int woken = 0;
};

TEST_F(SwapGuardTest, TheFirstDiskAndTheSameAgainMayStart) {
  EXPECT_TRUE(MayStart(InTheMiddle()));
  guard->CancelAcquire();
  LastIs(kB, "disks/b");
  EXPECT_TRUE(MayStart(InTheMiddle()));
  guard->CancelAcquire();
  EXPECT_TRUE(MayStart(WithLogOf(kB, kB)));
  EXPECT_EQ(behind.calls, "acquire cancel acquire cancel acquire ");
}

TEST_F(SwapGuardTest, AnotherDiskWaitsUntilTheDriverHasForgottenTheFirst) {
  LastIs(kA, "disks/a");
  for (const auto& memory : {InTheMiddle(), WithOldEnginesLog(), WithLogOf(kA, kB)}) {
    EXPECT_FALSE(MayStart(memory));
    EXPECT_FALSE(guard->next_disk().known());
    EXPECT_EQ(guard->pending_reason(),
              "the guest's driver still has what it did to disks/a under way, which is not to be written to "
              "disks/b: detach "
              "disks/b and attach disks/a again, or reset the VM");
    guard->CancelAcquire();
  }
  EXPECT_EQ(behind.calls, "");
  EXPECT_EQ(woken, 0);
}

TEST_F(SwapGuardTest, OneThatIsForgottenMakesWayOnceCleatdHasNotedIt) {
  LastIs(kA, "disks/a");
  EXPECT_FALSE(MayStart(JustBooted()));
  EXPECT_EQ(guard->next_disk(), kB);
  EXPECT_EQ(behind.calls, "");
  LastIs(kB, "disks/b");
  EXPECT_TRUE(guard->owned());
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(behind.calls, "acquire ");
  EXPECT_FALSE(guard->next_disk().known());
}

// Rings are told of one after the other: an idle one that begins at 0 says nothing about the others.
TEST_F(SwapGuardTest, ARingThatComesLaterCanTakeTheProofBack) {
  LastIs(kA, "disks/a");
  EXPECT_FALSE(MayStart(JustBooted()));
  LastIs(kB, "disks/b");
  EXPECT_TRUE(guard->owned());
  guard->Learn({.new_log = true, .at_start = false});
  EXPECT_FALSE(guard->owned());
  guard->CancelAcquire();
  EXPECT_FALSE(MayStart(InTheMiddle())) << "nor does the next connection show it";
  guard->CancelAcquire();
  EXPECT_TRUE(MayStart(WithLogOf(kB, kB))) << "these requests are disks/b's";
  guard->CancelAcquire();
  EXPECT_TRUE(MayStart(InTheMiddle()));
}

// The log is as new as the last request; cleatd may have been given an old copy of its store.
TEST_F(SwapGuardTest, TheLogIsBelievedBeforeCleatd) {
  LastIs(kB, "disks/b");
  EXPECT_FALSE(MayStart(WithLogOf(kA, kB)));
  guard->CancelAcquire();
  LastIs({}, "");
  EXPECT_FALSE(MayStart(WithLogOf(kA, kB))) << "a controller that was made anew on the same socket";
  EXPECT_NE(guard->pending_reason().find("another disk"), std::string::npos);
  guard->CancelAcquire();
  LastIs(kA, "disks/a");
  EXPECT_TRUE(MayStart(WithLogOf(kB, kB)));
  EXPECT_EQ(guard->next_disk(), kB) << "cleatd is told";
}

TEST_F(SwapGuardTest, TheVmOfAnIncomingAttachmentWasElsewhere) {
  Attach(kB, /*incoming=*/true);
  LastIs(kA, "disks/a");
  EXPECT_FALSE(MayStart({.new_log = true, .at_start = false}));
  EXPECT_EQ(guard->next_disk(), kB);
  guard->CancelAcquire();
  EXPECT_FALSE(MayStart(WithOldEnginesLog()));
  EXPECT_FALSE(guard->next_disk().known()) << "this QEMU has served its guest another disk";
}

TEST_F(SwapGuardTest, WhatIsBehindIsAskedLast) {
  behind.is_owned = false;
  EXPECT_FALSE(MayStart(JustBooted()));
  EXPECT_EQ(guard->pending_reason(), "another host has it");
  LastIs(kA, "disks/a");
  guard->HandOff();
  EXPECT_EQ(behind.calls, "acquire hand off ");
}

TEST_F(SwapGuardTest, ACleatdThatTellsNoIdentitiesIsServedAsEver) {
  Attach({});
  LastIs(kA, "disks/a");
  EXPECT_TRUE(MayStart(InTheMiddle()));
}

}  // namespace
}  // namespace cleat::engine::swap_guard_test
