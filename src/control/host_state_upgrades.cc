// SPDX-License-Identifier: Apache-2.0
// Upgrades of engines, engines that stand by for another one, and controllers that go from one engine to another.
#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/host_state.h"
#include "control/names.h"
#include "control/refusals.h"

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

}  // namespace

void HostState::FillUpgrades(std::vector<UpgradeRow> rows) {
  for (UpgradeRow& row : rows) {
    EngineEntry& entry = engines_[row.engine];
    entry.revision = revision_ + 1;
    if (row.status.state() == v1::UPGRADE_STATE_RUNNING) {
      entry.interrupted = true;
      row.status.set_state(v1::UPGRADE_STATE_INTERRUPTED);
      row.status.set_message("cleatd was restarted: repeat the upgrade for what has stayed");
      row.status.clear_current();
    }
    entry.upgrade = std::move(row.status);
  }
}

// ---- Standing by ----

// An engine that has controllers of its own stands by for nobody: it has taken those of the other one, or was given some.
bool HostState::StandsBy(const std::string& engine) const {
  const auto found = engines_.find(engine);
  if (found == engines_.end()) return false;
  const v1::EngineStatus& status = found->second.status;
  return status.connected() && status.protocol() >= kProtocolMoves && status.controllers() == 0 &&
         !status.stands_by_for().empty();
}

std::string HostState::StandbyOf(const std::string& principal) const {
  const std::string name = EngineName(principal);
  for (const auto& [id, entry] : engines_) {
    if (entry.status.stands_by_for() == name && StandsBy(id)) return id;
  }
  return {};
}

std::set<std::string> HostState::PreparedOn(const ControllerEntry& entry) const {
  std::set<std::string> engines;
  if (entry.row.engine.empty()) return engines;
  if (std::string standby = StandbyOf(entry.row.engine); !standby.empty()) {
    if (ExcludedOn(standby, entry).empty()) engines.insert(std::move(standby));
  }
  if (!entry.moving_to.empty()) engines.insert(entry.moving_to);
  engines.erase(entry.row.engine);
  return engines;
}

bool HostState::IsFor(const ControllerEntry& entry, const std::string& engine) const {
  return entry.row.engine == engine || PreparedOn(entry).contains(engine);
}

std::string HostState::StandbyFor(const std::string& engine) {
  const MutexLock lock(mutex_);
  return StandbyOf(engine);
}

std::vector<std::string> HostState::ControllersFor(const std::string& engine) {
  const MutexLock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : controllers_) {
    if (IsFor(entry, engine)) ids.push_back(id);
  }
  return ids;
}

// ---- Upgrades, from the API's side ----

Result<const HostState::EngineEntry*> HostState::FindForUpgrade(const std::string& id) const {
  const auto found = engines_.find(id);
  if (found == engines_.end()) return NotThere(EngineName(id));
  const v1::EngineStatus& status = found->second.status;
  if (!status.connected()) {
    return RefuseFor(EngineName(id), v1::REASON_ENGINE_NOT_CONNECTED,
                     fmt::format("{} is not connected: {}", EngineName(id),
                                 status.message().empty() ? "start it" : status.message()));
  }
  CLEAT_TRY(CheckProtocol(id, status));
  return &found->second;
}

