// SPDX-License-Identifier: Apache-2.0
// Controllers and their disks: looks at one in one engine, and asks for what is missing or too many.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/names.h"
#include "control/reconcile/reconciler.h"
#include "control/translate.h"

namespace cleat::control {
namespace {

// One that knows nothing of migrations would take the disk from the host whose guest has it.
std::string TooOldForIncoming(const EngineInfo& engine) {
  return fmt::format(
      "{} (version {}, protocol {}) can't attach the disk of a VM that migrates here, which takes protocol "
      "{}: "
      "stop it and start the new engine under the same name (--name {})",
      EngineName(engine.id), engine.version, engine.protocol, kProtocolMoves, engine.id);
}

}  // namespace

// Its move also when no engine is connected: time may be over.
void Reconciler::Look(const std::string& controller) {
  for (auto& [peer, engine] : engines_) LookAtSide(engine, controller);
  LookAtMove(controller);
}

void Reconciler::LookAt(EngineView& engine, const std::string& controller) {
  LookAtSide(engine, controller);
  LookAtMove(controller);
}

void Reconciler::LookAtSide(EngineView& engine, const std::string& controller) {
  if (!engine.foreign && !IsHeld(engine, controller)) LookAtSteps(engine, controller);
}

void Reconciler::LookAtSteps(EngineView& engine, const std::string& controller) {
  ControllerIntent intent = state_.IntentOf(controller);
  if (LeaveAlone(engine, controller, intent)) return;
  if (const auto known = engine.controllers.find(controller); known != engine.controllers.end()) {
    if (const DiskIdentity next = NextDiskOf(intent, engine, known->second); next.known()) {
      Later(state_.ReportNextDisk(engine.info.id, controller, next), {.controller = controller, .disk = {}});
      intent = state_.IntentOf(controller);
    }
  }
  const bool ours =
      intent.exists && (intent.row.engine == engine.info.id || intent.prepared_on.contains(engine.info.id));
  if (!ours && !engine.controllers.contains(controller)) return;
  ControllerView& view = engine.controllers[controller];
  if (view.busy) return;
  if (Adopt(engine, controller, view, intent)) return;
  if (intent.exists && intent.row.engine == engine.info.id && MayBeElsewhere(engine, intent.row, view))
    return;
  for (const Step& step : PlanSteps(intent, engine, view, memory_, clock_.NowNs())) {
    if (!Take(engine, controller, view, intent, step)) return;
  }
  if (!ours && !view.actual && view.attachments.empty()) engine.controllers.erase(controller);
}

bool Reconciler::Take(EngineView& engine, const std::string& controller, ControllerView& view,
                      const ControllerIntent& intent, const Step& step) {
  switch (step.kind) {
    case Step::Kind::kForgetAttachment:
      if (IsElsewhere(engine, controller, step.target)) return true;
      view.attachment_backoffs.erase(step.target);
      view.unproven.erase(step.target);
      Later(state_.ForgetAttachment(controller, step.intent->row.id), {.controller = controller, .disk = {}});
      return true;
    case Step::Kind::kForgetController: {
      if (IsElsewhere(engine, controller, std::nullopt)) return false;
      const Status status = state_.ForgetController(controller);
      Later(status, {.controller = controller, .disk = {}});
      if (status.ok()) engine.controllers.erase(controller);
      return false;
    }
    case Step::Kind::kDetach:
      AskDetach(engine, controller, step.target);
      return true;
    case Step::Kind::kDeleteController:
      AskDeleteController(engine, controller);
      return false;
    case Step::Kind::kWaitForGroup:
      LookAtGroup(engine, *ParseGroupName(intent.row.spec.group()));
      return false;
    case Step::Kind::kWaitForCluster:
      if (!view.attachment_backoffs.contains(step.target)) {
        state_.ReportAttachment(engine.info.id, {controller, step.target, step.intent->row.revision},
                                {.state = v1::ATTACHMENT_STATE_PENDING,
                                 .message = fmt::format("waits until its engine knows {}",
                                                        step.intent->disk.spec.rbd().cluster())});
      }
      LookAtCluster(engine, *ParseClusterName(step.intent->disk.spec.rbd().cluster()));
      return true;
    case Step::Kind::kPutController:
      AskPutController(engine, controller, intent, step.standby);
      return false;
    case Step::Kind::kKeepMemory:
      if (WaitsForHolder(engine, controller, *step.intent)) return true;
      AskKeepMemory(engine, controller, *step.intent);
      return true;
    case Step::Kind::kAttach:
      if (WaitsForHolder(engine, controller, *step.intent)) return true;
      // Memory that the engine has and the restored store knows nothing of: cleatd is to have it as well.
      if (!lost_.empty() && step.intent->disk.spec.has_memory() && !step.intent->disk.reached_engine)
        LookAtMemory(step.intent->disk.id);
      AskAttach(engine, controller, *step.intent);
      return true;
    case Step::Kind::kServeController:
      AskServeController(engine, controller);
      return false;
    case Step::Kind::kTakeController:
      AskTake(engine, controller, std::nullopt, {});
      return false;
    case Step::Kind::kWaitForDisk: {
      const bool lost = step.intent->disk_status.state() == v1::DISK_STATE_LOST;
      state_.ReportAttachment(engine.info.id, {controller, step.target, step.intent->row.revision},
                              {.state = lost ? v1::ATTACHMENT_STATE_FAILED : v1::ATTACHMENT_STATE_PENDING,
                               .message = step.intent->disk_status.message(),
                               .failures = lost ? 1U : 0U});
      return true;
    }
  }
  return true;
}

void Reconciler::Later(const Status& status, Retry retry) {
  if (status.ok()) return;
  spdlog::error("{}", status.error().message);
  retries_.emplace(clock_.NowNs() + options_.retry_max_ns, std::move(retry));
}

void Reconciler::Ask(EngineView& engine, const std::string& controller, engine::v1::Envelope envelope,
                     UniqueFd fd, std::optional<uint32_t> target,
                     std::function<void(EngineView&, ControllerView&, const Status&)> done) {
  AskFor(
      engine, controller, std::move(envelope), std::move(fd), target,
      [done = std::move(done)](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
        done(answered, view, FromEngine(reply));
      });
}

void Reconciler::AskFor(EngineView& engine, const std::string& controller, engine::v1::Envelope envelope,
                        UniqueFd fd, std::optional<uint32_t> target,
                        std::function<void(EngineView&, ControllerView&, const engine::v1::Reply&)> done) {
  ControllerView& asked = engine.controllers[controller];
  if (target) {
    asked.targets_busy.insert(*target);
  } else {
    asked.busy = true;
  }
  const PeerId peer = engine.info.peer;
  link_.Request(peer, std::move(envelope), std::move(fd),
                [this, peer, controller, target, done = std::move(done)](const engine::v1::Reply& reply,
                                                                         const UniqueFd&) {
                  EngineView& answered = *Find(peer);
                  ControllerView& view = answered.controllers[controller];
                  if (target) {
                    view.targets_busy.erase(*target);
                  } else {
                    view.busy = false;
                  }
                  if (reply.ok()) {
                    answered.progress_ns = clock_.NowNs();
                    view.last_error.clear();
                  } else {
                    view.last_error = reply.message();
                  }
                  answered.recount = true;
                  done(answered, view, reply);
                  Look(controller);
                });
}

void Reconciler::AskDetach(EngineView& engine, const std::string& controller, uint32_t target) {
  engine::v1::Envelope envelope;
  envelope.mutable_detach()->set_controller(ControllerName(controller));
  envelope.mutable_detach()->set_target(target);
  Ask(engine, controller, std::move(envelope), {}, target,
      [this, controller, target](EngineView& answered, ControllerView& view, const Status& status) {
        if (status.ok()) {
          const auto disk = ParseDiskName(view.attachments[target].attachment().disk().name());
          view.attachments.erase(target);
          if (disk.ok()) LookAtMemory(*disk);  // it may not have to be held here any more
          if (disk.ok()) LookAfterRelease(answered, *disk);
          if (const auto it = view.attachment_backoffs.find(target); it != view.attachment_backoffs.end()) {
            it->second.not_before_ns = 0;
          }
          return;
        }
        const double wait_s = Fail(view.attachment_backoffs[target], {.controller = controller, .disk = {}});
        spdlog::warn("{}: target {} can't be detached: {}", ControllerName(controller), target,
                     status.error().message);
        state_.ReportAttachment(
            answered.info.id, {controller, target, 0},
            {.state = v1::ATTACHMENT_STATE_DETACHING,
             .message = fmt::format("{} (tried again in {:.3g} s)", status.error().message, wait_s),
             .failures = view.attachment_backoffs[target].failures});
      });
}

void Reconciler::AskDeleteController(EngineView& engine, const std::string& controller) {
  engine::v1::Envelope envelope;
  envelope.mutable_delete_controller()->set_name(ControllerName(controller));
  Ask(engine, controller, std::move(envelope), {}, std::nullopt,
      [this, controller](EngineView& answered, ControllerView& view, const Status& status) {
        if (status.ok()) {
          const std::string group = GroupOf(view);
          view.actual.reset();
          view.backoff = {};
          view.take_failed_since_ns = 0;
          view.take_given_up = false;
          if (!group.empty()) LookAtGroup(answered, group);
          return;
        }
        const double wait_s = Fail(view.backoff, {.controller = controller, .disk = {}});
        spdlog::warn("{} can't be deleted: {}", ControllerName(controller), status.error().message);
        v1::ControllerStatus report;
        report.set_state(v1::CONTROLLER_STATE_DELETING);
        report.set_message(fmt::format("{} (tried again in {:.3g} s)", status.error().message, wait_s));
        state_.ReportController(answered.info.id, controller, report);
      });
}

void Reconciler::AskPutController(EngineView& engine, const std::string& controller,
                                  const ControllerIntent& intent, bool standby) {
  engine::v1::Envelope envelope;
  *envelope.mutable_put_controller()->mutable_controller() = ToEngine(intent.row, engine.info.protocol);
  if (standby) envelope.mutable_put_controller()->set_standby(true);
  const bool existed = engine.controllers[controller].actual.has_value();
  Ask(engine, controller, std::move(envelope), {}, std::nullopt,
      [this, controller, standby, existed, row = intent.row](EngineView& answered, ControllerView& view,
                                                             const Status& status) {
        if (status.ok()) {
          view.backoff = {};
          // Usually an event told its state already.
          if (!view.actual) {
            view.actual.emplace().set_state(standby ? engine::v1::CONTROLLER_STATE_STANDBY
                                                    : engine::v1::CONTROLLER_STATE_IDLE);
          }
          *view.actual->mutable_controller() = ToEngine(row, answered.info.protocol);
          state_.ReportController(answered.info.id, controller, FromEngine(*view.actual));
          return;
        }
        // A controller that the engine already had stays as it was: the request only told it its last disk.
        if (!existed) view.actual.reset();
        FailController(answered, view, controller, existed ? "told its last disk" : "made", status);
      });
}

void Reconciler::AskServeController(EngineView& engine, const std::string& controller) {
  engine::v1::Envelope envelope;
  envelope.mutable_serve_controller()->set_name(ControllerName(controller));
  Ask(engine, controller, std::move(envelope), {}, std::nullopt,
      [this, controller](EngineView& answered, ControllerView& view, const Status& status) {
        if (status.ok()) {
          view.backoff = {};
          // Usually an event told its state already.
          if (view.actual && view.actual->state() == engine::v1::CONTROLLER_STATE_IDLE) {
            view.actual->set_state(engine::v1::CONTROLLER_STATE_CONNECTING);
          }
          return;
        }
        FailController(answered, view, controller, "served", status);
      });
}

void Reconciler::FailController(EngineView& engine, ControllerView& view, const std::string& controller,
                                const std::string& what, const Status& why) {
  const double wait_s = Fail(view.backoff, {.controller = controller, .disk = {}});
  spdlog::warn("{} can't be {}: {}", ControllerName(controller), what, why.error().message);
  v1::ControllerStatus report;
  report.set_state(v1::CONTROLLER_STATE_FAILED);
  report.set_failures(view.backoff.failures);
  report.set_message(fmt::format("{} (tried again in {:.3g} s)", why.error().message, wait_s));
  state_.ReportController(engine.info.id, controller, report);
}

void Reconciler::AskAttach(EngineView& engine, const std::string& controller,
                           const AttachmentIntent& intent) {
  engine::v1::Envelope envelope;
  *envelope.mutable_attach()->mutable_attachment() = ToEngine(intent, engine.info.protocol);
  const AttachmentKey key{controller, intent.row.spec.target(), intent.row.revision};
  if (envelope.attach().attachment().incoming() && engine.info.protocol < kProtocolMoves) {
    return FailAttachment(engine, engine.controllers[controller], key,
                          Error(ErrorCode::kFailedPrecondition, TooOldForIncoming(engine.info)));
  }
  if (!engine.controllers[controller].attachment_backoffs.contains(key.target)) {
    state_.ReportAttachment(engine.info.id, key, {.state = v1::ATTACHMENT_STATE_OPENING});
  }
  const engine::v1::Attachment attachment = envelope.attach().attachment();
  Ask(engine, controller, std::move(envelope), {}, key.target,
      [this, key, attachment](EngineView& answered, ControllerView& view, const Status& status) {
        const std::string name = fmt::format("{} at target {} of {}", attachment.disk().name(), key.target,
                                             attachment.controller());
        if (status.ok()) {
          engine::v1::AttachmentStatus& actual = view.attachments[key.target];
          // Usually an event told its state already. An incoming one may have more to tell by now.
          if (StandsBy(view)) {
            actual.set_state(engine::v1::ATTACHMENT_STATE_STANDBY);
          } else if (!IsOpen(actual.state()) || actual.attachment().revision() != attachment.revision()) {
            actual.set_state(attachment.incoming() ? engine::v1::ATTACHMENT_STATE_INCOMING
                                                   : engine::v1::ATTACHMENT_STATE_ACTIVE);
          }
          *actual.mutable_attachment() = attachment;
          view.attachment_backoffs.erase(key.target);
          view.unproven.erase(key.target);
          state_.ReportAttachment(answered.info.id, key, ReportOf(actual));
          spdlog::info("{} is open", name);
          // It may have grown meanwhile, and have other limits.
          LookAtSize(*ParseDiskName(attachment.disk().name()));
          return LookAtLimits(*ParseDiskName(attachment.disk().name()));
        }
        view.attachments.erase(key.target);  // an error leaves nothing behind
        if (status.error().code == ErrorCode::kUnavailable) {
          view.unproven.insert(key.target);
        } else {
          view.unproven.erase(key.target);
        }
        spdlog::warn("{} can't be opened: {}", name, status.error().message);
        FailAttachment(answered, view, key, status);
      });
}

void Reconciler::FailAttachment(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                                const Status& why) {
  Backoff& backoff = view.attachment_backoffs[key.target];
  const double wait_s = Fail(backoff, {.controller = key.controller, .disk = {}});
  state_.ReportAttachment(
      engine.info.id, key,
      {.state = v1::ATTACHMENT_STATE_FAILED,
       .message = fmt::format("{} (tried again in {:.3g} s)", why.error().message, wait_s),
       .failures = backoff.failures});
}

}  // namespace cleat::control
