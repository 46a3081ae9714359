// SPDX-License-Identifier: Apache-2.0
#include "control/state/moves/upgrades.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/model/errors.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

constexpr int64_t kDrainDefaultMs = 10'000;
constexpr int64_t kDrainMaxMs = 3'600'000;

Result<uint32_t> DrainMs(const google::protobuf::Duration& timeout) {
  if (timeout.seconds() == 0 && timeout.nanos() == 0) return uint32_t{kDrainDefaultMs};
  constexpr int64_t kNsInMs = 1'000'000;
  const int64_t whole_s = std::clamp<int64_t>(timeout.seconds(), -1, kDrainMaxMs);
  const int64_t wanted_ms = whole_s * 1000 + timeout.nanos() / kNsInMs;
  if (wanted_ms > 0 && wanted_ms <= kDrainMaxMs) return static_cast<uint32_t>(wanted_ms);
  return Refuse(v1::REASON_INVALID_FIELD,
                fmt::format("drain_timeout must be from 1 ms to {} s", kDrainMaxMs / 1000),
                {{"field", "drain_timeout"}});
}

// For an upgrade both engines have to speak of hand-overs.
Status CheckProtocol(const std::string& id, const v1::EngineStatus& status) {
  if (status.protocol() >= kProtocolMoves) return Ok{};
  return RefuseFor(EngineName(id), v1::REASON_ENGINE_TOO_OLD,
                   fmt::format("{} (version {}, protocol {}) can neither give controllers away nor take "
                               "them, which takes protocol {}: "
                               "stop it and start the new engine under the same name (--name {}). Guests "
                               "wait meanwhile, and lose nothing",
                               EngineName(id), status.version(), status.protocol(), kProtocolMoves, id));
}

std::string UpgradeName(const std::string& engine) {
  return "upgrade of " + EngineName(engine);
}

}  // namespace

void Upgrades::Fill(std::vector<UpgradeRow> rows) {
  for (UpgradeRow& row : rows) {
    EngineEntry& entry = core_.tables.EngineOf(row.engine);
    entry.revision = core_.publisher.newest() + 1;
    if (row.status.state() == v1::UPGRADE_STATE_RUNNING) {
      entry.interrupted = true;
      row.status.set_state(v1::UPGRADE_STATE_INTERRUPTED);
      row.status.set_message("cleatd was restarted: repeat the upgrade for what has stayed");
      row.status.clear_current();
    }
    entry.upgrade = std::move(row.status);
  }
}

// ---- The API

Result<const EngineEntry*> Upgrades::FindForUpgrade(const std::string& id) const {
  const EngineEntry* const found = core_.tables.engines.Find(id);
  if (found == nullptr) return NotFound(EngineName(id));
  const v1::EngineStatus& status = found->status;
  if (!status.connected()) {
    return RefuseFor(EngineName(id), v1::REASON_ENGINE_NOT_CONNECTED,
                     fmt::format("{} is not connected: {}", EngineName(id),
                                 status.message().empty() ? "start it" : status.message()));
  }
  CLEAT_TRY(CheckProtocol(id, status));
  return &*found;
}

Status Upgrades::Check(const std::string& from, const std::string& to) const {
  if (from == to) {
    return RefuseFor(
        EngineName(to), v1::REASON_INVALID_FIELD,
        fmt::format("{} can't be moved to itself: start a second engine under another name, and name that",
                    EngineName(to)),
        {{"field", "to"}});
  }
  CLEAT_ASSIGN(const auto source, FindForUpgrade(from));
  CLEAT_ASSIGN(const auto target, FindForUpgrade(to));
  const v1::EngineStatus& status = target->status;
  if (core_.roles.OnlyStandsBy(to) && status.stands_by_for() != EngineName(from)) {
    return RefuseFor(
        EngineName(to), v1::REASON_ENGINE_STANDS_BY,
        fmt::format("{} stands by for {}, and can't get the controllers of {}: choose another engine",
                    EngineName(to), status.stands_by_for(), EngineName(from)),
        {{"conflict", status.stands_by_for()}});
  }
  const uint32_t moving = source->status.controllers();
  if (status.controllers_max() != 0 && status.controllers() + moving > status.controllers_max()) {
    return RefuseFor(EngineName(to), v1::REASON_ENGINE_FULL,
                     fmt::format("{} takes {} controllers at most, has {}, and would get {}", EngineName(to),
                                 status.controllers_max(), status.controllers(), moving),
                     {{"limit", std::to_string(status.controllers_max())}});
  }
  CLEAT_TRY(CheckPaths(from, to));
  if (!core_.tables.upgrade) return CheckTakeOver(*source);
  return RefuseFor(
      EngineName(from), v1::REASON_UPGRADE_RUNNING,
      fmt::format("the upgrade of {} to {} is under way: wait for its end (cleatctl engine get {}), or "
                  "cancel it (cleatctl engine cancel-upgrade {})",
                  EngineName(core_.tables.upgrade->from), EngineName(core_.tables.upgrade->to),
                  core_.tables.upgrade->from, core_.tables.upgrade->from),
      {{"conflict", EngineName(core_.tables.upgrade->from)}});
}

