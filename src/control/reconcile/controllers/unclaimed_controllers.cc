// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/controllers/unclaimed_controllers.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/log.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"
#include "control/reconcile/engines/inventory.h"

namespace cleat::control {

void UnclaimedControllers::ReportHeld(const std::string& engine, const engine::v1::Inventory& inventory) {
  context_.state.unclaimed().ReportHeld(engine, HeldIn(inventory));
  if (!context_.IsRestored()) return;
  for (const auto& status : inventory.controllers()) {
    const auto id = ParseControllerName(status.controller().name());
    const bool owns = status.state() != engine::v1::CONTROLLER_STATE_STANDBY;
    if (!id.ok() || !owns || !status.controller().has_last_disk()) continue;
    const engine::v1::Controller& known = status.controller();
    context_.requests.RetryLater(context_.state.controllers().LearnLastDisk(
                                     *id, DiskIdentity(known.last_disk()), known.last_disk_name()),
                                 ControllerId{*id});
  }
}

bool UnclaimedControllers::LeaveAlone(EngineView& engine, const std::string& controller,
                                      const ControllerIntent& intent) {
  if (!context_.IsRestored()) return false;
  const ControllerView* view = engine.FindController(controller);
  const bool unclaimed = view != nullptr && IsUnclaimed(context_.state.lost(), intent, *view);
  if (unclaimed != engine.unclaimed.contains(controller)) SetUnclaimed(engine, controller, unclaimed);
  if (unclaimed) ReportUnclaimed(engine, controller, *view, intent);
  return unclaimed;
}

void UnclaimedControllers::SetUnclaimed(EngineView& engine, const std::string& controller, bool unclaimed) {
  if (unclaimed) {
    engine.unclaimed.insert(controller);
    spdlog::warn("{}: not in the restored store: {} serves it: {}", ControllerName(controller),
                 EngineName(engine.info.id), kWhyUnclaimed);
  } else {
    engine.unclaimed.erase(controller);
    reporter_.ReportView(engine, controller);
  }
  engine.recount = true;
  ReportUnknownTo(engine);
}

void UnclaimedControllers::ReportUnclaimed(const EngineView& engine, const std::string& controller,
                                           const ControllerView& view, const ControllerIntent& intent) {
  if (view.actual)
    context_.state.controllers().Report(engine.info.id, controller, StatusOf(engine, controller, view));
  for (const AttachmentIntent& attachment : intent.attachments) {
    const uint32_t target = attachment.row.spec.target();
    const auto there = view.attachments.find(target);
    if (there != view.attachments.end() && there->second.attachment().revision() == attachment.row.revision)
      continue;
    context_.state.attachments().Report(
        engine.info.id, {controller, target, attachment.row.revision},
        {.state = v1::ATTACHMENT_STATE_PENDING,
         .message = fmt::format("{} is left alone: see its status", ControllerName(controller))});
  }
}

void UnclaimedControllers::ReportUnknownTo(const EngineView& engine) {
  std::map<std::string, v1::ControllerSpec> unknown;
  for (const std::string& controller : engine.unclaimed) {
    const ControllerView* view = engine.FindController(controller);
    if (view != nullptr && !context_.state.controllers().IntentOf(controller).exists)
      unknown[controller] = SpecOf(*view);
  }
  context_.state.unclaimed().Report(engine.info.id, std::move(unknown));
}

bool UnclaimedControllers::MakeWait(const EngineView& engine, const std::string& controller,
                                    const AttachmentIntent& intent) {
  if (!context_.IsRestored()) return false;
  for (const auto& [peer, other] : context_.engines.all()) {
    const engine::v1::Attachment* held = UnclaimedHolderOf(other, intent.disk.id);
    if (held == nullptr || (held->read_only() && intent.row.spec.read_only())) continue;
    context_.state.attachments().Report(
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

void UnclaimedControllers::OnReleased(EngineView& engine, const std::string& disk) {
  if (!context_.IsRestored()) return;
  for (const std::string& controller : context_.state.disks().ControllersWith(disk))
    reconcile_.Controller(controller);
  reconcile_.ClustersOn(engine);
}

void UnclaimedControllers::OnEngineGone(const EngineView& engine) {
  if (engine.unclaimed.empty()) return;
  context_.state.unclaimed().Report(engine.info.id, {});
  for (const std::string& controller : engine.unclaimed) {
    const ControllerView* view = engine.FindController(controller);
    if (view == nullptr) continue;
    for (const auto& [target, status] : view->attachments) {
      const auto disk = ParseDiskName(status.attachment().disk().name());
      if (!disk.ok()) continue;
      for (const std::string& waiting : context_.state.disks().ControllersWith(*disk))
        reconcile_.Controller(waiting);
    }
  }
}

}  // namespace cleat::control
