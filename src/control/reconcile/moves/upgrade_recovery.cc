// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/moves/upgrade_recovery.h"

#include <algorithm>

#include "base/log.h"
#include "control/model/names.h"

namespace cleat::control {
namespace {

bool IsWanted(const ControllerIntent& intent, uint32_t target, uint64_t revision) {
  return std::any_of(intent.attachments.begin(), intent.attachments.end(), [&](const auto& attachment) {
    return attachment.row.spec.target() == target && attachment.row.revision == revision;
  });
}

}  // namespace

bool MayAdopt(const ControllerIntent& intent, const EngineView& engine, const ControllerView& view) {
  if (!intent.exists || intent.row.engine.empty() || intent.row.engine == engine.info.id) return false;
  if (engine.info.protocol < kProtocolMoves || !Serves(view)) return false;
  if (view.actual->controller().revision() != intent.row.revision) return false;
  return std::all_of(view.attachments.begin(), view.attachments.end(), [&](const auto& known) {
    return IsWanted(intent, known.first, known.second.attachment().revision());
  });
}

bool IsServedElsewhere(const ConnectedEngines& engines, const EngineView& engine,
                       const std::string& controller) {
  const auto& all = engines.all();
  return std::any_of(all.begin(), all.end(), [&](const auto& entry) {
    const EngineView& other = entry.second;
    const ControllerView* view = other.FindController(controller);
    if (&other == &engine || other.foreign || view == nullptr) return false;
    return Serves(*view) || (StandsBy(*view) && view->request.busy());
  });
}

bool UpgradeRecovery::Adopt(EngineView& engine, const std::string& controller, const ControllerView& view,
                            const ControllerIntent& intent) {
  if (!MayAdopt(intent, engine, view)) return false;
  if (const EngineView* other = context_.engines.FindByName(intent.row.engine)) {
    const ControllerView* there = other->FindController(controller);
    if (there != nullptr && Serves(*there)) return false;
    if (there != nullptr && there->request.busy()) return true;
  }
  const Status status =
      context_.state.controllers().Move({{.controller = controller, .engine = engine.info.id}});
  context_.requests.RetryLater(status, ControllerId{controller});
  if (!status.ok()) return true;
  spdlog::info("{}: assigned to {}, which serves it: was {}'s", ControllerName(controller),
               EngineName(engine.info.id), EngineName(intent.row.engine));
  reporter_.ReportView(engine, controller);
  return true;
}

bool UpgradeRecovery::MayBeElsewhere(const EngineView& engine, const ControllerRow& row,
                                     const ControllerView& view) {
  if (Serves(view)) return false;
  if (IsServedElsewhere(context_.engines, engine, row.id)) return true;
  if (row.revision > started_revision_) return false;
  const std::string other = context_.state.upgrades().InterruptedTo(engine.info.id);
  if (other.empty() || context_.read_until_ns >= until_ns()) return false;
  context_.retries.Add(until_ns(), ControllerId{row.id});
  return true;
}

void UpgradeRecovery::OnTimer() {
  if (over_ || context_.read_until_ns < until_ns()) return;
  over_ = true;
  context_.state.upgrades().EndRecovery("");
}

}  // namespace cleat::control
