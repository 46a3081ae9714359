// SPDX-License-Identifier: Apache-2.0
// Disks with other limits: each engine that has one attached with older limits is told. Looked at whenever a disk, an
// attachment or an engine changes; one request at a time for an engine and a disk. Nothing is detached for it, and nothing
// asked twice: what an engine knows stands in its inventory and its events.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {

void Reconciler::LookAtLimits(const std::string& disk) {
  const std::optional<DiskRow> row = state_.Disk(disk);
  if (!row || row->deleting || row->limits_revision == 0) return;
  const std::vector<std::string> controllers = state_.ControllersWith(disk);
  for (auto& [peer, engine] : engines_) {
    if (engine.foreign || engine.limit_busy.contains(disk) || HoldsAnother(engine, *row)) continue;
    if (!IsBehindLimits(engine, controllers, disk, row->limits_revision)) continue;
    const auto work = engine.limit_work.find(disk);
    if (work != engine.limit_work.end() && clock_.NowNs() < work->second.not_before_ns) continue;
    AskLimit(engine, *row);
  }
}

void Reconciler::AskLimit(EngineView& engine, const DiskRow& row) {
  const std::string& disk = row.id;
  engine::v1::Envelope envelope;
  envelope.mutable_limit_disk()->set_disk(DiskName(disk));
  *envelope.mutable_limit_disk()->mutable_limits() = ToEngine(row.spec.limits(), row.limits_revision);
  const engine::v1::Limits limits = envelope.limit_disk().limits();
  engine.limit_busy.insert(disk);
  const PeerId peer = engine.info.peer;
  link_.Request(peer, std::move(envelope), {},
                [this, peer, disk, limits](const engine::v1::Reply& reply, const UniqueFd&) {
                  EngineView& answered = *Find(peer);
                  answered.limit_busy.erase(disk);
                  std::string message;
                  if (const Status status = FromEngine(reply); status.ok()) {
                    answered.limit_work.erase(disk);
                    for (auto& [controller, view] : answered.controllers) {
                      for (auto& [target, actual] : view.attachments) {
                        engine::v1::Disk& known = *actual.mutable_attachment()->mutable_disk();
                        const bool older = known.limits().revision() < limits.revision();
                        if (known.name() == DiskName(disk) && older) *known.mutable_limits() = limits;
                      }
                    }
                  } else {
                    const double wait_s = Fail(answered.limit_work[disk], {.controller = {}, .disk = disk});
                    message = fmt::format("the present limits can't be set: {} (tried again in {:.3g} s)",
                                          status.error().message, wait_s);
                    spdlog::warn("{}: {}: {}", EngineName(answered.info.id), DiskName(disk), message);
                  }
                  ReportAttachments(answered, disk, message);
                  LookAtLimits(disk);
                });
}

}  // namespace cleat::control
