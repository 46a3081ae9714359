// SPDX-License-Identifier: Apache-2.0
// Two engines that are played, on a host that knows who serves what, and a cleatd that can be restarted between them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "reconciler_rig.h"
#include "requests.h"

namespace cleat::control {

class MovesRig : public ReconcilerRig {
 protected:
  static constexpr auto kStandby = engine::v1::CONTROLLER_STATE_STANDBY;
  static constexpr auto kAbsent = engine::v1::CONTROLLER_STATE_UNSPECIFIED;
  static constexpr auto kConnecting = engine::v1::CONTROLLER_STATE_CONNECTING;

  MovesRig() {
    blue_.set_host(&host_);
    green_.set_host(&host_);
  }
  // Blue outlives the host, and would do on it what it is still asked for.
  ~MovesRig() override { blue_.Disconnect(); }

  // Engines serve on, and connect when they are told to.
  void RestartCleatd() {
    Stop();
    blue_.Disconnect();
    green_.Disconnect();
    Start();
  }

  void Await(const std::string& what, const std::function<bool()>& condition) {
    AwaitWhile([] {}, what, condition);
  }
  // Any limit passes now. What was answered before was in time.
  void PassLimits() {
    clock_.Leap(kHourNs + kNsPerSecond);  // and a drain timeout
    link_->Wake();
  }
  // A move that was begun is held up now. Limits are far off.
  void PassTurn() {
    clock_.Leap(options_.turn_ns + kNsPerSecond);
    link_->Wake();
  }
  // Where one limit comes after the other, and nothing but limits can go on.
  void AwaitPassingLimits(const std::string& what, const std::function<bool()>& condition) {
    AwaitWhile([this] { PassLimits(); }, what, condition);
  }
  void AwaitWhile(const std::function<void()>& quietly, const std::string& what,
                  const std::function<bool()>& condition) {
    const auto watcher = state_->Watch();
    ASSERT_TRUE(watcher.ok());
    for (int quiet = 0; !condition(); ++quiet) {
      ASSERT_LT(quiet, kQuietMax) << "waited in vain until " << what << "\n" << Picture();
      quietly();
      while (*(*watcher)->Next(std::chrono::milliseconds(10)) != nullptr) {
      }
    }
  }

  // For people who look for what went wrong.
  std::string Picture() {
    std::string text;
    const auto controllers = state_->controllers().List({});
    for (const v1::Controller& controller : controllers->controllers()) {
      const std::string& name = controller.name();
      text +=
          fmt::format("{}: {} {} '{}', served by {}, blue {}, green {}\n", name, controller.status().engine(),
                      v1::ControllerState_Name(controller.status().state()), controller.status().message(),
                      host_.ServerOf(name), engine::v1::ControllerState_Name(blue_.StateOf(name)),
                      engine::v1::ControllerState_Name(green_.StateOf(name)));
    }
    const auto engines = state_->engines().List({});
    for (const v1::Engine& engine : engines->engines()) text += engine.ShortDebugString() + "\n";
    return text;
  }

  void Create(const v1::CreateDiskRequest& disk, const std::string& controller,
              v1::ControllerType type = v1::CONTROLLER_TYPE_BLK) {
    ASSERT_TRUE(state_->disks().Create(disk).ok());
    if (!state_->controllers().Get(GetController(controller)).ok()) {
      auto request = NewController(controller);
      request.mutable_controller()->mutable_spec()->set_type(type);
      request.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
      const auto made = state_->controllers().Create(request);
      ASSERT_TRUE(made.ok()) << made.error().message;
    }
    ASSERT_TRUE(state_->attachments().Attach(Attach(disk.disk_id(), controller)).ok());
  }
  // On blue, with a null disk each.
  void CreateSome(const std::vector<std::string>& controllers) {
    for (const std::string& id : controllers) Create(NullDisk("d" + id), id);
    for (const std::string& id : controllers) AwaitServed(id, "engine-0");
  }

  std::string EngineOf(const std::string& controller) {
    return state_->controllers().Get(GetController(controller))->status().engine();
  }
  void AwaitServed(const std::string& controller, const std::string& engine) {
    Await(controller + " is served by " + engine, [&] {
      return host_.ServerOf(ControllerName(controller)) == engine &&
             EngineOf(controller) == EngineName(engine) &&
             state_->controllers().Get(GetController(controller))->status().state() ==
                 v1::CONTROLLER_STATE_CONNECTING;
    });
  }
  void AwaitEngines() {
    Await("both engines are there", [&] { return IsConnected("engine-0") && IsConnected("engine-1"); });
  }
  // Time for what must not happen: another controller is made, and its engine has it.
  void AwaitProbe() {
    ASSERT_TRUE(state_->controllers().Create(NewController("probe")).ok());
    Await("it goes on", [&] { return IsProbed(); });
  }
  bool IsProbed() {
    return state_->controllers().Get(GetController("probe"))->status().state() == v1::CONTROLLER_STATE_IDLE;
  }
  bool IsConnected(const std::string& engine) {
    const auto found = state_->engines().Get(GetEngine(engine));
    return found.ok() && found->status().connected();
  }

  Result<v1::UpgradeEngineResponse> Upgrade(const std::string& from = "engine-0",
                                            const std::string& to = "engine-1", bool dry_run = false) {
    v1::UpgradeEngineRequest request;
    request.set_name(EngineName(from));
    request.set_to(EngineName(to));
    request.set_dry_run(dry_run);
    return state_->upgrades().Begin(request);
  }
  v1::UpgradeStatus UpgradeOf(const std::string& engine = "engine-0") {
    return state_->engines().Get(GetEngine(engine))->status().upgrade();
  }
  v1::UpgradeStatus AwaitUpgrade(const std::string& engine = "engine-0") {
    Await("the upgrade has ended", [&] { return IsUpgradeOver(engine); });
    return UpgradeOf(engine);
  }
  bool IsUpgradeOver(const std::string& engine = "engine-0") {
    return UpgradeOf(engine).state() != v1::UPGRADE_STATE_RUNNING;
  }
  v1::UpgradeStatus AwaitUpgradePassingLimits() {
    AwaitPassingLimits("the upgrade has ended", [&] { return IsUpgradeOver(); });
    return UpgradeOf();
  }
  void AwaitStandby(FakeEngine& engine, const std::string& controller, uint32_t disks = 1) {
    Await(controller + " stands by", [&] {
      if (engine.StateOf(ControllerName(controller)) != kStandby) return false;
      for (uint32_t target = 0; target < disks; ++target) {
        if (engine.StateOf(ControllerName(controller), target) != engine::v1::ATTACHMENT_STATE_STANDBY)
          return false;
      }
      return true;
    });
  }

  FakeHost host_;
  FakeEngine& blue_ = engine_;
  FakeEngine green_{socket_, "engine-1"};
};

// Both are there; and in the end the host has seen no two that served one controller.
class TwoEngines : public MovesRig {
 protected:
  void SetUp() override {
    ASSERT_TRUE(blue_.Connect());
    ASSERT_TRUE(green_.Connect());
    AwaitEngines();
  }
  void TearDown() override { EXPECT_EQ(host_.Violations(), std::vector<std::string>{}); }
};

}  // namespace cleat::control
