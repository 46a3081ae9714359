// SPDX-License-Identifier: Apache-2.0
// Disks that grew: each engine that knows a smaller size - behind a guest, or of memory that it holds - is told. Looked
// at whenever a disk, an attachment or an engine changes; one request at a time for an engine and a disk.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {

void Reconciler::LookAtDisk(const std::string& disk) {
  LookAtMemory(disk);
  LookAtSize(disk);
  LookAtLimits(disk);
}

void Reconciler::LookAtSize(const std::string& disk) {
  const std::optional<DiskRow> row = state_.Disk(disk);
  if (!row || row->deleting) return;
  const uint64_t size_bytes = row->spec.size_bytes();
  const std::vector<std::string> controllers = state_.ControllersWith(disk);
  if (IsMoving(controllers)) return;  // nobody has it for the moment; looked at again afterwards
  for (auto& [peer, engine] : engines_) {
    if (engine.foreign || engine.resize_busy.contains(disk) || HoldsAnother(engine, *row)) continue;
    if (!IsBehind(engine, controllers, disk, size_bytes)) continue;
    const auto work = engine.resize_work.find(disk);
    if (work != engine.resize_work.end() && clock_.NowNs() < work->second.not_before_ns) continue;
    AskResize(engine, disk, size_bytes);
  }
}

void Reconciler::AskResize(EngineView& engine, const std::string& disk, uint64_t size_bytes) {
  engine::v1::Envelope envelope;
  envelope.mutable_resize_disk()->set_disk(DiskName(disk));
  envelope.mutable_resize_disk()->set_size_bytes(size_bytes);
  engine.resize_busy.insert(disk);
  const PeerId peer = engine.info.peer;
  link_.Request(peer, std::move(envelope), {},
                [this, peer, disk, size_bytes](const engine::v1::Reply& reply, const UniqueFd&) {
                  EngineView& answered = *Find(peer);
                  answered.resize_busy.erase(disk);
                  std::string message;
                  if (const Status status = FromEngine(reply); status.ok()) {
                    answered.resize_work.erase(disk);
                    if (const auto held = answered.memories.find(disk); held != answered.memories.end())
                      held->second = size_bytes;
                    for (auto& [controller, view] : answered.controllers) {
                      for (auto& [target, actual] : view.attachments) {
                        engine::v1::Disk& known = *actual.mutable_attachment()->mutable_disk();
                        if (known.name() == DiskName(disk))
                          known.set_size_bytes(std::max(known.size_bytes(), size_bytes));
                      }
                    }
                    spdlog::info("{}: {} has {} bytes now", EngineName(answered.info.id), DiskName(disk),
                                 size_bytes);
                  } else {
                    const double wait_s = Fail(answered.resize_work[disk], {.controller = {}, .disk = disk});
                    message = fmt::format("the guest can't be told of {} bytes: {} (tried again in {:.3g} s)",
                                          size_bytes, status.error().message, wait_s);
                    spdlog::warn("{}: {}: {}", EngineName(answered.info.id), DiskName(disk), message);
                  }
                  ReportAttachments(answered, disk, message);
                  LookAtSize(disk);
                  for (const std::string& controller : state_.ControllersWith(disk)) Look(controller);
                });
}

void Reconciler::ReportAttachments(const EngineView& engine, const std::string& disk,
                                   const std::string& message) {
  for (const auto& [controller, view] : engine.controllers) {
    for (const auto& [target, actual] : view.attachments) {
      const engine::v1::Attachment& attachment = actual.attachment();
      if (!IsOpen(actual.state()) || attachment.disk().name() != DiskName(disk)) continue;
      AttachmentReport report = ReportOf(actual);
      report.message = message;
      state_.ReportAttachment(engine.info.id, {controller, target, attachment.revision()}, report);
    }
  }
}

}  // namespace cleat::control
