// SPDX-License-Identifier: Apache-2.0
// When lives that are over are proved dead by time. Costs nine seconds, nearly all of which it waits.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "modules/nvmf/doubt/quiesced_lives.h"
#include "tests/unit/modules/nvmf_rig.h"

namespace cleat::modules::nvmf_quiesced_lives_test {
namespace {

using nvme::host::AssociationInfo;
using nvme::host::LifeId;
using test::NvmfRig;
using test::NvmfTarget;
using test::OneWrite;
using Lives = std::vector<LifeId>;

constexpr uint64_t kNow = 100 * kNsPerSecond;

AssociationInfo Says(uint32_t kato_ms, uint32_t quiesce_ms, bool traffic_keeps_alive = false) {
  AssociationInfo info;
  info.controller_id = 7;
  info.kato_ms = kato_ms;
  info.fabrics.command_quiesce_ms = quiesce_ms;
  info.fabrics.traffic_keeps_alive = traffic_keeps_alive;
  return info;
}

TEST(QuiescedLives, ALifeIsOverTwoTimeoutsAndTheQuiesceTimeAfterItsEnd) {
  QuiescedLives lives(1);
  lives.Began(0, 5, Says(1000, 300));
  EXPECT_EQ(lives.next_ns(), std::nullopt) << "it lives";
  lives.SetInDoubt(Lives{5}, kNow);
  lives.SetInDoubt(Lives{5}, kNow + kNsPerSecond);  // told again
  const uint64_t over_ns = kNow + 2300 * kNsPerMs;
  EXPECT_EQ(lives.next_ns(), over_ns);
  EXPECT_EQ(lives.Due(over_ns - 1), Lives{});
  EXPECT_EQ(lives.Due(over_ns), Lives{5});
  EXPECT_EQ(lives.WhyNotProved(), "");
  lives.SetInDoubt(Lives{}, over_ns);
  EXPECT_EQ(lives.Due(over_ns), Lives{}) << "it was proved";
}

TEST(QuiescedLives, WhereAnyCommandIsASignOfLifeItTakesATimeoutMore) {
  QuiescedLives lives(1);
  lives.Began(0, 5, Says(1000, 300, true));
  lives.SetInDoubt(Lives{5}, kNow);
  EXPECT_EQ(lives.next_ns(), kNow + 3300 * kNsPerMs);
}

TEST(QuiescedLives, TheLongestTimeThatAnyControllerGaveCounts) {
  QuiescedLives lives(2);
  lives.Began(0, 5, Says(1000, 300));
  lives.SetInDoubt(Lives{5}, kNow);
  lives.Began(1, 6, Says(1000, 900));
  lives.Began(1, 7, Says(1000, 100));
  EXPECT_EQ(lives.next_ns(), kNow + 2900 * kNsPerMs);
}

TEST(QuiescedLives, WhatAnEngineBeforeLeftWaitsUntilEachPathHasSaidItsTime) {
  QuiescedLives lives(2);
  lives.Began(0, 5, Says(1000, 300));
  lives.SetInDoubt(Lives{4, 5}, kNow);
  EXPECT_EQ(lives.Due(UINT64_MAX), Lives{5});
  EXPECT_NE(lives.WhyNotProved().find("has not been connected yet"), std::string::npos);
  lives.Began(1, 6, Says(1000, 400));
  EXPECT_EQ(lives.Due(UINT64_MAX), (Lives{4, 5}));
  EXPECT_EQ(lives.next_ns(), kNow + 2400 * kNsPerMs);
}

TEST(QuiescedLives, ATargetThatGivesNoTimeProvesNothing) {
  QuiescedLives lives(1);
  lives.Began(0, 5, Says(1000, 0));
  EXPECT_EQ(lives.WhyNotProved(), "") << "nothing is in doubt";
  lives.SetInDoubt(Lives{5}, kNow);
  EXPECT_EQ(lives.Due(UINT64_MAX), Lives{});
  EXPECT_EQ(lives.next_ns(), std::nullopt);
  EXPECT_NE(lives.WhyNotProved().find("controller 7 gives no Command Quiesce Time"), std::string::npos);
}

TEST(QuiescedLives, OfTooManyLivesTheOldestAreTakenForAnotherEngines) {
  QuiescedLives lives(2);
  for (LifeId life = 1; life <= QuiescedLives::kOwnMax + 1; ++life) lives.Began(0, life, Says(1000, 300));
  lives.SetInDoubt(Lives{1, 2}, kNow);
  EXPECT_EQ(lives.Due(UINT64_MAX), Lives{2});
}

// ---- A disk, and a target that says 300 ms

NvmfTarget::Options SaysQuiesceTime() {
  NvmfTarget::Options options;
  options.command_quiesce_ms = 300;
  return options;
}

// A write that its target has and does not answer, as its path breaks; the time from then on until one over it is done, or nothing after
// `patience_ns`. `still_ns`: another reactor stands still for so long when the path breaks, with its socket; the time from its next turn on then.
std::optional<uint64_t> WaitsNs(NvmfRig& rig, uint64_t still_ns = 0,
                                uint64_t patience_ns = 60 * kNsPerSecond) {
  auto disk = rig.Channel();
  OneWrite write(8192, 4096, 1);
  rig.target.faults.mute_writes = true;
  write.Start(*disk);
  rig.Until([&] { return rig.target.counts.muted > 0; });
  rig.target.faults.mute_writes = false;
  if (still_ns > 0) rig.still = rig.io[1].get();
  const uint64_t broken_ns = rig.clock.NowNs();
  rig.target.CutAll();
  rig.Until([&] { return rig.clock.NowNs() >= broken_ns + still_ns; });
  rig.still = nullptr;
  const uint64_t since_ns = rig.clock.NowNs();
  EXPECT_EQ(disk->Wait(write.io), block::IoStatus::kOk);
  OneWrite newer(8192 + 2048, 4096, 2);
  newer.Start(*disk);
  rig.Until([&] { return newer.io.done || rig.clock.NowNs() > since_ns + patience_ns; });
  std::optional<uint64_t> waited_ns;
  if (newer.io.done) {
    waited_ns = rig.clock.NowNs() - since_ns;
  } else {
    rig.ConfirmDead();
  }
  EXPECT_EQ(disk->Wait(newer.io), block::IoStatus::kOk);
  return waited_ns;
}

TEST(NvmfQuiescedLives, AWriteWaitsForTheTargetsTimeAndForNobodysWord) {
  NvmfRig rig(SaysQuiesceTime());
  rig.subsystem.kato_ms = 1000;
  rig.subsystem.proofs.time_elapsed = true;
  rig.Open();
  ASSERT_TRUE(rig.Await(rig.pipeline->Acquire()).ok());
  EXPECT_GE(WaitsNs(rig).value_or(0), 2300 * kNsPerMs);
}

TEST(NvmfQuiescedLives, TheTimeBeginsOnceNoReactorCanSendAnyMore) {
  NvmfRig rig(SaysQuiesceTime());
  rig.subsystem.kato_ms = 1000;
  rig.subsystem.proofs.time_elapsed = true;
  rig.Open();
  ASSERT_TRUE(rig.Await(rig.pipeline->Acquire()).ok());
  auto other = rig.Channel(1);
  OneWrite elsewhere(0, 4096, 3);
  elsewhere.Start(*other);
  EXPECT_EQ(other->Wait(elsewhere.io), block::IoStatus::kOk);
  EXPECT_GE(WaitsNs(rig, 600 * kNsPerMs).value_or(0), 2300 * kNsPerMs);
}

TEST(NvmfQuiescedLives, WithoutATimeThatIsGivenItWaitsForAWord) {
  NvmfRig rig;
  rig.subsystem.kato_ms = 1000;
  rig.subsystem.proofs.time_elapsed = true;
  rig.Open();
  ASSERT_TRUE(rig.Await(rig.pipeline->Acquire()).ok());
  EXPECT_EQ(WaitsNs(rig, 0, 3 * kNsPerSecond), std::nullopt);
}

}  // namespace
}  // namespace cleat::modules::nvmf_quiesced_lives_test
