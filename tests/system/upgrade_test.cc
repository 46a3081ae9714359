// SPDX-License-Identifier: Apache-2.0
// Engines exchanged under load, there and back, with guests that go on in the same rings and judge all they get: as it
// is meant to be, and with the old engine, the new one or cleatd killed in the middle of it. Files and memory, encrypted
// disks, and some whose limits have to hold all the while. And an engine that stands by, whose principal dies.
//
//   CLEAT_UPGRADES=300 CLEAT_UPGRADE_JSON=upgrade.json system_upgrade_test    upgrades in all
//   CLEAT_TEST_SEED=N                                                         the same choices once more
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "perf/vhost_user/deadline.h"
#include "tests/environment.h"
#include "upgrade_rig.h"

namespace cleat::system_test::upgrade_test {
namespace {

using test::FromEnvironment;

constexpr char kOtherId[] = "green";
constexpr char kGroup[] = "vm";
constexpr uint64_t kDiskIops = 1000;   // of each limited disk
constexpr uint64_t kGroupIops = 1500;  // of two of them together
// A request is lost when it is not answered for so long: more than a busy machine's disk takes.
constexpr uint64_t kPatienceNs = 60 * kNsPerSecond;
// What a limit without a burst lets pass at once: ten milliseconds of it, in each engine that begins to serve.
constexpr double kAtOnceSeconds = 0.01;

uint64_t Seed() {
  return FromEnvironment("CLEAT_TEST_SEED", 1);
}

// Two engines, and guests of all kinds.
class UpgradeTest : public testing::Test {
 protected:
  UpgradeTest()
      : host_({.reactors = 2, .with_keys = true}),
        rig_(host_, Seed()),
        upgrades_(host_, kEngineId, kOtherId, Seed()) {}

  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    for (const bool scsi : {false, true}) {
      for (const bool packed : {false, true}) {
        for (const bool memory : {false, true}) {
          Add({.scsi = scsi,
               .packed = packed,
               .queues = 2,
               .memory = memory,
               .delay_ns_max = memory ? 2 * kNsPerMs : 0});
        }
      }
    }
    ASSERT_OK(host_.api().CreateGroup(kGroup, Iops(kGroupIops)));
    for (const bool scsi : {false, true}) {
      CrashCase encrypted{.scsi = scsi, .packed = !scsi, .queues = 2, .storage = "encrypted"};
      encrypted.spec =
          WithEncryption(FileDisk(CrashRig::kDiskBytes, host_.Path(encrypted.storage + (scsi ? "1" : "0"))));
      Add(encrypted);
      CrashCase limited{.scsi = scsi, .packed = scsi, .queues = 2, .storage = "limited", .group = kGroup};
      limited.spec = FileDisk(CrashRig::kDiskBytes, host_.Path(limited.storage + (scsi ? "1" : "0")));
      *limited.spec->mutable_limits() = Iops(kDiskIops);
      limited_.push_back(rig_.guests().size());
      Add(limited);
    }
  }

  void Add(const CrashCase& what) { ASSERT_OK(rig_.Add(what, {.load = {.lost_after_ns = kPatienceNs}})); }

  void ExpectAllOn(const std::string& id) {
    for (const auto& guest : rig_.guests()) {
      const auto controller = host_.api().GetController(guest->id());
      ASSERT_OK(controller);
      EXPECT_EQ(controller.value.status().engine(), "engines/" + id) << guest->id();
    }
  }

  // Over the whole run, in which `engines` in turn began to serve them.
  void ExpectLimitsHeld(uint64_t since_ns, uint64_t engines) {
    const double seconds =
        static_cast<double>(MonotonicClock().NowNs() - since_ns) / static_cast<double>(kNsPerSecond) +
        kAtOnceSeconds * static_cast<double>(engines);
    uint64_t both = 0;
    for (const size_t index : limited_) {
      CrashGuest& guest = *rig_.guests()[index];
      const uint64_t requests = guest.load().counts().requests;
      EXPECT_LE(static_cast<double>(requests), static_cast<double>(kDiskIops) * seconds) << guest.id();
      both += requests;
    }
    EXPECT_LE(static_cast<double>(both), static_cast<double>(kGroupIops) * seconds);
    fmt::print("limited: {} requests in {:.1f} s, {:.1f} a second of {}\n", both, seconds,
               static_cast<double>(both) / seconds, kGroupIops);
  }

  void WriteJson(uint64_t upgrades) {
    const char* path =
        std::getenv("CLEAT_UPGRADE_JSON");  // NOLINT(concurrency-mt-unsafe): nobody writes the environment
    if (path == nullptr) return;
    nlohmann::json run = nlohmann::json::parse(rig_.Json());
    run["seed"] = Seed();
    run["upgrades"] = upgrades;
    run["deaths"] = upgrades_.deaths();
    std::ofstream(path) << run.dump(2) << "\n";
  }

  Host host_;
  CrashRig rig_;
  UpgradeRig upgrades_;
  std::vector<size_t> limited_;  // of the guests
};

TEST_F(UpgradeTest, ThereAndBackUnderLoad) {
  host_.AddEngine(kOtherId);
  const uint64_t since_ns = MonotonicClock().NowNs();
  ASSERT_OK(rig_.Start());
  const uint64_t upgrades = FromEnvironment("CLEAT_UPGRADES", kSanitized ? 4 : 12);
  uint64_t done = 0;
  for (; done < upgrades; ++done) {
    const bool with_death = done % 3 == 2;
    const bool went_on = rig_.Do(with_death ? "upgrade_with_death" : "upgrade", [&] {
      return with_death ? upgrades_.UpgradeWithDeath() : upgrades_.Upgrade();
    });
    if (!went_on) break;
    ExpectAllOn(upgrades_.from());
  }
  rig_.Stop();
  fmt::print("{} upgrades, {} deaths: {}\n", done, upgrades_.deaths(), rig_.Summary());
  WriteJson(done);
  EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
  ExpectLimitsHeld(since_ns, 1 + done + upgrades_.deaths());
}

TEST_F(UpgradeTest, StandbyTakesOver) {
  host_.AddEngine(kOtherId, {"--standby-for", kEngineId});
  const auto prepared = [&] { return upgrades_.StatusOf(kOtherId).standing_by() == rig_.guests().size(); };
  const perf::Deadline deadline(UpgradeRig::kUpgradeTimeoutNs);
  while (!prepared()) {
    ASSERT_FALSE(deadline.passed()) << upgrades_.StatusOf(kOtherId).ShortDebugString();
    poll(nullptr, 0, 5);
  }
  ASSERT_OK(rig_.Start());
  const bool went_on = rig_.Do("death_of_the_principal", [&] {
    host_.engine(kEngineId).Kill();
    return std::string();
  });
  EXPECT_TRUE(went_on);
  ExpectAllOn(kOtherId);
  rig_.Stop();
  fmt::print("standby: {}\n", rig_.Summary());
  EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
  host_.StartEngine(kEngineId);
  EXPECT_TRUE(host_.WaitEngine());  // before it is told to end
}

}  // namespace
}  // namespace cleat::system_test::upgrade_test
