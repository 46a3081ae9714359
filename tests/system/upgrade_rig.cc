// SPDX-License-Identifier: Apache-2.0
#include "upgrade_rig.h"

#include <poll.h>

#include "perf/vhost_user/deadline.h"

namespace cleat::system_test {
namespace {

constexpr int kUpgradePollMs = 5;
// Within so long of its begin somebody is killed: about what an upgrade of some controllers takes.
constexpr uint64_t kDeathMsMax = 60;
constexpr int kRepeatMs = 200;

}  // namespace

v1::EngineStatus UpgradeRig::StatusOf(const std::string& id) {
  grpc::ClientContext context;
  v1::GetEngineRequest request;
  request.set_name("engines/" + id);
  v1::Engine engine;
  const grpc::Status status = host_.api().stub().GetEngine(&context, request, &engine);
  return status.ok() ? engine.status() : v1::EngineStatus();
}

std::string UpgradeRig::WaitStandingBy(const std::string& id, uint64_t controllers) {
  const perf::Deadline deadline(kUpgradeTimeoutNs);
  for (;;) {
    const v1::EngineStatus status = StatusOf(id);
    if (status.standing_by() == controllers) return "";
    if (deadline.passed()) return id + " does not stand by: " + status.ShortDebugString();
    poll(nullptr, 0, kUpgradePollMs);
  }
}

std::string UpgradeRig::Begin(int64_t drain_s) {
  grpc::ClientContext context;
  v1::UpgradeEngineRequest request;
  request.set_name("engines/" + from_);
  request.set_to("engines/" + to_);
  request.mutable_drain_timeout()->set_seconds(drain_s);
  v1::UpgradeEngineResponse response;
  const grpc::Status status = host_.api().stub().UpgradeEngine(&context, request, &response);
  return status.ok() ? "" : status.error_message();
}

v1::UpgradeStatus UpgradeRig::WaitEnd() {
  const perf::Deadline deadline(kUpgradeTimeoutNs);
  for (;;) {
    v1::UpgradeStatus upgrade = StatusOf(from_).upgrade();
    const v1::UpgradeState state = upgrade.state();
    const bool over = state != v1::UPGRADE_STATE_RUNNING && state != v1::UPGRADE_STATE_UNSPECIFIED;
    if (over || deadline.passed()) return upgrade;
    poll(nullptr, 0, kUpgradePollMs);
  }
}

std::string UpgradeRig::WaitDone() {
  const v1::UpgradeStatus upgrade = WaitEnd();
  return upgrade.state() == v1::UPGRADE_STATE_DONE ? "" : upgrade.ShortDebugString();
}

std::string UpgradeRig::Upgrade() {
  std::string failure = Begin();
  if (failure.empty()) failure = WaitDone();
  if (failure.empty()) ChangePlaces();
  return failure;
}

void UpgradeRig::KillSomebody() {
  ++deaths_;
  const uint64_t who = random_.Below(3);
  if (who == 2) {
    host_.KillCleatd();
    host_.StartCleatd();
    return;
  }
  const std::string& engine = who == 0 ? from_ : to_;
  host_.engine(engine).Kill();
  host_.StartEngine(engine);
}

std::string UpgradeRig::UpgradeWithDeath() {
  if (std::string failure = Begin(); !failure.empty()) return failure;
  poll(nullptr, 0, static_cast<int>(random_.Below(kDeathMsMax)));
  KillSomebody();
  if (!host_.WaitEngine(from_) || !host_.WaitEngine(to_)) return "an engine does not come back";
  std::string failure = WaitDone();
  const perf::Deadline deadline(kUpgradeTimeoutNs);
  while (!failure.empty() && !deadline.passed()) {
    poll(nullptr, 0, kRepeatMs);
    failure = Begin();
    if (failure.empty()) failure = WaitDone();
  }
  if (failure.empty()) ChangePlaces();
  return failure;
}

}  // namespace cleat::system_test
