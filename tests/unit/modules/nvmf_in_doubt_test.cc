// SPDX-License-Identifier: Apache-2.0
// What a disk over two paths says of them and of what waits for writes in doubt, and what becomes of that by the disk's rule. Costs about
// two seconds.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_in_doubt_test {
namespace {

using block::InDoubt;
using block::IoStatus;
using block::PathsReport;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using test::TestDisk;

constexpr uint64_t kWaitNs = 200 * kNsPerMs;
constexpr InDoubt kFailAfter{.policy = InDoubt::Policy::kFailAfter, .fail_after_ns = kWaitNs};
constexpr InDoubt kAccept{.policy = InDoubt::Policy::kAccept, .fail_after_ns = 0};

class NvmfInDoubt : public testing::Test {
 protected:
  void Open() {
    NvmfOptions options = rig_.Options();
    options.events.paths_changed = [this] { ++changes_; };
    rig_.Open(std::move(options));
    disk_ = rig_.Channel();
    rig_.Until([&] { return rig_.target.counts.io_queues > 0 && second_.counts.io_queues > 0; });
    rig_.Until([&] { return Paths().optimized == 2; });
    rig_.ForSomeTurns();
  }
  // The first path breaks with a write to [8192, 12288) on it, whose retry goes by the second one.
  void LeaveOneInDoubt() {
    second_.faults.mute_writes = rig_.target.faults.mute_writes = true;
    OneWrite doubted(8192, 4096, 1);
    doubted.Start(*disk_);
    rig_.Until([&] { return rig_.target.counts.io_commands + second_.counts.io_commands > 0; });
    NvmfTarget& has_it = rig_.target.counts.io_commands > 0 ? rig_.target : second_;
    second_.faults.mute_writes = rig_.target.faults.mute_writes = false;
    has_it.Stop();
    EXPECT_EQ(disk_->Wait(doubted.io), IoStatus::kOk);
  }
  PathsReport Paths() { return *rig_.device->paths(); }

  NvmfRig rig_;
  NvmfTarget& second_ = rig_.AddPath();
  std::unique_ptr<TestDisk> disk_;
  int changes_ = 0;
};

TEST_F(NvmfInDoubt, WhatWaitsIsToldWithWhoLeftTheDoubtAndSinceWhen) {
  Open();
  EXPECT_EQ(Paths().losses, 0U);
  EXPECT_EQ(Paths().doubt_left_by, "");
  const int changes = changes_;
  LeaveOneInDoubt();
  OneWrite over(8192 + 2048, 4096, 2);
  over.Start(*disk_);
  rig_.Until([&] { return Paths().waiting_since_ns != 0; });
  const PathsReport paths = Paths();
  EXPECT_EQ(paths.optimized, 1U);
  EXPECT_EQ(paths.unusable, 1U);
  EXPECT_EQ(paths.losses, 1U);
  EXPECT_EQ(paths.failovers, 1U);
  EXPECT_EQ(paths.doubt_ranges, 1U);
  EXPECT_EQ(paths.doubt_bytes, 4096U);
  EXPECT_EQ(paths.waiting, 1U);
  EXPECT_LE(paths.waiting_since_ns, rig_.clock.NowNs());
  EXPECT_EQ(paths.doubt_left_by.find("left by subsystems/s at 127.0.0.1:"), 0U) << paths.doubt_left_by;
  EXPECT_GT(changes_, changes);
  rig_.ForSomeTurns();
  EXPECT_FALSE(over.io.done) << "without limit, where nobody says otherwise";

  rig_.ConfirmDead();
  EXPECT_EQ(disk_->Wait(over.io), IoStatus::kOk);
  EXPECT_EQ(Paths().waiting, 0U);
  EXPECT_EQ(Paths().waiting_since_ns, 0U);
  EXPECT_EQ(Paths().doubt_ranges, 0U);
  EXPECT_EQ(Paths().doubt_left_by, "");
}

TEST_F(NvmfInDoubt, WithoutAnotherPathALossIsNoFailover) {
  Open();
  rig_.target.Stop();
  rig_.Until([&] { return Paths().losses == 1; });
  EXPECT_EQ(Paths().failovers, 1U);
  second_.Stop();
  rig_.Until([&] { return Paths().losses == 2; });
  EXPECT_EQ(Paths().failovers, 1U);
  EXPECT_EQ(Paths().unusable, 2U);
}

TEST_F(NvmfInDoubt, WhatHasWaitedForItsTimeFailsAndTheDoubtStays) {
  Open();
  rig_.device->SetInDoubt(kFailAfter);
  LeaveOneInDoubt();
  for (uint64_t failed = 1; failed <= 2; ++failed) {
    const uint64_t begin_ns = rig_.clock.NowNs();
    OneWrite over(8192, 512, 2);
    over.Start(*disk_);
    EXPECT_EQ(disk_->Wait(over.io), IoStatus::kIoError);
    EXPECT_GE(rig_.clock.NowNs() - begin_ns, kWaitNs);
    EXPECT_EQ(Paths().failed, failed);
    EXPECT_EQ(Paths().doubt_ranges, 1U);
    EXPECT_EQ(Paths().waiting, 0U);
  }
  disk_.reset();
  disk_ = rig_.Channel(1);
  rig_.Until([&] { return Paths().failed == 2; });
  OneWrite once_more(8192, 512, 3);
  once_more.Start(*disk_);
  EXPECT_EQ(disk_->Wait(once_more.io), IoStatus::kIoError) << "a channel that is opened later has the rule";
  rig_.ConfirmDead();
  OneWrite after(8192, 512, 3);
  after.Start(*disk_);
  EXPECT_EQ(disk_->Wait(after.io), IoStatus::kOk);
  EXPECT_EQ(Paths().failed, 3U) << "that of the channel which has left counts";
}

TEST_F(NvmfInDoubt, WhereItIsAcceptedNothingWaitsAndItHoldsAgainWhenItIsNot) {
  Open();
  LeaveOneInDoubt();
  OneWrite over(8192, 4096, 2);
  over.Start(*disk_);
  rig_.ForSomeTurns();
  EXPECT_FALSE(over.io.done);
  EXPECT_EQ(Paths().accepted, 0U);
  rig_.device->SetInDoubt(kAccept);
  EXPECT_EQ(disk_->Wait(over.io), IoStatus::kOk);
  EXPECT_TRUE(Paths().accepts);
  EXPECT_EQ(Paths().accepted, 1U);
  EXPECT_EQ(Paths().doubt_ranges, 1U) << "it is in doubt as before";

  rig_.device->SetInDoubt({});
  rig_.ForSomeTurns();
  OneWrite held(8192, 4096, 3);
  held.Start(*disk_);
  rig_.ForSomeTurns();
  EXPECT_FALSE(held.io.done);
  rig_.device->SetInDoubt(kAccept);
  EXPECT_EQ(disk_->Wait(held.io), IoStatus::kOk);
  EXPECT_EQ(Paths().accepted, 1U) << "once for each path";
}

TEST_F(NvmfInDoubt, APathThatBreaksWhileItIsAcceptedIsCounted) {
  Open();
  rig_.device->SetInDoubt(kAccept);
  LeaveOneInDoubt();
  OneWrite over(8192, 4096, 2);
  over.Start(*disk_);
  EXPECT_EQ(disk_->Wait(over.io), IoStatus::kOk);
  rig_.Until([&] { return Paths().accepted == 1; });
  EXPECT_EQ(Paths().waiting, 0U);
}

}  // namespace
}  // namespace cleat::modules::nvmf_in_doubt_test
