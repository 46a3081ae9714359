// SPDX-License-Identifier: Apache-2.0
// Engines, upgrades, attaches, deaths, lost connections and restarts of cleatd, drawn from a seed. At no time is an engine
// asked to serve what another one serves; in the end each controller is served by exactly one.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/random.h"
#include "moves_rig.h"

namespace cleat::control::moves_random_test {
namespace {

class RandomMovesTest : public MovesRig, public ::testing::WithParamInterface<uint64_t> {
 protected:
  RandomMovesTest() : random_(GetParam()) {
    // What is awaited always comes: the limits are for what doesn't.
    Stop();
    options_ = {
        .retry_min_ns = 2 * kNsPerMs, .retry_max_ns = 20 * kNsPerMs, .heartbeat = {.limit_ns = kHourNs}};
    Start();
  }

  uint64_t Draw(uint64_t below) { return random_.Below(below); }
  FakeEngine& Any() { return Draw(2) == 0 ? blue_ : green_; }
  bool& ConnectedOf(const FakeEngine& engine) {
    return &engine == &blue_ ? blue_connected_ : green_connected_;
  }
  void Pause() { std::this_thread::sleep_for(std::chrono::microseconds(Draw(3000))); }

  void Do() {
    FakeEngine& engine = Any();
    bool& connected = ConnectedOf(engine);
    const std::string id = "c" + std::to_string(Draw(kControllers));
    switch (Draw(13)) {
      case 0:
      case 1:
      case 2: {
        const bool forth = Draw(2) == 0;
        (void)Upgrade(forth ? "engine-0" : "engine-1", forth ? "engine-1" : "engine-0");
        return;
      }
      case 3:
        engine.Die();
        connected = false;
        return;
      case 4:
        if (Draw(2) == 0) {
          engine.DisconnectBeforeAnswers();
        } else {
          engine.Disconnect();
        }
        connected = false;
        return;
      case 5: {
        RestartCleatd();
        blue_connected_ = green_connected_ = false;
        return;
      }
      case 6:
        engine.FailYields(1, "deadline_exceeded", "slow storage");
        return;
      case 7:
        engine.FailTakes(static_cast<int>(Draw(3)));
        return;
      case 8:
        engine.Hold(Draw(2) == 0 ? "YieldController" : "TakeController");
        return;
      case 9:
        engine.Release();
        return;
      case 10: {
        const std::string disk = id + "-" + std::to_string(Draw(3));
        (void)state_->attachments().Attach(Attach(disk, id));
        return;
      }
      case 11: {
        v1::CancelUpgradeRequest request;
        request.set_name(Draw(2) == 0 ? "engines/engine-0" : "engines/engine-1");
        (void)state_->upgrades().Cancel(request);
        return;
      }
      default: {
        const std::string disk = id + "-" + std::to_string(1 + Draw(2));
        (void)state_->attachments().Detach(Detach(id, disk));
        return;
      }
    }
  }

  void Reconnect() {
    for (FakeEngine* engine : {&blue_, &green_}) {
      if (!ConnectedOf(*engine)) {
        ASSERT_TRUE(engine->Connect());
      }
      ConnectedOf(*engine) = true;
    }
  }

  static constexpr uint64_t kControllers = 4;
  Random random_;
  bool blue_connected_ = false;
  bool green_connected_ = false;
};

TEST_P(RandomMovesTest, AtMostOneServesAndInTheEndExactlyOne) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  green_.set_stands_by_for(Draw(2) == 0 ? "engine-0" : "");
  Reconnect();
  AwaitEngines();
  for (uint64_t i = 0; i < kControllers; ++i) {
    const std::string id = "c" + std::to_string(i);
    const bool scsi = i % 2 == 0;
    Create(NullDisk(id + "-0"), id, scsi ? v1::CONTROLLER_TYPE_SCSI : v1::CONTROLLER_TYPE_BLK);
    for (const char* more : {"-1", "-2"}) ASSERT_TRUE(state_->disks().Create(NullDisk(id + more)).ok());
  }
  for (int turn = 0; turn < 60; ++turn) {
    Do();
    Pause();
    if (Draw(2) == 0) Reconnect();
    ASSERT_EQ(host_.Violations(), std::vector<std::string>{}) << "turn " << turn;
  }
  for (FakeEngine* engine : {&blue_, &green_}) {
    engine->FailYields(0, "", "");
    engine->FailTakes(0);
    engine->Release();
  }
  Reconnect();
  for (uint64_t i = 0; i < kControllers; ++i) {
    const std::string id = "c" + std::to_string(i);
    Await(id + " is served by one", [&] {
      const std::string server = host_.ServerOf(ControllerName(id));
      return !server.empty() && EngineOf(id) == EngineName(server);
    });
  }
  EXPECT_EQ(host_.Violations(), std::vector<std::string>{});
}

// CLEAT_SEED: from there on. CLEAT_SEEDS: so many.
uint64_t Number(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): before the first thread
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMovesTest,
                         ::testing::Range(Number("CLEAT_SEED", 1),
                                          Number("CLEAT_SEED", 1) + Number("CLEAT_SEEDS", 12)));

}  // namespace
}  // namespace cleat::control::moves_random_test
