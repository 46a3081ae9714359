// SPDX-License-Identifier: Apache-2.0
// Meeting engines, and what makes the reconciler look: their events, time, a changed intent. The files beside this one have what is done then:
// controller_reconciler.cc, move_coordinator.cc and upgrade_coordinator.cc for controllers with their disks, memory_reconciler.cc for
// memory disks, {group,cluster}_reconciler.cc, {size,limit}_reconciler.cc for what changes of a disk.
#include "control/reconcile/reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/translate.h"

namespace cleat::control {

EngineView* Reconciler::Find(PeerId peer) {
  const auto it = engines_.find(peer);
  return it == engines_.end() ? nullptr : &it->second;
}

EngineView* Reconciler::FindByName(const std::string& engine) {
  for (auto& [peer, view] : engines_) {
    if (view.info.id == engine) return &view;
  }
  return nullptr;
}

bool Reconciler::IsElsewhere(const EngineView& engine, const std::string& controller,
                             std::optional<uint32_t> target) const {
  return std::any_of(engines_.begin(), engines_.end(), [&](const auto& other) {
    if (&other.second == &engine || other.second.foreign) return false;
    const auto found = other.second.controllers.find(controller);
    if (found == other.second.controllers.end()) return false;
    const ControllerView& view = found->second;
    if (!target) return view.busy || view.actual.has_value();
    return view.attachments.contains(*target) || view.targets_busy.contains(*target);
  });
}

// ---- Meeting and parting ----

void Reconciler::ReportEngine(const EngineInfo& info, bool connected, const std::string& message) {
  v1::EngineStatus status;
  status.set_connected(connected);
  status.set_message(message);
  status.set_version(info.version);
  status.set_incarnation(info.incarnation);
  status.set_protocol(info.protocol);
  status.set_reactors(info.reactors);
  status.set_controllers_max(info.controllers_max);
  if (!info.stands_by_for.empty()) status.set_stands_by_for(EngineName(info.stands_by_for));
  if (const EngineView* engine = Find(info.peer); engine != nullptr && connected) {
    if (engine->ceph.clients_total() > 0) *status.mutable_ceph() = engine->ceph;
    status.set_standing_by(engine->standing_by);
    std::string unknown = NameLeftAlone(*engine, status);
    if (message.empty()) status.set_message(std::move(unknown));
  }
  state_.ReportEngine(info.id, status);
}

// Revisions rise for ever, over restarts too: one that was not handed out yet comes from another store.
// Tearing down what another store's owner put there would take running guests' disks away.
bool Reconciler::IsForeign(const engine::v1::Inventory& inventory) {
  const uint64_t newest = state_.NewestRevision();
  return std::any_of(inventory.controllers().begin(), inventory.controllers().end(),
                     [&](const auto& c) { return c.controller().revision() > newest; }) ||
         std::any_of(inventory.groups().begin(), inventory.groups().end(),
                     [&](const auto& g) { return g.limits().revision() > newest; }) ||
         std::any_of(inventory.clusters().begin(), inventory.clusters().end(),
                     [&](const auto& c) { return c.revision() > newest; }) ||
         std::any_of(inventory.attachments().begin(), inventory.attachments().end(),
                     [&](const auto& a) { return a.attachment().revision() > newest; });
}

void Reconciler::OnEngine(const EngineInfo& info, engine::v1::Inventory inventory) {
  EngineView& engine = engines_[info.peer];
  engine.info = info;
  known_[info.id] = info;
  dead_.erase(info.id);
  engine.foreign = IsForeign(inventory);
  ReportHeld(info.id, inventory);
  spdlog::info("{} connected: version {}, {} controllers, {} attachments, {} memory disks",
               EngineName(info.id), info.version, inventory.controllers_size(), inventory.attachments_size(),
               inventory.memories_size());
  if (engine.foreign) {
    const std::string message =
        "it serves disks of another cleatd's store, and is left alone: start cleatd with the --state-dir "
        "that it had "
        "before, or restart the engine when its disks are not needed any more";
    spdlog::error("{}: {}", EngineName(info.id), message);
    // Not `connected`: nothing new is placed there.
    return ReportEngine(info, false, message);
  }
  state_.ReportEnginePaths(info.id, info.path_lists);  // before anything can be moved there
  ReportEngine(info, true, "");
  // The engine may have read its list before the list was changed.
  if (!state_.PathDifferenceOf(info.id).empty()) AskReadPathLists(engine);
  TakeInventory(engine, inventory);
  // Before anything is asked: what they use stays with them.
  for (const auto& [controller, view] : engine.controllers)
    LeaveAlone(engine, controller, state_.IntentOf(controller));
  state_.PlaceControllers();

  std::set<std::string> disks;
  for (const auto& [disk, size_bytes] : engine.memories) disks.insert(disk);
  for (std::string& disk : state_.MemoryDisks()) disks.insert(std::move(disk));
  for (const auto& status : inventory.attachments()) {
    if (auto disk = ParseDiskName(status.attachment().disk().name()); disk.ok())
      disks.insert(std::move(*disk));
  }
  for (const std::string& disk : disks) LookAtDisk(disk);
  LookAtGroups(engine);
  LookAtClusters(engine);

  std::set<std::string> controllers;
  for (const auto& [controller, view] : engine.controllers) controllers.insert(controller);
  for (std::string& controller : state_.ControllersFor(info.id)) controllers.insert(std::move(controller));
  for (std::string& controller : state_.InterruptedFor(info.id)) controllers.insert(std::move(controller));
  // What it serves is its own from here on: only then may others be asked for the rest.
  for (const std::string& controller : controllers) LookAt(engine, controller);
  state_.EndReunion(info.id);
  for (const std::string& controller : controllers) Look(controller);
  // It may stand by for one that died while it was away.
  for (const std::string& dead : std::set<std::string>(dead_)) TakeOverFrom(dead);
}

void Reconciler::AskReadPathLists(EngineView& engine) {
  if (engine.info.protocol < kProtocolPathLists) return;
  engine::v1::Envelope envelope;
  envelope.mutable_read_path_lists();
  link_.Request(engine.info.peer, std::move(envelope), {},
                [this, id = engine.info.id](const engine::v1::Reply& reply, const UniqueFd&) {
                  if (!reply.ok())
                    spdlog::error("{}: its list of paths stays as it was: {}", EngineName(id),
                                  reply.message());
                  const std::string difference = state_.PathDifferenceOf(id);
                  if (!difference.empty()) spdlog::warn("{}: {}", EngineName(id), difference);
                });
}

// Controllers that stand by there may have to go, and others can stand by now.
void Reconciler::TakePathLists(EngineView& engine, const std::string& text) {
  state_.ReportEnginePaths(engine.info.id, text);
  if (engine.info.stands_by_for.empty()) return;
  for (const std::string& controller : state_.ControllersOn(engine.info.stands_by_for)) Look(controller);
  if (dead_.contains(engine.info.stands_by_for)) TakeOverFrom(engine.info.stands_by_for);
}

void Reconciler::TakeInventory(EngineView& engine, const engine::v1::Inventory& inventory) {
  for (const auto& status : inventory.controllers()) {
    const auto id = ParseControllerName(status.controller().name());
    if (!id.ok()) continue;
    engine.controllers[*id].actual = status;
    state_.ReportController(engine.info.id, *id, FromEngine(status));
  }
  for (const auto& status : inventory.attachments()) {
    const auto id = ParseControllerName(status.attachment().controller());
    if (!id.ok()) continue;
    const uint32_t target = status.attachment().target();
    engine.controllers[*id].attachments[target] = status;
    state_.ReportAttachment(engine.info.id, {*id, target, status.attachment().revision()}, ReportOf(status));
  }
  for (const auto& memory : inventory.memories()) {
    const auto id = ParseDiskName(memory.disk());
    if (id.ok()) engine.memories[*id] = memory.size_bytes();
  }
  for (const auto& group : inventory.groups()) {
    if (const auto id = ParseGroupName(group.name()); id.ok()) engine.groups[*id] = group;
  }
  for (const auto& cluster : inventory.clusters()) {
    if (const auto id = ParseClusterName(cluster.name()); id.ok()) engine.clusters[*id] = cluster.revision();
  }
  for (const std::string& id : state_.ClustersOn(engine.info.id)) {
    const auto known = engine.clusters.find(id);
    std::optional<ClusterReport> report;
    if (known != engine.clusters.end()) report = ClusterReport{.spec_revision = known->second};
    state_.ReportCluster(engine.info.id, id, report);
  }
  for (const std::string& id : state_.GroupsOn(engine.info.id)) {
    const auto known = engine.groups.find(id);
    std::optional<GroupReport> report;
    if (known != engine.groups.end()) report = {.limits_revision = known->second.limits().revision()};
    state_.ReportGroup(engine.info.id, id, report);
  }
}

// Nobody can say now what that engine does about it, or it does nothing any more.
void Reconciler::ReportUnknown(const std::string& engine, const std::string& controller) {
  v1::ControllerStatus status;
  status.set_state(v1::CONTROLLER_STATE_PENDING);
  status.set_message(dead_.contains(engine)
                         ? fmt::format("{} has ended: start it again", EngineName(engine))
                         : fmt::format("{} is not connected (it may still be serving)", EngineName(engine)));
  state_.ReportController(engine, controller, status);
  for (const AttachmentIntent& attachment : state_.IntentOf(controller).attachments) {
    state_.ReportAttachment(engine, {controller, attachment.row.spec.target(), 0},
                            {.state = v1::ATTACHMENT_STATE_PENDING, .message = status.message()});
  }
}

void Reconciler::OnGone(PeerId peer, const std::string& why) {
  const auto node = engines_.extract(peer);
  if (node.empty()) return;
  const EngineInfo& info = node.mapped().info;
  ReportEngine(info, false,
               fmt::format("lost: {}. It serves on if it is alive, and connects again by itself", why));
  for (const std::string& controller : state_.ControllersOn(info.id)) ReportUnknown(info.id, controller);
  for (const std::string& disk : state_.MemoryDisks()) LookAtMemory(disk);
  // What stood by there may do so elsewhere.
  if (!info.stands_by_for.empty()) {
    for (const std::string& controller : state_.ControllersOn(info.stands_by_for)) Look(controller);
  }
  std::vector<std::string> moves;
  for (const auto& [controller, move] : moves_) moves.push_back(controller);
  for (const std::string& controller : moves) LookAtMove(controller);
  if (!node.mapped().left_alone.empty()) ReportAloneGone(node.mapped());
}

void Reconciler::OnDead(const std::string& engine, uint64_t incarnation) {
  // Its successor is there, and gets everything anew.
  if (FindByName(engine) != nullptr) return LookAtThoseThatStandBy();
  const auto known = known_.find(engine);
  if (known == known_.end() || known->second.incarnation != incarnation)
    return;  // its successor was there, and may serve
  dead_.insert(engine);
  // First of all: guests wait.
  TakeOverFrom(engine);
  std::vector<std::string> moves;
  for (const auto& [controller, move] : moves_) moves.push_back(controller);
  for (const std::string& controller : moves) LookAtMove(controller);
  ReportEngine(known->second, false, "its process has ended: start it again");
  for (const std::string& controller : state_.ControllersOn(engine)) {
    if (!moves_.contains(controller)) ReportUnknown(engine, controller);
  }
  for (const std::string& disk : state_.MemoryDisks()) LookAtMemory(disk);
  LookAtThoseThatStandBy();
}

// A controller may stand by with its own engine after a move was given up. It waits as long as another engine may serve it
// (MayBeElsewhere): that engine's death is what ends the wait.
void Reconciler::LookAtThoseThatStandBy() {
  std::vector<std::string> waiting;
  for (const auto& [peer, engine] : engines_) {
    for (const auto& [controller, view] : engine.controllers) {
      if (StandsBy(view) && state_.IntentOf(controller).row.engine == engine.info.id)
        waiting.push_back(controller);
    }
  }
  for (const std::string& controller : waiting) Look(controller);
}

// ---- Events ----

void Reconciler::OnStatus(PeerId peer, const engine::v1::StatusEvent& event) {
  EngineView* engine = Find(peer);
  if (engine == nullptr || engine->foreign) return;
  switch (event.what_case()) {
    case engine::v1::StatusEvent::kController:
      return OnControllerStatus(*engine, event.controller());
    case engine::v1::StatusEvent::kAttachment:
      return OnAttachmentStatus(*engine, event.attachment());
    case engine::v1::StatusEvent::kAttachmentGone: {
      const auto id = ParseControllerName(event.attachment_gone().controller());
      if (!id.ok()) return;
      engine->controllers[*id].attachments.erase(event.attachment_gone().target());
      return Look(*id);
    }
    case engine::v1::StatusEvent::kControllerGone: {
      const auto id = ParseControllerName(event.controller_gone());
      if (!id.ok()) return;
      ControllerView& view = engine->controllers[*id];
      const std::string group = GroupOf(view);
      view.actual.reset();
      Look(*id);
      if (!group.empty()) LookAtGroup(*engine, group);
      return;
    }
    case engine::v1::StatusEvent::kPathLists:
      return TakePathLists(*engine, event.path_lists());
    case engine::v1::StatusEvent::kCeph:
      engine->ceph = FromEngine(event.ceph());
      return ReportEngine(engine->info, true, "");
    case engine::v1::StatusEvent::WHAT_NOT_SET:
      return;
  }
}

void Reconciler::OnControllerStatus(EngineView& engine, const engine::v1::ControllerStatus& status) {
  const auto id = ParseControllerName(status.controller().name());
  if (!id.ok()) return;
  engine.controllers[*id].actual = status;
  engine.recount = true;
  // On its way, it is as it was: nobody is to worry about some milliseconds.
  if (!moves_.contains(*id))
    state_.ReportController(engine.info.id, *id, StatusOf(engine, *id, engine.controllers[*id]));
  Look(*id);
}

void Reconciler::OnAttachmentStatus(EngineView& engine, const engine::v1::AttachmentStatus& status) {
  const auto id = ParseControllerName(status.attachment().controller());
  if (!id.ok()) return;
  ControllerView& view = engine.controllers[*id];
  const uint32_t target = status.attachment().target();
  const bool failed = status.state() == engine::v1::ATTACHMENT_STATE_FAILED;
  // What an Attach comes to stands in its reply; between two attempts the failure of the last one is worth
  // more.
  const bool busy = view.targets_busy.contains(target);
  const bool retrying = busy && view.attachment_backoffs.contains(target);
  view.attachments[target] = status;
  if (!busy && failed) Fail(view.attachment_backoffs[target], {.controller = *id, .disk = {}});
  const bool moving = moves_.contains(*id) && status.state() == engine::v1::ATTACHMENT_STATE_STANDBY;
  if (!moving && (!retrying || IsOpen(status.state()))) {
    AttachmentReport report = ReportOf(status);
    if (failed) report.failures = std::max(view.attachment_backoffs[target].failures, 1U);
    state_.ReportAttachment(engine.info.id, {*id, target, status.attachment().revision()}, report);
  }
  LookAt(engine, *id);
  if (const auto disk = ParseDiskName(status.attachment().disk().name()); disk.ok()) {
    LookAtSize(*disk);
    LookAtLimits(*disk);
  }
}

// ---- Time and intent ----

void Reconciler::OnWake() {
  const ChangedIntent changed = state_.TakeChanged();
  for (const std::string& disk : changed.disks) LookAtDisk(disk);
  for (const std::string& group : changed.groups) LookAtGroup(group);
  for (const std::string& cluster : changed.clusters) LookAtCluster(cluster);
  for (const std::string& controller : changed.controllers) Look(controller);
  if (changed.paths) {
    for (auto& [peer, engine] : engines_) AskReadPathLists(engine);
  }
  if (changed.upgrade) {
    if (auto intent = state_.RunningUpgrade()) BeginUpgrade(std::move(*intent));
  }
}

uint64_t Reconciler::OnTimer(uint64_t read_until_ns) {
  read_until_ns_ = read_until_ns;
  while (!retries_.empty() && retries_.begin()->first <= read_until_ns) {
    const Retry retry = std::move(retries_.begin()->second);
    retries_.erase(retries_.begin());
    if (!retry.controller.empty()) Look(retry.controller);
    if (!retry.disk.empty()) LookAtDisk(retry.disk);
    if (!retry.group.empty()) LookAtGroup(retry.group);
    if (!retry.cluster.empty()) LookAtCluster(retry.cluster);
  }
  LookAtMemoryLater();
  LookAtUpgrade();
  LookAtTakeOvers();
  uint64_t due_ns = CountStandbys(read_until_ns);
  if (!reunited_ && read_until_ns >= started_ns_ + options_.reunion_ns) {
    reunited_ = true;
    state_.EndReunion("");
  }
  for (const auto& [engine, take_over] : take_overs_) due_ns = std::min(due_ns, take_over.deadline_ns);
  return retries_.empty() ? due_ns : std::min(due_ns, retries_.begin()->first);
}

double Reconciler::Fail(Backoff& backoff, Retry retry) {
  constexpr uint32_t kDoublingsMax = 20;
  const uint64_t wait_ns =
      std::min(options_.retry_max_ns, options_.retry_min_ns << std::min(backoff.failures, kDoublingsMax));
  ++backoff.failures;
  backoff.not_before_ns = clock_.NowNs() + wait_ns;
  retries_.emplace(backoff.not_before_ns, std::move(retry));
  return static_cast<double>(wait_ns) / static_cast<double>(kNsPerSecond);
}

}  // namespace cleat::control