Status Upgrades::CheckTakeOver(const EngineEntry& engine) {
  if (!engine.upgrade || engine.upgrade->state() != v1::UPGRADE_STATE_RUNNING) return Ok{};
  const std::string name = EngineName(engine.id);
  return RefuseFor(name, v1::REASON_UPGRADE_RUNNING,
                   fmt::format("{} had died, and {} is taking its controllers over: wait for the end of that "
                               "(cleatctl engine get {}), then repeat",
                               name, engine.upgrade->to(), engine.id),
                   {{"conflict", name}});
}

Status Upgrades::CheckPaths(const std::string& from, const std::string& to) const {
  std::vector<std::string> excluded;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (entry.row.engine != from || entry.row.deleting) continue;
    for (std::string& path : core_.roles.ExcludedOn(to, entry)) excluded.push_back(std::move(path));
  }
  if (excluded.empty()) return Ok{};
  return RefuseFor(EngineName(to), v1::REASON_PATH_NOT_ALLOWED,
                   fmt::format("{} can't get the controllers of {}: it does not take for listed: {}. Correct "
                               "{} and reload cleatd, or start {} with cleatd's --paths and --state-dir",
                               EngineName(to), EngineName(from), EngineRoles::Shown(excluded),
                               PathLists::kDefaultPath, to));
}

std::string Upgrades::ObstacleOf(const ControllerEntry& entry) const {
  for (const auto& [id, attachment] : entry.attachments) {
    if (!attachment.fenced) continue;
    return fmt::format("{} is shut out of its storage: detach it first (cleatctl detach {} {})",
                       attachment.row.spec.disk(), entry.row.id, id);
  }
  return {};
}

v1::UpgradeEngineResponse Upgrades::Plan(const std::string& from) const {
  v1::UpgradeEngineResponse response;
  for (const auto& [id, entry] : core_.tables.controllers) {
    if (entry.row.engine != from || entry.row.deleting) continue;
    response.add_controllers(ControllerName(id));
    const std::string obstacle = ObstacleOf(entry);
    if (obstacle.empty()) continue;
    v1::UpgradeFailure& found = *response.add_obstacles();
    found.set_controller(ControllerName(id));
    found.set_reason(obstacle);
  }
  return response;
}

Result<v1::UpgradeEngineResponse> Upgrades::Begin(const v1::UpgradeEngineRequest& request) {
  CLEAT_ASSIGN(auto from, ParseEngineName(request.name()));
  CLEAT_ASSIGN(auto to, ParseEngineName(request.to()));
  CLEAT_ASSIGN(const auto drain_ms, DrainMs(request.drain_timeout()));

  const StateLock lock(core_.mutex);
  // No controller is placed on the engine while that is decided.
  const WriteNames names{.changes = {UpgradeName(from), kPlacing}};
  core_.writes.Await(names);
  CLEAT_TRY(Check(from, to));
  v1::UpgradeEngineResponse response = Plan(from);
  if (request.dry_run()) return response;
  v1::UpgradeStatus status;
  status.set_to(EngineName(to));
  status.set_state(v1::UPGRADE_STATE_RUNNING);
  status.set_total(static_cast<uint32_t>(response.controllers_size()));
  *status.mutable_started_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  CLEAT_TRY(core_.writes.Write(names, {UpgradeRow{.engine = from, .status = status}}));

  // Controllers were deleted meanwhile, or engines' reports have changed them. Should the other engine have gone, the moves find that out.
  response = Plan(from);
  status.set_total(static_cast<uint32_t>(response.controllers_size()));
  UpgradeIntent intent{.from = from,
                       .to = to,
                       .drain_ms = drain_ms,
                       .cancelled = false,
                       .controllers = {},
                       .status = status,
                       .asked_by = AskedBy::Current()};
  for (const std::string& name : response.controllers())
    intent.controllers.push_back(*ParseControllerName(name));
  core_.tables.upgrade = std::move(intent);
  SetStatus(from, status);
  core_.publisher.UpgradeChanged();
  spdlog::info("{}: upgrade began: {} controllers go to {}", EngineName(from), response.controllers_size(),
               EngineName(to));
  return response;
}

