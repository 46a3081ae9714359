// SPDX-License-Identifier: Apache-2.0
// Engines exchanged under load, there and back, with guests that go on in the same rings and judge all they get: as it
// is meant to be, and with the old engine, the new one or cleatd killed in the middle of it. Files and memory, encrypted
// disks, and some whose limits have to hold all the while. And an engine that stands by, whose principal dies.
//
//   CLEAT_UPGRADES=300 CLEAT_UPGRADE_JSON=upgrade.json system_upgrade_test    upgrades in all
//   CLEAT_TEST_SEED=N                                                         the same choices once more
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "tests/environment.h"
#include "upgrade_guests.h"
#include "upgrade_rig.h"

namespace cleat::system_test::upgrade_test {
namespace {

using test::FromEnvironment;

constexpr char kOtherId[] = "green";

uint64_t Seed() {
  return FromEnvironment("CLEAT_TEST_SEED", 1);
}

// Two engines, and guests of all kinds.
class UpgradeTest : public testing::Test {
 protected:
  UpgradeTest()
      : host_({.reactors = 2, .with_keys = true}),
        rig_(host_, Seed()),
        guests_(host_, rig_),
        upgrades_(host_, kEngineId, kOtherId, Seed()) {}

  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    ASSERT_OK(guests_.Add());
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
  UpgradeGuests guests_;
  UpgradeRig upgrades_;
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
    guests_.ExpectAllOn(upgrades_.from());
  }
  rig_.Stop();
  fmt::print("{} upgrades, {} deaths: {}\n", done, upgrades_.deaths(), rig_.Summary());
  WriteJson(done);
  EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
  guests_.ExpectLimitsHeld(since_ns, 1 + done + upgrades_.deaths());
}

TEST_F(UpgradeTest, StandbyTakesOver) {
  host_.AddEngine(kOtherId, {"--standby-for", kEngineId});
  ASSERT_EQ(upgrades_.WaitStandingBy(kOtherId, rig_.guests().size()), "");
  ASSERT_OK(rig_.Start());
  const bool went_on = rig_.Do("death_of_the_principal", [&] {
    host_.engine(kEngineId).Kill();
    return std::string();
  });
  EXPECT_TRUE(went_on);
  guests_.ExpectAllOn(kOtherId);
  rig_.Stop();
  fmt::print("standby: {}\n", rig_.Summary());
  EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
  host_.StartEngine(kEngineId);
  EXPECT_TRUE(host_.WaitEngine());  // before it is told to end
}

}  // namespace
}  // namespace cleat::system_test::upgrade_test
