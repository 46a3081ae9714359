// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/controllers/controller_reconciler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"
#include "control/validate/backends.h"
#include "control/validate/spec_rules.h"

namespace cleat::control {
namespace {

// What the step is about: the controller, or one of its attachments, which may be on its way out.
std::string ObjectOf(const std::string& controller, const ControllerIntent& intent, const Step& step) {
  if (step.intent != nullptr) return AttachmentName(controller, step.intent->row.id);
  if (step.kind != Step::Kind::kDetach) return ControllerName(controller);
  const auto found = std::find_if(
      intent.attachments.begin(), intent.attachments.end(),
      [&](const AttachmentIntent& attachment) { return attachment.row.spec.target() == step.target; });
  return found == intent.attachments.end() ? ControllerName(controller)
                                           : AttachmentName(controller, found->row.id);
}

// Why an engine of that protocol can't be given the controller, as far as it is an export. Empty: it can. Without any address left that it
// knows, it would refuse what it is told.
std::string WhyNotExported(const v1::ControllerSpec& spec, uint32_t protocol) {
  if (!spec.has_exported() || protocol >= kProtocolRdma) return {};
  if (protocol < kProtocolExports)
    return fmt::format("can't export disks over NVMe/TCP, which takes protocol {}", kProtocolExports);
  if (!std::ranges::all_of(spec.exported().addresses(), IsOverRdma)) return {};
  return fmt::format("can listen at no address of this export: all are over RDMA, which takes protocol {}",
                     kProtocolRdma);
}

}  // namespace

// ---- Reconciling a controller in one engine ----

void ControllerReconciler::ReconcileOn(EngineView& engine, const std::string& controller) {
  if (engine.foreign || parts_.moves.Holds(engine, controller)) return;
  const log::RequestScope request(RequestFor(engine, ControllerName(controller), controller));
  ControllerIntent intent = context_.state.controllers().IntentOf(controller);
  if (parts_.unclaimed.LeaveAlone(engine, controller, intent)) return;
  RecordNextDisk(engine, controller, intent);
  const bool ours =
      intent.exists && (intent.row.engine == engine.info.id || intent.prepared_on.contains(engine.info.id));
  if (!ours && !engine.controllers.contains(controller)) return;
  ControllerView& view = engine.controllers[controller];
  if (view.request.busy()) return;
  if (parts_.recovery.Adopt(engine, controller, view, intent)) return;
  const bool own = intent.exists && intent.row.engine == engine.info.id;
  if (own && parts_.recovery.MayBeElsewhere(engine, intent.row, view)) return;
  for (const Step& step : PlanSteps(intent, engine, view, parts_.memory, context_.now_ns())) {
    if (!Execute(engine, controller, view, intent, step)) return;
  }
  if (!ours && !view.actual && view.attachments.empty() && !view.targets.AnyBusy())
    engine.controllers.erase(controller);
}

// An engine to which the controller is being moved prepares it for the move.
std::string ControllerReconciler::RequestFor(const EngineView& engine, const std::string& object,
                                             const std::string& controller) const {
  const Move* const move = parts_.moves.Find(controller);
  if (move != nullptr && move->to == engine.info.id) return move->asked_by.request;
  return context_.LastRequest(object);
}

void ControllerReconciler::RecordNextDisk(const EngineView& engine, const std::string& controller,
                                          ControllerIntent& intent) {
  const ControllerView* known = engine.FindController(controller);
  if (known == nullptr) return;
  const DiskIdentity next = NextDiskOf(intent, engine, *known);
  if (!next.known()) return;
  context_.requests.RetryLater(context_.state.controllers().ReportNextDisk(engine.info.id, controller, next),
                               ControllerId{controller});
  intent = context_.state.controllers().IntentOf(controller);
}

void ControllerReconciler::ReconcileStandbys() {
  std::vector<std::string> waiting;
  for (const auto& [peer, engine] : context_.engines.all()) {
    for (const auto& [controller, view] : engine.controllers) {
      if (StandsBy(view) && context_.state.controllers().IntentOf(controller).row.engine == engine.info.id)
        waiting.push_back(controller);
    }
  }
  for (const std::string& controller : waiting) reconcile_.Controller(controller);
}

void ControllerReconciler::EndDeletionsOfDead(const std::string& controller) {
  const ControllerIntent intent = context_.state.controllers().IntentOf(controller);
  if (!intent.exists || !context_.engines.IsDead(intent.row.engine) || parts_.moves.Has(controller)) return;
  HostState& state = context_.state;
  for (const AttachmentIntent& attachment : intent.attachments) {
    if (!attachment.row.deleting) continue;
    if (context_.engines.IsAnywhere(controller, attachment.row.spec.target())) continue;
    context_.requests.RetryLater(state.attachments().Forget(controller, attachment.row.id),
                                 ControllerId{controller});
  }
  if (intent.row.deleting && !context_.engines.IsAnywhere(controller, std::nullopt))
    context_.requests.RetryLater(state.controllers().Forget(controller), ControllerId{controller});
}

// ---- Status events ----

void ControllerReconciler::OnStatus(EngineView& engine, const engine::v1::ControllerStatus& status) {
  const auto id = ParseControllerName(status.controller().name());
  if (!id.ok()) return;
  ControllerView& view = engine.controllers[*id];
  view.actual = status;
  engine.recount = true;
  // During a move the status stays as it was: a pause of some milliseconds is not to be seen.
  if (!parts_.moves.Has(*id))
    context_.state.controllers().Report(engine.info.id, *id, StatusOf(engine, *id, view));
  reconcile_.Controller(*id);
}

void ControllerReconciler::OnStatus(EngineView& engine, const engine::v1::AttachmentStatus& status) {
  const auto id = ParseControllerName(status.attachment().controller());
  if (!id.ok()) return;
  ControllerView& view = engine.controllers[*id];
  const uint32_t target = status.attachment().target();
  const bool busy = view.targets.IsBusy(target);
  const bool failed = status.state() == engine::v1::ATTACHMENT_STATE_FAILED;
  // The result of an Attach is in its reply; between two attempts the last failure says more than this event.
  const bool retrying = busy && view.targets.Failures(target) != 0;
  view.attachments[target] = status;
  if (!busy && failed) context_.requests.Fail(view.targets, target, ControllerId{*id});
  const bool moving = parts_.moves.Has(*id) && status.state() == engine::v1::ATTACHMENT_STATE_STANDBY;
  if (!moving && (!retrying || IsOpen(status.state()))) {
    AttachmentReport report = ReportOf(status);
    if (failed) report.failures = std::max(view.targets.Failures(target), 1U);
    context_.state.attachments().Report(engine.info.id, {*id, target, status.attachment().revision()},
                                        report);
  }
  reconcile_.ControllerOn(engine, *id);
  if (const auto disk = ParseDiskName(status.attachment().disk().name()); disk.ok()) {
    reconcile_.DiskSize(*disk);
    reconcile_.DiskLimits(*disk);
  }
}

void ControllerReconciler::OnGone(EngineView& engine, const engine::v1::AttachmentKey& gone) {
  const auto id = ParseControllerName(gone.controller());
  if (!id.ok()) return;
  engine.controllers[*id].attachments.erase(gone.target());
  reconcile_.Controller(*id);
}

void ControllerReconciler::OnGone(EngineView& engine, const std::string& name) {
  const auto id = ParseControllerName(name);
  if (!id.ok()) return;
  ControllerView& view = engine.controllers[*id];
  const std::string group = GroupOf(view);
  view.actual.reset();
  reconcile_.Controller(*id);
  if (!group.empty()) reconcile_.GroupOn(engine, group);
}

// ---- Steps ----

bool ControllerReconciler::Execute(EngineView& engine, const std::string& controller, ControllerView& view,
                                   const ControllerIntent& intent, const Step& step) {
  const log::RequestScope request(RequestFor(engine, ObjectOf(controller, intent, step), controller));
  switch (step.kind) {
    case Step::Kind::kForgetAttachment:
      ForgetAttachment(engine, view, controller, step);
      return true;
    case Step::Kind::kForgetController:
      ForgetController(engine, controller);
      return false;
    case Step::Kind::kDetach:
      parts_.attachments.Detach(engine, controller, step.target);
      return true;
    case Step::Kind::kDeleteController:
      AskDelete(engine, controller);
      return false;
    case Step::Kind::kWaitForGroup:
      reconcile_.GroupOn(engine, *ParseGroupName(intent.row.spec.group()));
      return false;
    case Step::Kind::kWaitForCluster:
      WaitForCluster(engine, view, controller, step);
      return true;
    case Step::Kind::kPutController:
      AskPut(engine, controller, intent, step.standby);
      return false;
    case Step::Kind::kKeepMemory:
    case Step::Kind::kAttach:
      AttachOrWait(engine, controller, step);
      return true;
    case Step::Kind::kServeController:
      AskServe(engine, controller);
      return false;
    case Step::Kind::kTakeController:
      parts_.moves.AskTake(engine, controller, {});
      return false;
    case Step::Kind::kWaitForDisk:
      WaitForDisk(engine, controller, step);
      return true;
  }
  return true;
}

void ControllerReconciler::ForgetAttachment(const EngineView& engine, ControllerView& view,
                                            const std::string& controller, const Step& step) {
  if (context_.engines.IsElsewhere(engine, controller, step.target)) return;
  view.targets.Done(step.target);
  view.unproven.erase(step.target);
  context_.requests.RetryLater(context_.state.attachments().Forget(controller, step.intent->row.id),
                               ControllerId{controller});
}

void ControllerReconciler::ForgetController(EngineView& engine, const std::string& controller) {
  if (context_.engines.IsElsewhere(engine, controller, std::nullopt)) return;
  const Status status = context_.state.controllers().Forget(controller);
  context_.requests.RetryLater(status, ControllerId{controller});
  if (status.ok()) engine.controllers.erase(controller);
}

void ControllerReconciler::WaitForCluster(EngineView& engine, const ControllerView& view,
                                          const std::string& controller, const Step& step) {
  const std::string& cluster = ClusterOf(step.intent->disk.spec);
  if (view.targets.Failures(step.target) == 0) {
    context_.state.attachments().Report(engine.info.id, {controller, step.target, step.intent->row.revision},
                                        {.state = v1::ATTACHMENT_STATE_PENDING,
                                         .message = fmt::format("waits until its engine knows {}", cluster)});
  }
  reconcile_.ClusterOn(engine, *ParseClusterName(cluster));
}

void ControllerReconciler::WaitForDisk(const EngineView& engine, const std::string& controller,
                                       const Step& step) {
  const bool lost = IsLost(*step.intent);
  context_.state.attachments().Report(
      engine.info.id, {controller, step.target, step.intent->row.revision},
      {.state = lost ? v1::ATTACHMENT_STATE_FAILED : v1::ATTACHMENT_STATE_PENDING,
       .message = step.intent->disk_status.message(),
       .failures = lost ? 1U : 0U});
}

void ControllerReconciler::AttachOrWait(EngineView& engine, const std::string& controller, const Step& step) {
  const AttachmentIntent& intent = *step.intent;
  if (parts_.unclaimed.MakeWait(engine, controller, intent)) return;
  if (step.kind == Step::Kind::kKeepMemory) return parts_.attachments.KeepMemory(engine, controller, intent);
  // Memory that the engine has and the restored store knows nothing of: cleatd is to have it as well.
  if (context_.IsRestored() && KeepsMemory(intent.disk.spec) && !intent.disk.reached_engine)
    reconcile_.DiskMemory(intent.disk.id);
  parts_.attachments.Attach(engine, controller, intent);
}

void ControllerReconciler::AskPut(EngineView& engine, const std::string& controller,
                                  const ControllerIntent& intent, bool standby) {
  if (const std::string why = WhyNotExported(intent.row.spec, engine.info.protocol); !why.empty())
    return RefuseExport(engine, controller, why);
  ControllerRequests::Request request;
  engine::v1::PutController& put = *request.envelope.mutable_put_controller();
  *put.mutable_controller() = ToEngine(intent, engine.info.protocol);
  if (standby) put.set_standby(true);
  const bool existed = engine.controllers[controller].actual.has_value();
  parts_.requests.Ask(engine, controller, std::move(request),
                      [this, standby, existed, controller, told = put.controller()](
                          EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
                        const Status status = FromEngine(reply);
                        if (status.ok()) return OnPut(answered, view, controller, told, standby);
                        // A controller that the engine already had stays as it was: the request only told it its last disk, or its hosts.
                        if (!existed) view.actual.reset();
                        parts_.requests.FailController(answered, view, controller, "PutController", status);
                      });
}

void ControllerReconciler::RefuseExport(EngineView& engine, const std::string& controller,
                                        const std::string& why) {
  ControllerView& view = engine.controllers[controller];
  view.last_error = fmt::format(
      "{} (version {}, protocol {}) {}: upgrade the engine (cleatctl engine upgrade), or stop it and start "
      "the new one under the same name (--name {})",
      EngineName(engine.info.id), engine.info.version, engine.info.protocol, why, engine.info.id);
  parts_.requests.FailController(engine, view, controller, "PutController",
                                 Error(ErrorCode::kFailedPrecondition, view.last_error));
}

void ControllerReconciler::OnPut(EngineView& engine, ControllerView& view, const std::string& controller,
                                 const engine::v1::Controller& put, bool standby) {
  view.request.Done();
  // Usually an event has told the controller's state already.
  if (!view.actual) {
    view.actual.emplace().set_state(standby ? engine::v1::CONTROLLER_STATE_STANDBY
                                            : engine::v1::CONTROLLER_STATE_IDLE);
  }
  *view.actual->mutable_controller() = put;
  if (put.has_exported()) {  // as in reports
    view.actual->mutable_controller()->mutable_exported()->clear_hosts();
    view.actual->mutable_controller()->mutable_exported()->clear_secured_hosts();
  }
  context_.state.controllers().Report(engine.info.id, controller, FromEngine(*view.actual));
}

void ControllerReconciler::AskServe(EngineView& engine, const std::string& controller) {
  ControllerRequests::Request request;
  request.envelope.mutable_serve_controller()->set_name(ControllerName(controller));
  parts_.requests.Ask(
      engine, controller, std::move(request),
      [this, controller](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
        const Status status = FromEngine(reply);
        if (!status.ok())
          return parts_.requests.FailController(answered, view, controller, "ServeController", status);
        view.request.Done();
        // Usually an event has told the controller's state already.
        if (view.actual && view.actual->state() == engine::v1::CONTROLLER_STATE_IDLE)
          view.actual->set_state(engine::v1::CONTROLLER_STATE_CONNECTING);
      });
}

void ControllerReconciler::AskDelete(EngineView& engine, const std::string& controller) {
  ControllerRequests::Request request;
  request.envelope.mutable_delete_controller()->set_name(ControllerName(controller));
  parts_.requests.Ask(
      engine, controller, std::move(request),
      [this, controller](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply) {
        if (const Status status = FromEngine(reply); status.ok()) {
          OnDeleted(answered, view);
        } else {
          OnNotDeleted(answered, view, controller, status);
        }
      });
}

void ControllerReconciler::OnDeleted(EngineView& engine, ControllerView& view) {
  const std::string group = GroupOf(view);
  view.actual.reset();
  view.request.Done();
  view.take_failed_since_ns = 0;
  view.take_given_up = false;
  if (!group.empty()) reconcile_.GroupOn(engine, group);
}

void ControllerReconciler::OnNotDeleted(EngineView& engine, ControllerView& view,
                                        const std::string& controller, const Status& why) {
  const double wait_s = context_.requests.Fail(view.request, ControllerId{controller});
  spdlog::warn("{}: DeleteController failed on {}: {}; tried again in {:.3g} s", ControllerName(controller),
               EngineName(engine.info.id), why.error().message, wait_s);
  v1::ControllerStatus report;
  report.set_state(v1::CONTROLLER_STATE_DELETING);
  report.set_message(fmt::format("{} (tried again in {:.3g} s)", why.error().message, wait_s));
  context_.state.controllers().Report(engine.info.id, controller, report);
}

}  // namespace cleat::control
