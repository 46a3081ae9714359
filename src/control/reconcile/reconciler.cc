// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "base/log.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/reconcile/engines/inventory.h"

namespace cleat::control {
namespace {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // for clang 16

}  // namespace

Reconciler::Reconciler(HostState& state, MemfdKeeper& memory, EngineLink& link, const Clock& clock,
                       const ReconcilerOptions& options, Counters* counters)
    : state_(state),
      link_(link),
      options_(options),
      requests_(link, clock, engines_, retries_,
                {.min_ns = options.retry_min_ns, .max_ns = options.retry_max_ns}),
      context_{.state = state,
               .clock = clock,
               .options = options_,
               .engines = engines_,
               .requests = requests_,
               .retries = retries_,
               .read_until_ns = clock.NowNs()},
      reporter_(context_),
      heartbeats_(context_, link, reporter_, *this),
      path_lists_(context_),
      discoveries_(context_),
      unclaimed_(context_, reporter_, *this),
      recovery_(context_, reporter_),
      controller_requests_(context_, *this),
      attachments_(context_, memory, controller_requests_, unclaimed_, *this),
      moves_(context_, controller_requests_, reporter_, *this, *this, counters),
      upgrades_(context_, moves_),
      take_overs_(context_, reporter_, moves_, upgrades_),
      controllers_(context_,
                   {.memory = memory,
                    .requests = controller_requests_,
                    .attachments = attachments_,
                    .moves = moves_,
                    .recovery = recovery_,
                    .unclaimed = unclaimed_},
                   *this),
      groups_(context_, *this),
      clusters_(context_, controller_requests_, *this),
      limits_(context_, reporter_),
      sizes_(context_, moves_, reporter_, *this),
      memories_(context_, memory, upgrades_, *this) {}

// ---- Meeting and parting ----

void Reconciler::OnEngine(const EngineInfo& info, engine::v1::Inventory inventory) {
  EngineView& engine = engines_.Add(info);
  engine.foreign = IsForeign(inventory, {.newest_revision = state_.NewestRevision(),
                                         .number = state_.store_number(),
                                         .restored = context_.IsRestored()});
  unclaimed_.ReportHeld(info.id, inventory);
  spdlog::info("{}: connected to cleatd: version {}, {} controllers, {} attachments, {} memory disks",
               EngineName(info.id), info.version, inventory.controllers_size(), inventory.attachments_size(),
               inventory.memories_size());
  if (engine.foreign) return OnForeignEngine(info);
  state_.engines().ReportPaths(info.id, info.path_lists);  // before anything can be moved there
  reporter_.ReportEngine(info, true, "");
  // The engine may have read its list of paths before that was changed.
  if (!state_.engines().PathDifferenceOf(info.id).empty()) path_lists_.AskRead(engine);
  FillView(inventory, engine);
  reporter_.ReportInventory(engine, inventory);
  // Before anything is asked of the engine: unclaimed controllers keep what they use.
  for (const auto& [controller, view] : engine.controllers)
    unclaimed_.LeaveAlone(engine, controller, state_.controllers().IntentOf(controller));
  state_.controllers().Place();
  ReconcileDisksOf(engine, inventory);
  groups_.ReconcileAllOn(engine);
  clusters_.ReconcileAllOn(engine);
  ReconcileControllersOf(engine);
  // The engine may stand by for one that died while it was away.
  BeginTakeOvers();
}

void Reconciler::BeginTakeOvers() {
  for (const std::string& dead : std::set<std::string>(engines_.dead())) take_overs_.Begin(dead);
}

void Reconciler::OnForeignEngine(const EngineInfo& info) {
  const std::string message =
      "it serves disks of another cleatd's store, and is left alone: start cleatd with the --state-dir "
      "that it had "
      "before, or restart the engine when its disks are not needed any more";
  spdlog::error("{}: not reconciled: {}", EngineName(info.id), message);
  // The status says not `connected`, so that nothing new is placed there.
  reporter_.ReportEngine(info, false, message);
}

void Reconciler::ReconcileDisksOf(const EngineView& engine, const engine::v1::Inventory& inventory) {
  std::set<std::string> disks;
  for (const auto& [disk, size_bytes] : engine.memories) disks.insert(disk);
  for (std::string& disk : state_.disks().InMemory()) disks.insert(std::move(disk));
  for (const auto& status : inventory.attachments()) {
    if (auto disk = ParseDiskName(status.attachment().disk().name()); disk.ok())
      disks.insert(std::move(*disk));
  }
  for (const std::string& disk : disks) Disk(disk);
}

void Reconciler::ReconcileControllersOf(EngineView& engine) {
  const std::string& name = engine.info.id;
  // Others may have waited for what it had before its connection was lost, and has no more.
  std::set<std::string> controllers = engines_.TakeLeftBehind(name, engine.info.incarnation);
  for (const auto& [controller, view] : engine.controllers) controllers.insert(controller);
  for (std::string& controller : state_.controllers().For(name)) controllers.insert(std::move(controller));
  for (std::string& controller : state_.upgrades().InterruptedFor(name))
    controllers.insert(std::move(controller));
  // First what this engine serves becomes its own; only then may others be asked for the rest.
  for (const std::string& controller : controllers) ControllerOn(engine, controller);
  recovery_.OnEngine(name);
  for (const std::string& controller : controllers) Controller(controller);
}

// The end of a connection proves nothing: the engine may serve on. Controllers that wait until it lets them go are reconciled when it has
// died or is back (ConnectedEngines::TakeLeftBehind).
void Reconciler::OnGone(PeerId peer, const std::string& why) {
  const std::optional<EngineView> gone = engines_.Remove(peer);
  if (!gone) return;
  const EngineInfo& info = gone->info;
  reporter_.ReportEngine(
      info, false, fmt::format("lost: {}. It serves on if it is alive, and connects again by itself", why));
  for (const std::string& controller : state_.controllers().On(info.id))
    reporter_.ReportUnknown(info.id, controller);
  ReconcileAllMemory();
  // Controllers that stood by there may stand by elsewhere.
  if (!info.stands_by_for.empty()) ReconcileControllersOn(info.stands_by_for);
  moves_.ReconcileAll();
  heartbeats_.OnGone(info.id);
  unclaimed_.OnEngineGone(*gone);
}

void Reconciler::OnDead(const std::string& engine, uint64_t incarnation) {
  if (engines_.FindByName(engine) != nullptr) {
    controllers_.ReconcileStandbys();  // its successor is there, and gets everything anew
  } else if (engines_.NoteDeath(engine, incarnation)) {
    OnLastDead(engine);
  }  // else its successor was there, and may serve
  for (const std::string& controller : engines_.TakeLeftBehind(engine, incarnation)) Controller(controller);
}

void Reconciler::OnForgotten(const std::string& engine, uint64_t incarnation) {
  if (engines_.FindByName(engine) != nullptr) return;  // it has come after all
  link_.ForgetProcesses(engine);
  for (const std::string& controller : engines_.Forget(engine, incarnation)) Controller(controller);
}

void Reconciler::OnLastDead(const std::string& engine) {
  // First of all: guests wait.
  take_overs_.Begin(engine);
  moves_.ReconcileAll();
  reporter_.ReportEngine(engines_.LastInfo(engine), false, "its process has ended: start it again");
  for (const std::string& controller : state_.controllers().On(engine)) {
    if (moves_.Has(controller)) continue;
    reporter_.ReportUnknown(engine, controller);
    controllers_.EndDeletionsOfDead(controller);
  }
  ReconcileAllMemory();
  controllers_.ReconcileStandbys();
}

void Reconciler::ReconcileAllMemory() {
  for (const std::string& disk : state_.disks().InMemory()) DiskMemory(disk);
}

void Reconciler::ReconcileControllersOn(const std::string& engine) {
  for (const std::string& controller : state_.controllers().On(engine)) Controller(controller);
}

// ---- Events ----

void Reconciler::OnStatus(PeerId peer, const engine::v1::StatusEvent& event) {
  EngineView* engine = engines_.Find(peer);
  if (engine == nullptr || engine->foreign) return;
  switch (event.what_case()) {
    case engine::v1::StatusEvent::kController:
      return controllers_.OnStatus(*engine, event.controller());
    case engine::v1::StatusEvent::kAttachment:
      return controllers_.OnStatus(*engine, event.attachment());
    case engine::v1::StatusEvent::kAttachmentGone:
      return controllers_.OnGone(*engine, event.attachment_gone());
    case engine::v1::StatusEvent::kControllerGone:
      return controllers_.OnGone(*engine, event.controller_gone());
    case engine::v1::StatusEvent::kPathLists:
      return OnPathLists(*engine, event.path_lists());
    case engine::v1::StatusEvent::kCeph:
      engine->ceph = FromEngine(event.ceph());
      return reporter_.ReportEngine(engine->info, true, "");
    case engine::v1::StatusEvent::WHAT_NOT_SET:
      return;
  }
}

// Controllers that stand by there may have to go, and others can stand by now.
void Reconciler::OnPathLists(EngineView& engine, const std::string& text) {
  state_.engines().ReportPaths(engine.info.id, text);
  const std::string principal = engine.info.stands_by_for;
  if (principal.empty()) return;
  ReconcileControllersOn(principal);
  if (engines_.IsDead(principal)) take_overs_.Begin(principal);
}

// ---- Time and intent ----

void Reconciler::OnWake() {
  const ChangedIntent changed = state_.TakeChanged();
  for (const std::string& disk : changed.disks) Disk(disk);
  for (const std::string& group : changed.groups) groups_.ReconcileEverywhere(group);
  for (const std::string& cluster : changed.clusters) clusters_.ReconcileEverywhere(cluster);
  for (const std::string& controller : changed.controllers) Controller(controller);
  for (const auto& [engine, incarnation] : changed.forgotten) OnForgotten(engine, incarnation);
  if (changed.paths) path_lists_.AskReadEverywhere();
  if (changed.discoveries) discoveries_.AskAll();
  if (changed.upgrade) {
    if (auto intent = state_.upgrades().Running()) upgrades_.OnIntent(std::move(*intent));
  }
}

uint64_t Reconciler::OnTimer(uint64_t read_until_ns) {
  context_.read_until_ns = read_until_ns;
  ReconcileDue();
  memories_.ReconcilePutOff();
  upgrades_.ReconcileUpgrade();
  take_overs_.ReconcileAll();
  const uint64_t recount_ns = reporter_.CountStandbys(read_until_ns);
  const uint64_t heartbeat_ns = heartbeats_.OnTimer(read_until_ns);
  recovery_.OnTimer();
  return std::min({recount_ns, heartbeat_ns, take_overs_.next_ns(), retries_.next_ns()});
}

void Reconciler::ReconcileDue() {
  while (const std::optional<ResourceId> due = retries_.TakeDue(context_.read_until_ns)) {
    std::visit(Overloaded{[this](const ControllerId& controller) { Controller(controller.id); },
                          [this](const DiskId& disk) { Disk(disk.id); },
                          [this](const GroupId& group) { groups_.ReconcileEverywhere(group.id); },
                          [this](const ClusterId& cluster) { clusters_.ReconcileEverywhere(cluster.id); },
                          [this](const GroupsOfEngine& groups) {
                            EngineView* const engine = engines_.FindByName(groups.engine);
                            if (engine != nullptr && !engine->foreign) groups_.ReconcileAllOn(*engine);
                          }},
               *due);
  }
}

// ---- Reconcile ----

void Reconciler::Controller(const std::string& controller) {
  for (auto& [peer, engine] : engines_.all()) controllers_.ReconcileOn(engine, controller);
  controllers_.EndDeletionsOfDead(controller);
  moves_.ReconcileMove(controller);
}

void Reconciler::ControllerOn(EngineView& engine, const std::string& controller) {
  controllers_.ReconcileOn(engine, controller);
  moves_.ReconcileMove(controller);
}

void Reconciler::Disk(const std::string& disk) {
  DiskMemory(disk);
  DiskSize(disk);
  DiskLimits(disk);
}

void Reconciler::DiskMemory(const std::string& disk) {
  memories_.ReconcileDisk(disk);
}

void Reconciler::DiskSize(const std::string& disk) {
  sizes_.ReconcileDisk(disk);
}

void Reconciler::DiskLimits(const std::string& disk) {
  limits_.ReconcileDisk(disk);
}

void Reconciler::GroupOn(EngineView& engine, const std::string& group) {
  groups_.ReconcileOn(engine, group);
}

void Reconciler::ClusterOn(EngineView& engine, const std::string& cluster) {
  clusters_.ReconcileOn(engine, cluster);
}

void Reconciler::ClustersOn(EngineView& engine) {
  clusters_.ReconcileAllOn(engine);
}

void Reconciler::AnsweringOf(EngineView& engine) {
  if (engine.not_answering.empty()) {
    state_.controllers().Place();
  } else {
    moves_.ReconcileAll();  // it takes nothing more of dead engines that it was not asked for
  }
  const std::string principal = engine.info.stands_by_for;
  if (!principal.empty()) ReconcileControllersOn(principal);  // another standby has them, or this one again
  BeginTakeOvers();
}

// ---- MoveEvents ----

void Reconciler::OnPrepared(const std::string& controller) {
  upgrades_.OnPrepared(controller);
}

void Reconciler::OnMoved(const std::string& controller, const Move& move, const Status& status) {
  upgrades_.OnMoved(controller, move, status);
}

void Reconciler::OnTakenOver(const std::string& controller, const Move& move, bool taken) {
  take_overs_.OnTakenOver(controller, move, taken);
}

}  // namespace cleat::control