void Upgrades::SetStatus(const std::string& engine, const v1::UpgradeStatus& status) {
  EngineEntry& entry = core_.tables.EngineOf(engine);
  entry.upgrade = status;
  entry.interrupted = false;
  core_.publisher.Publish(entry);
}

Result<v1::Engine> Upgrades::Cancel(const v1::CancelUpgradeRequest& request) {
  CLEAT_ASSIGN(const auto id, ParseEngineName(request.name()));
  const StateLock lock(core_.mutex);
  const EngineEntry* const found = core_.tables.engines.Find(id);
  if (found == nullptr) return NotFound(request.name());
  std::optional<UpgradeIntent>& upgrade = core_.tables.upgrade;
  if (upgrade && upgrade->from == id) {
    upgrade->cancelled = true;
    core_.publisher.UpgradeChanged();
    spdlog::info("{}: upgrade cancelled: what has not been moved to {} stays", EngineName(id),
                 EngineName(upgrade->to));
  }
  return core_.view.Show(*found);
}

// ---- The reconciler's side

std::optional<UpgradeIntent> Upgrades::Running() {
  const StateLock lock(core_.mutex);
  return core_.tables.upgrade;
}

void Upgrades::Report(const std::string& engine, const v1::UpgradeStatus& status, Keep keep) {
  const StateLock lock(core_.mutex);
  if (keep == Keep::kStored) {
    const WriteNames names{.changes = {UpgradeName(engine)}};
    core_.writes.Await(names);
    WriteRows(names, {UpgradeRow{.engine = engine, .status = status}});
  }
  std::optional<UpgradeIntent>& upgrade = core_.tables.upgrade;
  const bool ended = status.state() != v1::UPGRADE_STATE_RUNNING;
  if (upgrade && upgrade->from == engine && ended) upgrade.reset();
  SetStatus(engine, status);
  if (ended) controllers_.PlaceWaiting();  // its engine takes new ones again
}

// As far as the store can be written: what can't be is logged.
void Upgrades::WriteRows(const WriteNames& names, const std::vector<UpgradeRow>& rows) {
  const Status stored = core_.writes.Write(names, {rows.begin(), rows.end()});
  if (stored.ok()) return;
  for (const UpgradeRow& row : rows)
    spdlog::error("{}: end of its upgrade not stored: {}; see to the store's file system",
                  EngineName(row.engine), stored.error().message);
}

std::string Upgrades::InterruptedTo(const std::string& engine) {
  const StateLock lock(core_.mutex);
  const EngineEntry* const found = core_.tables.engines.Find(engine);
  if (found == nullptr || !found->interrupted) return {};
  const auto to = ParseEngineName(found->upgrade->to());
  return to.ok() ? *to : std::string();
}

std::vector<std::string> Upgrades::InterruptedFor(const std::string& to) {
  const StateLock lock(core_.mutex);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : core_.tables.controllers) {
    const EngineEntry* const engine = core_.tables.engines.Find(entry.row.engine);
    if (engine == nullptr || !engine->interrupted) continue;
    if (engine->upgrade->to() == EngineName(to)) ids.push_back(id);
  }
  return ids;
}

void Upgrades::EndRecovery(const std::string& engine) {
  const StateLock lock(core_.mutex);
  WriteNames names;
  for (const auto& [id, entry] : core_.tables.engines) {
    if (entry.interrupted) names.changes.insert(UpgradeName(id));
  }
  if (names.changes.empty()) return;
  core_.writes.Await(names);
  // Another upgrade may have begun meanwhile: then it is not interrupted any more.
  std::vector<UpgradeRow> rows;
  for (auto& [id, entry] : core_.tables.engines) {
    if (!entry.interrupted || !names.changes.contains(UpgradeName(id))) continue;
    if (!engine.empty() && entry.upgrade->to() != EngineName(engine)) continue;
    entry.interrupted = false;
    rows.push_back({.engine = id, .status = *entry.upgrade});
  }
  if (!rows.empty()) WriteRows(names, rows);
}

}  // namespace cleat::control
