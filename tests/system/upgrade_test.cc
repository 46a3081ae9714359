// SPDX-License-Identifier: Apache-2.0
// Engines exchanged under load, there and back, with guests that go on in the same rings and judge all they get: as it
// is meant to be, and with the old engine, the new one or cleatd killed in the middle of it. And an engine that stands
// by, whose principal dies.
//
//   CLEAT_UPGRADES=300 system_upgrade_test    upgrades in all
//   CLEAT_TEST_SEED=N                         the same choices once more
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "crash_rig.h"
#include "expect_ok.h"
#include "host.h"
#include "perf/deadline.h"
#include "tests/environment.h"

namespace cleat::system_test {
namespace {

using test::FromEnvironment;

constexpr uint64_t kUpgradeTimeoutNs = 60 * kNsPerSecond;
constexpr int kPollMs = 5;
constexpr char kOtherId[] = "green";

uint64_t Seed() {
  return FromEnvironment("CLEAT_TEST_SEED", 1);
}

// Two engines, and which of them has the controllers.
class UpgradeTest : public testing::Test {
 protected:
  UpgradeTest() : host_({.reactors = 2}), random_(Seed()), rig_(host_, Seed()) {}

  void SetUp() override {
    ASSERT_TRUE(host_.ok());
    for (const bool scsi : {false, true}) {
      for (const bool packed : {false, true}) {
        for (const bool memory : {false, true}) {
          ASSERT_OK(rig_.Add({.scsi = scsi,
                              .packed = packed,
                              .queues = 2,
                              .memory = memory,
                              .delay_ns_max = memory ? 2 * kNsPerMs : 0}));
        }
      }
    }
  }

  v1::EngineStatus StatusOf(const std::string& id) {
    grpc::ClientContext context;
    v1::GetEngineRequest request;
    request.set_name("engines/" + id);
    v1::Engine engine;
    const grpc::Status status = host_.api().stub().GetEngine(&context, request, &engine);
    return status.ok() ? engine.status() : v1::EngineStatus();
  }

  std::string BeginUpgrade() {
    grpc::ClientContext context;
    v1::UpgradeEngineRequest request;
    request.set_name("engines/" + from_);
    request.set_to("engines/" + to_);
    v1::UpgradeEngineResponse response;
    const grpc::Status status = host_.api().stub().UpgradeEngine(&context, request, &response);
    return status.ok() ? "" : status.error_message();
  }

  // "" when it is done; what it says otherwise.
  std::string WaitUpgrade() {
    const perf::Deadline deadline(kUpgradeTimeoutNs);
    for (;;) {
      const v1::EngineStatus status = StatusOf(from_);
      const v1::UpgradeState state = status.upgrade().state();
      if (state == v1::UPGRADE_STATE_DONE) return "";
      if (state != v1::UPGRADE_STATE_RUNNING && state != v1::UPGRADE_STATE_UNSPECIFIED)
        return status.upgrade().ShortDebugString();
      if (deadline.passed()) return "timed out: " + status.ShortDebugString();
      poll(nullptr, 0, kPollMs);
    }
  }

  std::string Upgrade() {
    std::string failure = BeginUpgrade();
    if (failure.empty()) failure = WaitUpgrade();
    if (failure.empty()) std::swap(from_, to_);
    return failure;
  }

  bool WaitConnected(const std::string& id) {
    const perf::Deadline deadline(kUpgradeTimeoutNs);
    while (!StatusOf(id).connected()) {
      if (deadline.passed()) return false;
      poll(nullptr, 0, kPollMs);
    }
    return true;
  }

  // Whoever it is dies at some moment of an upgrade, and comes back; then it is done again until it succeeds.
  std::string UpgradeWithDeath() {
    if (std::string failure = BeginUpgrade(); !failure.empty()) return failure;
    poll(nullptr, 0, static_cast<int>(random_.Below(60)));
    switch (random_.Below(3)) {
      case 0:
        ++deaths_;
        host_.engine(from_).Kill();
        host_.StartEngine(from_);
        break;
      case 1:
        ++deaths_;
        host_.engine(to_).Kill();
        host_.StartEngine(to_);
        break;
      default:
        ++deaths_;
        host_.KillCleatd();
        host_.StartCleatd();
        break;
    }
    if (!WaitConnected(from_) || !WaitConnected(to_)) return "an engine does not come back";
    std::string failure = WaitUpgrade();
    for (int i = 0; i < 10 && !failure.empty(); ++i) {
      failure = BeginUpgrade();
      if (failure.empty()) failure = WaitUpgrade();
      if (!failure.empty()) poll(nullptr, 0, 200);
    }
    if (failure.empty()) std::swap(from_, to_);
    return failure;
  }

  void ExpectAllOn(const std::string& id) {
    for (const auto& guest : rig_.guests()) {
      const auto controller = host_.api().GetController(guest->id());
      ASSERT_OK(controller);
      EXPECT_EQ(controller.value.status().engine(), "engines/" + id) << guest->id();
    }
  }

  Host host_;
  Random random_;
  CrashRig rig_;
  std::string from_ = kEngineId;
  std::string to_ = kOtherId;
  uint64_t deaths_ = 0;
};

TEST_F(UpgradeTest, ThereAndBackUnderLoad) {
  host_.AddEngine(kOtherId);
  ASSERT_OK(rig_.Start());
  const uint64_t upgrades = FromEnvironment("CLEAT_UPGRADES", kSanitized ? 4 : 12);
  for (uint64_t i = 0; i < upgrades; ++i) {
    const bool with_death = i % 3 == 2;
    const bool went_on = rig_.Do(with_death ? "upgrade_with_death" : "upgrade",
                                 [&] { return with_death ? UpgradeWithDeath() : Upgrade(); });
    if (!went_on) break;
    ExpectAllOn(from_);
  }
  rig_.Stop();
  fmt::print("{} upgrades, {} deaths: {}\n", upgrades, deaths_, rig_.Summary());
  EXPECT_EQ(rig_.findings(), 0U) << rig_.FindingsText();
}

TEST_F(UpgradeTest, StandbyTakesOver) {
  host_.AddEngine(kOtherId, {"--standby-for", kEngineId});
  const auto prepared = [&] { return StatusOf(kOtherId).standing_by() == rig_.guests().size(); };
  const perf::Deadline deadline(kUpgradeTimeoutNs);
  while (!prepared()) {
    ASSERT_FALSE(deadline.passed()) << StatusOf(kOtherId).ShortDebugString();
    poll(nullptr, 0, kPollMs);
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
}

}  // namespace
}  // namespace cleat::system_test
