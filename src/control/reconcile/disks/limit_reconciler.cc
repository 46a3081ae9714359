// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/disks/limit_reconciler.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"
#include "control/validate/disk_settings.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

void NoteLimits(EngineView& engine, const std::string& disk, const engine::v1::Limits& limits) {
  for (auto& [controller, view] : engine.controllers) {
    for (auto& [target, actual] : view.attachments) {
      engine::v1::Disk& known = *actual.mutable_attachment()->mutable_disk();
      const bool older = known.limits().revision() < limits.revision();
      if (known.name() == DiskName(disk) && older) *known.mutable_limits() = limits;
    }
  }
}

}  // namespace

bool PlanLimits(const EngineView& engine, const std::vector<std::string>& controllers, const DiskRow& row,
                const DiskIdentity& identity, uint64_t now_ns) {
  if (engine.foreign || row.deleting || row.limits_revision == 0) return false;
  return engine.limit_requests.Ready(DiskId{row.id}, now_ns) && !HoldsAnother(engine, row.id, identity) &&
         IsBehindLimits(engine, controllers, row.id, row.limits_revision);
}

void LimitReconciler::ReconcileDisk(const std::string& disk) {
  const log::RequestScope request(context_.LastRequest(DiskName(disk)));
  const std::optional<DiskRow> row = context_.state.disks().Row(disk);
  if (!row || row->limits_revision == 0) return;
  const std::vector<std::string> controllers = context_.state.disks().ControllersWith(disk);
  const DiskIdentity identity = context_.state.disks().IdentityOf(*row);
  for (auto& [peer, engine] : context_.engines.all()) {
    if (PlanLimits(engine, controllers, *row, identity, context_.now_ns())) AskLimit(engine, *row);
  }
}

void LimitReconciler::AskLimit(EngineView& engine, const DiskRow& row) {
  engine::v1::Envelope envelope;
  envelope.mutable_limit_disk()->set_disk(DiskName(row.id));
  const engine::v1::Limits limits = ToEngine(row.spec.limits(), row.limits_revision);
  *envelope.mutable_limit_disk()->mutable_limits() = limits;
  if (WaitsForSpace(row.spec)) envelope.mutable_limit_disk()->set_on_no_space(engine::v1::ON_NO_SPACE_WAIT);
  if (row.spec.has_in_doubt())
    *envelope.mutable_limit_disk()->mutable_in_doubt() = ToEngine(row.spec.in_doubt());
  context_.requests.AskOnce<DiskId>(
      engine, &EngineView::limit_requests, DiskId{row.id}, std::move(envelope),
      [this, disk = row.id, limits](EngineView& answered, const EngineRequests::Outcome& outcome) {
        OnAnswer(answered, disk, limits, outcome);
      });
}

void LimitReconciler::OnAnswer(EngineView& engine, const std::string& disk, const engine::v1::Limits& limits,
                               const EngineRequests::Outcome& outcome) {
  std::string message;
  if (outcome.status.ok()) {
    NoteLimits(engine, disk, limits);
  } else {
    message = fmt::format("the present limits can't be set: {} (tried again in {:.3g} s)",
                          outcome.status.error().message, outcome.retry_s);
    spdlog::warn("{}: limits not set on {}: {}; tried again in {:.3g} s", DiskName(disk),
                 EngineName(engine.info.id), outcome.status.error().message, outcome.retry_s);
  }
  reporter_.ReportAttachments(engine, disk, message);
  ReconcileDisk(disk);
}

}  // namespace cleat::control
