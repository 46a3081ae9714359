// SPDX-License-Identifier: Apache-2.0
// What a restored store knows nothing of: a controller that an engine has with lost revisions (model.h) - its own, or one of its
// attachments' - was made or changed after the backup. A guest may be using it, so it is left alone until somebody speaks of it by name:
//
//   the store does not know it     until it is made again, or deleted, which then has a row for it (HostState::DeleteLeftAlone)
//   the store knows it             until its row, or one of its attachments', is newer than what was lost
//
// While it is left alone, what it uses stays as well: its group (HasControllersOf), its clusters, memory that it has attached; and no other
// controller gets a disk that it has.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/refusals.h"
#include "control/translate.h"

namespace cleat::control {
namespace {

constexpr size_t kNamedMax = 3;    // in a message
constexpr int kLeftAloneMax = 16;  // that an engine's status lists

constexpr const char* kWhy =
    "it was made or changed after the backup that the store was restored from: it is served as it is, and "
    "left alone "
    "until it is changed, deleted or made again";

v1::ControllerSpec SpecOf(const ControllerView& view) {
  v1::ControllerSpec spec;
  if (!view.actual) return spec;
  const engine::v1::Controller& known = view.actual->controller();
  spec.set_socket_path(known.socket_path());
  spec.set_queues(known.queues());
  spec.set_type(known.type() == engine::v1::CONTROLLER_TYPE_SCSI ? v1::CONTROLLER_TYPE_SCSI
                                                                 : v1::CONTROLLER_TYPE_BLK);
  return spec;
}

HeldByEngine HeldIn(const engine::v1::Inventory& inventory) {
  HeldByEngine held;
  const auto look = [&held](uint64_t revision) {
    held.newest_revision = std::max(held.newest_revision, revision);
  };
  for (const auto& status : inventory.controllers()) {
    look(status.controller().revision());
    const auto id = ParseControllerName(status.controller().name());
    ControllerView view;
    view.actual = status;
    if (id.ok() && Serves(view)) held.serves[*id] = status.controller().revision();
  }
  for (const auto& status : inventory.attachments()) {
    look(status.attachment().revision());
    look(status.attachment().disk().limits().revision());
  }
  for (const auto& group : inventory.groups()) look(group.limits().revision());
  for (const auto& cluster : inventory.clusters()) look(cluster.revision());
  return held;
}

}  // namespace

// Of every engine, foreign ones too: a store that is restored may be theirs.
void Reconciler::ReportHeld(const std::string& engine, const engine::v1::Inventory& inventory) {
  state_.ReportHeld(engine, HeldIn(inventory));
  if (lost_.empty()) return;
  for (const auto& status : inventory.controllers()) {
    const auto id = ParseControllerName(status.controller().name());
    const bool owns = status.state() != engine::v1::CONTROLLER_STATE_STANDBY;
    if (!id.ok() || !owns || !status.controller().has_last_disk()) continue;
    const engine::v1::Controller& known = status.controller();
    Later(state_.LearnLastDisk(*id, DiskIdentity(known.last_disk()), known.last_disk_name()),
          {.controller = *id, .disk = {}});
  }
}

v1::ControllerStatus Reconciler::StatusOf(const EngineView& engine, const std::string& controller,
                                          const ControllerView& view) const {
  v1::ControllerStatus status = FromEngine(*view.actual);
  if (engine.left_alone.contains(controller)) AddNote(kWhy, *status.mutable_message());
  return status;
}

bool Reconciler::LeaveAlone(EngineView& engine, const std::string& controller,
                            const ControllerIntent& intent) {
  if (lost_.empty()) return false;
  const auto found = engine.controllers.find(controller);
  const bool alone = found != engine.controllers.end() && IsLeftAlone(lost_, intent, found->second);
  if (alone != engine.left_alone.contains(controller)) {
    if (alone) {
      engine.left_alone.insert(controller);
      spdlog::warn("{}: {}: {}", EngineName(engine.info.id), ControllerName(controller), kWhy);
    } else {
      engine.left_alone.erase(controller);
      if (found != engine.controllers.end()) ReportView(engine, controller);
    }
    engine.recount = true;
    TellLeftAlone(engine);
  }
  if (alone) ReportAlone(engine, controller, found->second, intent);
  return alone;
}

void Reconciler::ReportAlone(const EngineView& engine, const std::string& controller,
                             const ControllerView& view, const ControllerIntent& intent) {
  if (view.actual) state_.ReportController(engine.info.id, controller, StatusOf(engine, controller, view));
  for (const AttachmentIntent& attachment : intent.attachments) {
    const uint32_t target = attachment.row.spec.target();
    const auto there = view.attachments.find(target);
    if (there != view.attachments.end() && there->second.attachment().revision() == attachment.row.revision)
      continue;
    state_.ReportAttachment(
        engine.info.id, {controller, target, attachment.row.revision},
        {.state = v1::ATTACHMENT_STATE_PENDING,
         .message = fmt::format("{} is left alone: see its status", ControllerName(controller))});
  }
}

// Reports the controllers that the store does not know: only their engine can say that they are there.
void Reconciler::TellLeftAlone(const EngineView& engine) {
  std::map<std::string, v1::ControllerSpec> unknown;
  for (const std::string& controller : engine.left_alone) {
    const auto found = engine.controllers.find(controller);
    if (found != engine.controllers.end() && !state_.IntentOf(controller).exists)
      unknown[controller] = SpecOf(found->second);
  }
  state_.ReportLeftAlone(engine.info.id, std::move(unknown));
}

// The locks of the disks decide from here on.
void Reconciler::ReportAloneGone(const EngineView& engine) {
  state_.ReportLeftAlone(engine.info.id, {});
  for (const std::string& controller : engine.left_alone) {
    const auto found = engine.controllers.find(controller);
    if (found == engine.controllers.end()) continue;
    for (const auto& [target, status] : found->second.attachments) {
      const auto disk = ParseDiskName(status.attachment().disk().name());
      if (!disk.ok()) continue;
      for (const std::string& waiting : state_.ControllersWith(*disk)) Look(waiting);
    }
  }
}

std::string Reconciler::NameLeftAlone(const EngineView& engine, v1::EngineStatus& status) {
  status.set_left_alone_total(static_cast<uint32_t>(engine.left_alone.size()));
  std::vector<std::string> unknown;
  for (const std::string& controller : engine.left_alone) {
    if (status.left_alone_size() < kLeftAloneMax) status.add_left_alone(ControllerName(controller));
    if (!state_.IntentOf(controller).exists) unknown.push_back(ControllerName(controller));
  }
  if (unknown.empty()) return {};
  const size_t total = unknown.size();
  unknown.resize(std::min(total, kNamedMax));
  return fmt::format(
      "it serves {} controller(s) that the restored store does not know, and that are left alone: {}{}. Make "
      "them "
      "again, disks and all at once (cleatctl apply), or delete them by name",
      total, fmt::join(unknown, ", "), total > kNamedMax ? ", ..." : "");
}

const engine::v1::Attachment* Reconciler::HeldAlone(const EngineView& engine, const std::string& disk) {
  const std::string name = DiskName(disk);
  for (const std::string& controller : engine.left_alone) {
    const auto found = engine.controllers.find(controller);
    if (found == engine.controllers.end()) continue;
    for (const auto& [target, status] : found->second.attachments) {
      if (status.attachment().disk().name() == name) return &status.attachment();
    }
  }
  return nullptr;
}

// A disk of that name which is another one than the store's: what is asked by name would reach it.
bool Reconciler::HoldsAnother(const EngineView& engine, const DiskRow& row) const {
  const engine::v1::Attachment* held = HeldAlone(engine, row.id);
  if (held == nullptr || !held->disk().has_identity()) return false;
  return DiskIdentity(held->disk().identity()) != state_.IdentityOf(row);
}

bool Reconciler::WaitsForHolder(EngineView& engine, const std::string& controller,
                                const AttachmentIntent& intent) {
  if (lost_.empty()) return false;
  for (const auto& [peer, other] : engines_) {
    const engine::v1::Attachment* held = HeldAlone(other, intent.disk.id);
    if (held == nullptr || (held->read_only() && intent.row.spec.read_only())) continue;
    state_.ReportAttachment(
        engine.info.id, {controller, intent.row.spec.target(), intent.row.revision},
        {.state = v1::ATTACHMENT_STATE_PENDING,
         .message =
             fmt::format("waits for {}, which has the disk and is left alone since the store was restored: "
                         "delete that one, or make it again",
                         held->controller())});
    return true;
  }
  return false;
}

// Others may have waited for the disk, and the engine may not need the cluster any more.
void Reconciler::LookAfterRelease(EngineView& engine, const std::string& disk) {
  if (lost_.empty()) return;
  for (const std::string& controller : state_.ControllersWith(disk)) Look(controller);
  LookAtClusters(engine);
}

bool Reconciler::UsesClusterAlone(const EngineView& engine, const std::string& cluster) {
  const std::string name = ClusterName(cluster);
  return std::any_of(engine.left_alone.begin(), engine.left_alone.end(), [&](const std::string& controller) {
    const auto found = engine.controllers.find(controller);
    return found != engine.controllers.end() &&
           std::any_of(found->second.attachments.begin(), found->second.attachments.end(),
                       [&](const auto& a) { return a.second.attachment().disk().rbd().cluster() == name; });
  });
}

}  // namespace cleat::control
