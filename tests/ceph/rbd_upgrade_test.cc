// SPDX-License-Identifier: Apache-2.0
// Upgrades with disks in a real Ceph cluster: there and back under guests that judge all they get, plain and encrypted, with
// the old engine, the new one or cleatd killed in the middle of it. And with a cluster that hangs: what is in it stays
// where it is and is named, everything else moves; when it goes on, the next upgrade takes the rest.
//
//   CLEAT_UPGRADES=60 rbd_upgrade_test    upgrades in all
//   CLEAT_TEST_SEED=N                     the same choices once more
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "perf/vhost_user/deadline.h"
#include "tests/ceph/rbd_host_rig.h"
#include "tests/environment.h"
#include "tests/system/crash_rig.h"
#include "tests/system/lying_link.h"
#include "tests/system/upgrade_rig.h"

namespace cleat::system_test::rbd_upgrade_test {
namespace {

using test::FromEnvironment;

constexpr char kBlue[] = "blue";
constexpr char kGreen[] = "green";
constexpr int64_t kDrainSeconds = 1;
// After so long without an answer a request of a guest's counts as lost: a cluster that hangs for a while has lost none.
constexpr uint64_t kPatienceNs = 120 * kNsPerSecond;
constexpr uint16_t kQueues = 2;
constexpr uint32_t kDepth = 8;  // of each queue

constexpr char kNoAnswer[] = "does not answer whether it has let go";

const CrashGuestOptions kGuest{.load = {.depth = kDepth, .lost_after_ns = kPatienceNs}};

class RbdUpgradeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    ASSERT_OK(CreateClusterOn(host_, ceph_, "ceph", ceph_.Key("cleat")));
    host_.AddEngine(kBlue, {}, link_.path());
    for (const bool scsi : {false, true}) {
      for (const bool encrypted : {false, true}) {
        ASSERT_OK(rig_.Add(InCeph(scsi, encrypted), kGuest));
      }
      ASSERT_OK(rig_.Add({.scsi = scsi, .packed = !scsi, .queues = kQueues, .memory = true}, kGuest));
    }
    host_.AddEngine(kGreen);
  }

  CrashCase InCeph(bool scsi, bool encrypted) {
    CrashCase what{.scsi = scsi,
                   .packed = scsi != encrypted,
                   .queues = kQueues,
                   .storage = encrypted ? "rbd-encrypted" : "rbd"};
    const std::string image =
        fmt::format("{}-{}", testing::UnitTest::GetInstance()->current_test_info()->name(), what.Id());
    ceph_.CreateImage(image, CrashRig::kDiskBytes);
    v1::DiskSpec spec = Rbd(image, CrashRig::kDiskBytes);
    what.spec = encrypted ? WithEncryption(spec) : spec;
    in_ceph_.insert("controllers/" + what.Id());
    return what;
  }

  void ExpectOn(const std::string& ceph, const std::string& others) {
    for (const auto& guest : rig_.guests()) {
      const auto controller = host_.api().GetController(guest->id());
      ASSERT_OK(controller);
      EXPECT_EQ(controller.value.status().engine(), "engines/" + (IsInCeph(*guest) ? ceph : others))
          << guest->id();
    }
  }

  void WriteJson(uint64_t upgrades) {
    const char* path =
        std::getenv("CLEAT_UPGRADE_JSON");  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
    if (path == nullptr) return;
    nlohmann::json run = nlohmann::json::parse(rig_.Json());
    run["seed"] = FromEnvironment("CLEAT_TEST_SEED", 1);
    run["upgrades"] = upgrades;
    run["deaths"] = upgrades_.deaths();
    std::ofstream(path) << run.dump(2) << "\n";
  }

  void AwaitProgress() {
    for (const auto& guest : rig_.guests()) {
      ASSERT_TRUE(guest->load().WaitProgress(200, kWaitTimeoutNs)) << guest->id();
    }
  }

  bool IsInCeph(const CrashGuest& guest) const { return in_ceph_.contains("controllers/" + guest.id()); }

  // What has nothing in the storage when its engine is asked for it lets go, and then waits for the cluster to unlock the image: that is
  // another reason than the one that is looked for here.
  void AwaitHung() {
    for (const auto& guest : rig_.guests()) {
      if (!IsInCeph(*guest)) continue;
      ASSERT_TRUE(rig_.WaitAllInFlight(*guest, uint64_t{kQueues} * kDepth)) << guest->id();
    }
  }

