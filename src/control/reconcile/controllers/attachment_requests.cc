// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/controllers/attachment_requests.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/validate/backends.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {
namespace {

// An engine that knows nothing of migrations would take the disk from the host whose guest has it.
std::string TooOldForIncoming(const EngineInfo& engine) {
  return fmt::format(
      "{} (version {}, protocol {}) can't attach the disk of a VM that migrates here, which takes protocol "
      "{}: "
      "stop it and start the new engine under the same name (--name {})",
      EngineName(engine.id), engine.version, engine.protocol, kProtocolMoves, engine.id);
}

// An engine that knows nothing of secrets would connect without them, in plain text and to whoever answers.
std::string TooOldForSecrets(const EngineInfo& engine, const std::string& subsystem) {
  return fmt::format(
      "{} (version {}, protocol {}) can't attach a disk of {}, which has secrets and takes protocol {}: "
      "upgrade the engine (cleatctl engine upgrade), or stop it and start the new one under the same name "
      "(--name {})",
      EngineName(engine.id), engine.version, engine.protocol, subsystem, kProtocolSecrets, engine.id);
}

// An engine that knows nothing of reservations would write where another host may write too.
bool NeedsReservations(const engine::v1::Attachment& attachment) {
  return !attachment.read_only() && attachment.disk().nvme_tcp().reservation_family() != 0;
}

std::string TooOldForReservations(const EngineInfo& engine, const std::string& subsystem) {
  return fmt::format(
      "{} (version {}, protocol {}) can't attach a disk of {}, which has reservations and takes protocol {}: "
      "upgrade the engine (cleatctl engine upgrade), or stop it and start the new one under the same name "
      "(--name {})",
      EngineName(engine.id), engine.version, engine.protocol, subsystem, kProtocolReservations, engine.id);
}

// An engine that knows no addresses over RDMA would be left without any.
bool IsReachedOverRdmaAlone(const AttachmentIntent& intent, const engine::v1::Attachment& attachment) {
  return !intent.subsystem.addresses().empty() && attachment.disk().nvme_tcp().addresses().empty();
}

std::string TooOldForRdma(const EngineInfo& engine, const std::string& subsystem) {
  return fmt::format(
      "{} (version {}, protocol {}) can't attach a disk of {}, all of whose addresses are over RDMA, which "
      "takes protocol {}: upgrade the engine (cleatctl engine upgrade), or stop it and start the new one "
      "under "
      "the same name (--name {})",
      EngineName(engine.id), engine.version, engine.protocol, subsystem, kProtocolRdmaDisks, engine.id);
}

// An older engine is not asked for what it would do wrong without an error.
Status CheckProtocol(const EngineInfo& engine, const AttachmentIntent& intent,
                     const engine::v1::Attachment& attachment) {
  const auto refuse = [](std::string why) { return Error(ErrorCode::kFailedPrecondition, std::move(why)); };
  const std::string& subsystem = intent.disk.spec.nvme_tcp().subsystem();
  if (attachment.incoming() && engine.protocol < kProtocolMoves) return refuse(TooOldForIncoming(engine));
  if (!WrappedKeysIn(intent.subsystem).empty() && engine.protocol < kProtocolSecrets)
    return refuse(TooOldForSecrets(engine, subsystem));
  if (NeedsReservations(attachment) && engine.protocol < kProtocolReservations)
    return refuse(TooOldForReservations(engine, subsystem));
  if (IsReachedOverRdmaAlone(intent, attachment)) return refuse(TooOldForRdma(engine, subsystem));
  return Ok{};
}

}  // namespace

void AttachmentRequests::Attach(EngineView& engine, const std::string& controller,
                                const AttachmentIntent& intent) {
  ControllerView& view = engine.controllers[controller];
  const AttachmentKey key{controller, intent.row.spec.target(), intent.row.revision};
  const engine::v1::Attachment attachment = ToEngine(intent, engine.info.protocol);
  if (const Status status = CheckProtocol(engine.info, intent, attachment); !status.ok()) {
    view.last_error = status.error().message;  // so that a move to this engine says why its controller stays
    return requests_.FailAttachment(engine, view, key, status);
  }
  if (view.targets.Failures(key.target) == 0)
    context_.state.attachments().Report(engine.info.id, key, {.state = v1::ATTACHMENT_STATE_OPENING});
  ControllerRequests::Request request{.envelope = {}, .target = key.target};
  *request.envelope.mutable_attach()->mutable_attachment() = attachment;
  requests_.Ask(
      engine, controller, std::move(request),
      [this, key, attachment](EngineView& answered, ControllerView& asked, const engine::v1::Reply& reply) {
        if (const Status status = FromEngine(reply); status.ok()) {
          OnAttached(answered, asked, key, attachment);
        } else {
          spdlog::warn("{}: not opened: target {} of {}: {}; tried again", attachment.disk().name(),
                       attachment.target(), attachment.controller(), status.error().message);
          OnNotAttached(answered, asked, key, status);
        }
      });
}

