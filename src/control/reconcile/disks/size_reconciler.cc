// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/disks/size_reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/log_request.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"
#include "control/validate/backends.h"

namespace cleat::control {
namespace {

void NoteSize(EngineView& engine, const std::string& disk, uint64_t size_bytes) {
  if (const auto held = engine.memories.find(disk); held != engine.memories.end()) held->second = size_bytes;
  for (auto& [controller, view] : engine.controllers) {
    for (auto& [target, actual] : view.attachments) {
      engine::v1::Disk& known = *actual.mutable_attachment()->mutable_disk();
      if (known.name() == DiskName(disk)) known.set_size_bytes(std::max(known.size_bytes(), size_bytes));
    }
  }
}

}  // namespace

bool PlanSize(const EngineView& engine, const std::vector<std::string>& controllers, const DiskRow& row,
              const DiskIdentity& identity, uint64_t now_ns) {
  if (engine.foreign || row.deleting) return false;
  return engine.resize_requests.Ready(DiskId{row.id}, now_ns) && !HoldsAnother(engine, row.id, identity) &&
         IsBehind(engine, controllers, row);
}

void SizeReconciler::ReconcileDisk(const std::string& disk) {
  const log::RequestScope request(context_.LastRequest(DiskName(disk)));
  const std::optional<DiskRow> row = context_.state.disks().Row(disk);
  if (!row || row->deleting) return;
  const std::vector<std::string> controllers = context_.state.disks().ControllersWith(disk);
  if (moves_.IsMoving(controllers)) return;  // nobody has it for the moment; looked at again afterwards
  const DiskIdentity identity = context_.state.disks().IdentityOf(*row);
  for (auto& [peer, engine] : context_.engines.all()) {
    if (PlanSize(engine, controllers, *row, identity, context_.now_ns())) AskResize(engine, *row);
  }
}

void SizeReconciler::AskResize(EngineView& engine, const DiskRow& row) {
  const std::string disk = row.id;
  const uint64_t size_bytes = row.spec.size_bytes();
  engine::v1::Envelope envelope;
  engine::v1::ResizeDisk& resize = *envelope.mutable_resize_disk();
  resize.set_disk(DiskName(disk));
  resize.set_size_bytes(size_bytes);
  for (const pool::ExtentRun& run : ExtentsOf(row.spec)) {
    engine::v1::ExtentRun& extents = *resize.add_extents();
    extents.set_first(run.first);
    extents.set_count(run.count);
  }
  context_.requests.AskOnce<DiskId>(
      engine, &EngineView::resize_requests, DiskId{disk}, std::move(envelope),
      [this, disk, size_bytes](EngineView& answered, const EngineRequests::Outcome& outcome) {
        OnAnswer(answered, disk, size_bytes, outcome);
      });
}

void SizeReconciler::OnAnswer(EngineView& engine, const std::string& disk, uint64_t size_bytes,
                              const EngineRequests::Outcome& outcome) {
  std::string message;
  if (outcome.status.ok()) {
    NoteSize(engine, disk, size_bytes);
    spdlog::info("{}: size set on {}: {} bytes", DiskName(disk), EngineName(engine.info.id), size_bytes);
  } else {
    message = fmt::format("the guest can't be told of {} bytes: {} (tried again in {:.3g} s)", size_bytes,
                          outcome.status.error().message, outcome.retry_s);
    spdlog::warn("{}: size not set on {}: {} bytes: {}; tried again in {:.3g} s", DiskName(disk),
                 EngineName(engine.info.id), size_bytes, outcome.status.error().message, outcome.retry_s);
  }
  reporter_.ReportAttachments(engine, disk, message);
  ReconcileDisk(disk);
  for (const std::string& controller : context_.state.disks().ControllersWith(disk))
    reconcile_.Controller(controller);
}

}  // namespace cleat::control