  // While the cluster hangs. On a busy machine others may not be drained in that little time either, and are asked for again; nor may
  // the engine's answer come in time.
  void ExpectOthersMoved(const std::string& reason) {
    const size_t others = rig_.guests().size() - in_ceph_.size();
    const perf::Deadline deadline(UpgradeRig::kUpgradeTimeoutNs);
    for (size_t moved = 0;;) {
      const v1::UpgradeStatus upgrade = upgrades_.WaitEnd();
      EXPECT_EQ(upgrade.state(), v1::UPGRADE_STATE_FAILED) << upgrade.ShortDebugString();
      std::set<std::string> named;
      for (const v1::UpgradeFailure& failure : upgrade.failed()) {
        named.insert(failure.controller());
        fmt::print("{} stays: {}\n", failure.controller(), failure.reason());
        const bool says = failure.reason().find(reason) != std::string::npos ||
                          failure.reason().find(kNoAnswer) != std::string::npos;
        EXPECT_TRUE(says || !in_ceph_.contains(failure.controller())) << failure.reason();
      }
      EXPECT_TRUE(std::includes(named.begin(), named.end(), in_ceph_.begin(), in_ceph_.end()))
          << upgrade.ShortDebugString();
      moved += upgrade.moved();
      if (moved >= others || HasFailure()) {
        EXPECT_EQ(moved, others);
        EXPECT_EQ(named, in_ceph_);
        break;
      }
      ASSERT_FALSE(deadline.passed()) << "others do not move: " << upgrade.ShortDebugString();
      ASSERT_EQ(upgrades_.Begin(kDrainSeconds), "");
    }
    ExpectOn(kBlue, kGreen);
    for (const auto& guest : rig_.guests()) {
      if (IsInCeph(*guest)) continue;
      EXPECT_TRUE(guest->load().WaitProgress(200, kWaitTimeoutNs)) << guest->id();
    }
  }

  // When it goes on.
  void ExpectTheRestMoves() {
    ASSERT_NO_FATAL_FAILURE(AwaitProgress());
    EXPECT_EQ(upgrades_.Upgrade(), "");
    ExpectOn(kGreen, kGreen);
    rig_.Stop();
    fmt::print("hung: {}\n", rig_.Summary());
    EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
  }

  MiniCeph& ceph_ = MiniCeph::Shared();
  Host host_{{.with_engine = false, .with_keys = true}};
  std::set<std::string> in_ceph_;  // controllers
  LyingLink link_{host_.Path("link.sock"), host_.Path("engine.sock")};
  CrashRig rig_{host_, FromEnvironment("CLEAT_TEST_SEED", 1)};
  UpgradeRig upgrades_{host_, kBlue, kGreen, FromEnvironment("CLEAT_TEST_SEED", 1)};
};

TEST_F(RbdUpgradeTest, ThereAndBackUnderLoad) {
  ASSERT_OK(rig_.Start());
  const uint64_t upgrades = FromEnvironment("CLEAT_UPGRADES", kSanitized ? 3 : 6);
  uint64_t done = 0;
  for (; done < upgrades; ++done) {
    const bool with_death = done % 3 == 2;
    const bool went_on = rig_.Do(with_death ? "upgrade_with_death" : "upgrade", [&] {
      return with_death ? upgrades_.UpgradeWithDeath() : upgrades_.Upgrade();
    });
    if (!went_on) break;
    ExpectOn(upgrades_.from(), upgrades_.from());
  }
  rig_.Stop();
  fmt::print("rbd: {} upgrades, {} deaths: {}\n", done, upgrades_.deaths(), rig_.Summary());
  WriteJson(done);
  EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
}

// The new engine can't open what hangs; cleatd waits for half a minute before it goes on with the others.
TEST_F(RbdUpgradeTest, WhatCannotBeOpenedStaysAndIsNamedAndTheOthersMove) {
  if (std::getenv("CLEAT_CEPH_LONG") ==
      nullptr)  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
    GTEST_SKIP() << "only in long runs (CLEAT_CEPH_LONG)";
  ASSERT_OK(rig_.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  {
    const Stopped stopped(ceph_, "osd.0");
    ASSERT_EQ(upgrades_.Begin(kDrainSeconds), "");
    ExpectOthersMoved("is still being opened there");
  }
  ExpectTheRestMoves();
}

// The old engine has requests in what hangs, and the new one has opened it before.
TEST_F(RbdUpgradeTest, WhatHangsStaysAndIsNamedAndTheOthersMove) {
  ASSERT_OK(rig_.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitProgress());
  link_.SetYield(LyingLink::Yield::kHeld);
  ASSERT_EQ(upgrades_.Begin(kDrainSeconds), "");
  const perf::Deadline deadline(kWaitTimeoutNs);
  while (link_.held() == 0) {
    ASSERT_FALSE(deadline.passed()) << "nothing is prepared";
    poll(nullptr, 0, 5);
  }
  {
    const Stopped stopped(ceph_, "osd.0");
    ASSERT_NO_FATAL_FAILURE(AwaitHung());
    link_.Release();
    ExpectOthersMoved("requests are still in the storage");
  }
  ExpectTheRestMoves();
}

}  // namespace
}  // namespace cleat::system_test::rbd_upgrade_test