Status HostState::CheckUpgrade(const std::string& from, const std::string& to) const {
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
  if (StandsBy(to) && status.stands_by_for() != EngineName(from)) {
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
  CLEAT_TRY(CheckPathsOf(from, to));
  if (!upgrade_) return Ok{};
  return RefuseFor(
      EngineName(from), v1::REASON_UPGRADE_RUNNING,
      fmt::format("the upgrade of {} to {} is under way: wait for its end (cleatctl engine get {}), or "
                  "cancel it (cleatctl engine cancel-upgrade {})",
                  EngineName(upgrade_->from), EngineName(upgrade_->to), upgrade_->from, upgrade_->from),
      {{"conflict", EngineName(upgrade_->from)}});
}

std::string HostState::ObstacleOf(const ControllerEntry& entry) const {
  for (const auto& [id, attachment] : entry.attachments) {
    if (!attachment.fenced) continue;
    return fmt::format("{} is shut out of its storage: detach it first (cleatctl detach {} {})",
                       attachment.row.spec.disk(), entry.row.id, id);
  }
  return {};
}

Result<v1::UpgradeEngineResponse> HostState::UpgradeEngine(const v1::UpgradeEngineRequest& request) {
  CLEAT_ASSIGN(auto from, ParseEngineName(request.name()));
  CLEAT_ASSIGN(auto to, ParseEngineName(request.to()));
  CLEAT_ASSIGN(const auto drain_ms, DrainMs(request.drain_timeout()));

  const MutexLock lock(mutex_);
  CLEAT_TRY(CheckUpgrade(from, to));
  v1::UpgradeEngineResponse response;
  UpgradeIntent intent{
      .from = from, .to = to, .drain_ms = drain_ms, .cancelled = false, .controllers = {}, .status = {}};
  for (const auto& [id, entry] : controllers_) {
    if (entry.row.engine != from || entry.row.deleting) continue;
    response.add_controllers(ControllerName(id));
    intent.controllers.push_back(id);
    const std::string obstacle = ObstacleOf(entry);
    if (obstacle.empty()) continue;
    v1::UpgradeFailure& found = *response.add_obstacles();
    found.set_controller(ControllerName(id));
    found.set_reason(obstacle);
  }
  if (request.dry_run()) return response;

  v1::UpgradeStatus& status = intent.status;
  status.set_to(EngineName(to));
  status.set_state(v1::UPGRADE_STATE_RUNNING);
  status.set_total(static_cast<uint32_t>(intent.controllers.size()));
  *status.mutable_started_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  CLEAT_TRY(store_.Put(UpgradeRow{.engine = from, .status = status}));
  EngineEntry& entry = engines_[from];
  entry.upgrade = status;
  entry.interrupted = false;
  upgrade_ = std::move(intent);
  changed_.upgrade = true;
  Publish(from, entry);
  wake_();
  spdlog::info("{}: upgrade began: {} controllers go to {}", EngineName(from), response.controllers_size(),
               EngineName(to));
  return response;
}

Result<v1::Engine> HostState::CancelUpgrade(const v1::CancelUpgradeRequest& request) {
  CLEAT_ASSIGN(const auto id, ParseEngineName(request.name()));
  const MutexLock lock(mutex_);
  const auto found = engines_.find(id);
  if (found == engines_.end()) return NotThere(request.name());
  if (upgrade_ && upgrade_->from == id) {
    upgrade_->cancelled = true;
    changed_.upgrade = true;
    wake_();
    spdlog::info("{}: upgrade cancelled: what has not been moved to {} stays", EngineName(id),
                 EngineName(upgrade_->to));
  }
  return Show(id, found->second);
}

// ---- The reconciler's side ----

std::optional<UpgradeIntent> HostState::RunningUpgrade() {
  const MutexLock lock(mutex_);
  return upgrade_;
}

void HostState::PrepareMove(const std::string& controller, const std::string& engine) {
  const MutexLock lock(mutex_);
  if (ControllerEntry* entry = FindController(controller)) entry->moving_to = engine;
}

Status HostState::MoveControllers(const std::vector<Placement>& moves) {
  const MutexLock lock(mutex_);
  std::vector<ControllerRow> rows;
  for (const Placement& move : moves) {
    const ControllerEntry* entry = FindController(move.controller);
    if (entry == nullptr || entry->row.engine == move.engine) continue;
    rows.push_back(entry->row);
    rows.back().engine = move.engine;
  }
  if (rows.empty()) return Ok{};
  std::vector<const ControllerRow*> pointers;
  for (const ControllerRow& row : rows) pointers.push_back(&row);
  CLEAT_TRY(store_.Put(pointers));
  for (ControllerRow& row : rows) {
    ControllerEntry& entry = *FindController(row.id);
    const std::string old = std::exchange(entry.row, std::move(row)).engine;
    if (!old.empty()) CountController(old, -1);
    CountController(entry.row.engine, 1);
    Publish(entry);
    ControllerChanged(entry.row.id);
  }
  return Ok{};
}

void HostState::ReportUpgrade(const std::string& engine, const v1::UpgradeStatus& status, Keep keep) {
  const MutexLock lock(mutex_);
  EngineEntry& entry = engines_[engine];
  entry.upgrade = status;
  entry.interrupted = false;
  if (upgrade_ && upgrade_->from == engine && status.state() != v1::UPGRADE_STATE_RUNNING) upgrade_.reset();
  if (keep == Keep::kStored) {
    if (auto stored = store_.Put(UpgradeRow{.engine = engine, .status = status}); !stored.ok())
      spdlog::error("{}: end of its upgrade not stored: {}; see to the store's file system",
                    EngineName(engine), stored.error().message);
  }
  Publish(engine, entry);
  if (status.state() != v1::UPGRADE_STATE_RUNNING) PlaceWaiting();  // its engine takes new ones again
}

std::string HostState::InterruptedTo(const std::string& engine) {
  const MutexLock lock(mutex_);
  const auto found = engines_.find(engine);
  if (found == engines_.end() || !found->second.interrupted) return {};
  const auto to = ParseEngineName(found->second.upgrade->to());
  return to.ok() ? *to : std::string();
}

std::vector<std::string> HostState::InterruptedFor(const std::string& to) {
  const MutexLock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, entry] : controllers_) {
    const auto engine = engines_.find(entry.row.engine);
    if (engine == engines_.end() || !engine->second.interrupted) continue;
    if (engine->second.upgrade->to() == EngineName(to)) ids.push_back(id);
  }
  return ids;
}

void HostState::EndReunion(const std::string& engine) {
  const MutexLock lock(mutex_);
  for (auto& [id, entry] : engines_) {
    if (!entry.interrupted || (!engine.empty() && entry.upgrade->to() != EngineName(engine))) continue;
    entry.interrupted = false;
    if (auto stored = store_.Put(UpgradeRow{.engine = id, .status = *entry.upgrade}); !stored.ok()) {
      spdlog::error("{}: end of its upgrade not stored: {}; see to the store's file system", EngineName(id),
                    stored.error().message);
    }
  }
}

bool HostState::IsDiskFor(const std::string& disk_id, const std::string& engine) {
  const MutexLock lock(mutex_);
  const DiskEntry* disk = FindDisk(disk_id);
  return disk != nullptr && std::any_of(disk->attachments.begin(), disk->attachments.end(),
                                        [&](const auto& attachment) CLEAT_REQUIRES(mutex_) {
                                          const ControllerEntry* controller = FindController(
                                              ParseAttachmentName(attachment.first)->controller);
                                          return controller != nullptr && IsFor(*controller, engine);
                                        });
}

}  // namespace cleat::control