void AttachmentRequests::OnAttached(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                                    const engine::v1::Attachment& attachment) {
  engine::v1::AttachmentStatus& actual = view.attachments[key.target];
  // Usually an event has told the attachment's state already. An incoming attachment may be further by now.
  if (StandsBy(view)) {
    actual.set_state(engine::v1::ATTACHMENT_STATE_STANDBY);
  } else if (!IsOpen(actual.state()) || actual.attachment().revision() != attachment.revision()) {
    actual.set_state(attachment.incoming() ? engine::v1::ATTACHMENT_STATE_INCOMING
                                           : engine::v1::ATTACHMENT_STATE_ACTIVE);
  }
  // What the engine does without space, and with writes in doubt, is its own to say: an older one does not know what it was asked for.
  const engine::v1::OnNoSpace on_no_space = actual.attachment().disk().on_no_space();
  const bool has_rule = actual.attachment().disk().has_in_doubt();
  const engine::v1::InDoubt in_doubt = actual.attachment().disk().in_doubt();
  *actual.mutable_attachment() = attachment;
  actual.mutable_attachment()->mutable_disk()->set_on_no_space(on_no_space);
  actual.mutable_attachment()->mutable_disk()->clear_in_doubt();
  if (has_rule) *actual.mutable_attachment()->mutable_disk()->mutable_in_doubt() = in_doubt;
  view.targets.Done(key.target);
  view.unproven.erase(key.target);
  context_.state.attachments().Report(engine.info.id, key, ReportOf(actual));
  spdlog::info("{}: opened: target {} of {}", attachment.disk().name(), attachment.target(),
               attachment.controller());
  // The disk may have grown meanwhile, and have other limits.
  const std::string disk = *ParseDiskName(attachment.disk().name());
  reconcile_.DiskSize(disk);
  reconcile_.DiskLimits(disk);
}

void AttachmentRequests::OnNotAttached(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                                       const Status& why) {
  view.attachments.erase(key.target);  // an error leaves nothing behind
  if (why.error().code == ErrorCode::kUnavailable) {
    view.unproven.insert(key.target);
  } else {
    view.unproven.erase(key.target);
  }
  requests_.FailAttachment(engine, view, key, why);
}

void AttachmentRequests::Detach(EngineView& engine, const std::string& controller, uint32_t target) {
  ControllerRequests::Request request{.envelope = {}, .target = target};
  request.envelope.mutable_detach()->set_controller(ControllerName(controller));
  request.envelope.mutable_detach()->set_target(target);
  requests_.Ask(
      engine, controller, std::move(request),
      [this, controller, target](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
        if (const Status status = FromEngine(reply); status.ok()) {
          OnDetached(answered, view, target);
        } else {
          OnNotDetached(answered, view, {controller, target, 0}, status);
        }
      });
}

void AttachmentRequests::OnDetached(EngineView& engine, ControllerView& view, uint32_t target) {
  const auto disk = ParseDiskName(view.attachments[target].attachment().disk().name());
  view.attachments.erase(target);
  view.targets.RetryNow(target);
  // Either may end the view, if the engine has nothing of the controller any more.
  if (disk.ok()) reconcile_.DiskMemory(*disk);  // it may not have to be held here any more
  if (disk.ok()) unclaimed_.OnReleased(engine, *disk);
}

void AttachmentRequests::OnNotDetached(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                                       const Status& why) {
  const double wait_s = context_.requests.Fail(view.targets, key.target, ControllerId{key.controller});
  spdlog::warn("{}: target {} not detached: {}; tried again in {:.3g} s", ControllerName(key.controller),
               key.target, why.error().message, wait_s);
  context_.state.attachments().Report(
      engine.info.id, key,
      {.state = v1::ATTACHMENT_STATE_DETACHING,
       .message = fmt::format("{} (tried again in {:.3g} s)", why.error().message, wait_s),
       .failures = view.targets.Failures(key.target)});
}

void AttachmentRequests::KeepMemory(EngineView& engine, const std::string& controller,
                                    const AttachmentIntent& intent) {
  const std::string& disk = intent.disk.id;
  const AttachmentKey key{controller, intent.row.spec.target(), intent.row.revision};
  const uint64_t size_bytes = KeptBytes(intent.disk.spec);
  ControllerRequests::Request request{
      .envelope = {}, .fds = FdsOf(memory_.Share(disk)), .target = key.target};
  engine::v1::KeepMemory& keep = *request.envelope.mutable_keep_memory();
  keep.mutable_memory()->set_disk(DiskName(disk));
  keep.mutable_memory()->set_size_bytes(size_bytes);
  if (KeptMemoryOf(intent.disk.spec) == KeptMemory::kDoubtLog) keep.mutable_memory()->set_fixed(true);
  engine.memory_requests.Begin(DiskId{disk});
  requests_.Ask(engine, controller, std::move(request),
                [this, key, disk, size_bytes](EngineView& answered, ControllerView& view,
                                              const engine::v1::Reply& reply) {
                  OnMemoryKept(answered, view, key, disk, size_bytes, FromEngine(reply));
                });
}

void AttachmentRequests::OnMemoryKept(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                                      const std::string& disk, uint64_t size_bytes, const Status& kept) {
  engine.memory_requests.End(DiskId{disk});
  const Status status = kept.ok() ? context_.state.disks().RecordKept(disk, engine.info.id, true) : kept;
  if (status.ok()) {
    engine.memories[disk] = size_bytes;
    memory_.SetUsed(disk);
  } else {
    spdlog::warn("{}: memory not shared with {}: {}; tried again", DiskName(disk), EngineName(engine.info.id),
                 status.error().message);
    requests_.FailAttachment(engine, view, key, status);
  }
  for (const std::string& other : context_.state.disks().ControllersWith(disk)) {
    if (other != key.controller) reconcile_.Controller(other);
  }
}

}  // namespace cleat::control
