// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/context/status_reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/reconcile/context/unclaimed.h"

namespace cleat::control {
namespace {

constexpr uint64_t kRecountNs = 100 * kNsPerMs;
constexpr size_t kNamedMax = 3;        // in a message
constexpr int kUnclaimedListMax = 16;  // in an engine's status

}  // namespace

void StatusReporter::ReportEngine(const EngineInfo& info, bool connected, const std::string& message) {
  v1::EngineStatus status;
  status.set_connected(connected);
  const v1::EngineState absent =
      context_.engines.IsDead(info.id) ? v1::ENGINE_STATE_ENDED : v1::ENGINE_STATE_NOT_CONNECTED;
  status.set_state(connected ? v1::ENGINE_STATE_CONNECTED : absent);
  status.set_message(message);
  status.set_version(info.version);
  status.set_incarnation(info.incarnation);
  status.set_protocol(info.protocol);
  status.set_reactors(info.reactors);
  status.set_controllers_max(info.controllers_max);
  if (!info.stands_by_for.empty()) status.set_stands_by_for(EngineName(info.stands_by_for));
  const EngineView* engine = std::as_const(context_.engines).Find(info.peer);
  if (engine != nullptr && connected) {
    if (engine->ceph.clients_total() > 0 || engine->ceph.clusters_size() > 0)
      *status.mutable_ceph() = engine->ceph;
    status.set_standing_by(engine->standing_by);
    const std::string unknown = NoteUnclaimed(*engine, status);
    if (message.empty()) status.set_message(engine->waits_for.empty() ? unknown : engine->waits_for);
    if (!engine->not_answering.empty()) NoteNotAnswering(*engine, status);
  }
  context_.state.engines().Report(info.id, status);
}

void StatusReporter::NoteNotAnswering(const EngineView& engine, v1::EngineStatus& status) {
  status.set_state(v1::ENGINE_STATE_NOT_ANSWERING);
  status.set_message(engine.not_answering);
  status.mutable_not_answering_since()->set_seconds(static_cast<int64_t>(engine.not_answering_since_s));
}

std::string StatusReporter::NoteUnclaimed(const EngineView& engine, v1::EngineStatus& status) {
  status.set_left_alone_total(static_cast<uint32_t>(engine.unclaimed.size()));
  std::vector<std::string> unknown;
  for (const std::string& controller : engine.unclaimed) {
    if (status.left_alone_size() < kUnclaimedListMax) status.add_left_alone(ControllerName(controller));
    if (!context_.state.controllers().IntentOf(controller).exists)
      unknown.push_back(ControllerName(controller));
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

void StatusReporter::ReportInventory(const EngineView& engine, const engine::v1::Inventory& inventory) {
  HostState& state = context_.state;
  const std::string& name = engine.info.id;
  for (const auto& status : inventory.controllers()) {
    if (const auto id = ParseControllerName(status.controller().name()); id.ok())
      state.controllers().Report(name, *id, FromEngine(status));
  }
  for (const auto& status : inventory.attachments()) {
    const engine::v1::Attachment& attachment = status.attachment();
    if (const auto id = ParseControllerName(attachment.controller()); id.ok())
      state.attachments().Report(name, {*id, attachment.target(), attachment.revision()}, ReportOf(status));
  }
  for (const std::string& id : state.clusters().On(name)) {
    const auto known = engine.clusters.find(id);
    std::optional<ClusterReport> report;
    if (known != engine.clusters.end()) report = ClusterReport{.spec_revision = known->second};
    state.clusters().Report(name, id, report);
  }
  for (const std::string& id : state.groups().On(name)) {
    const auto known = engine.groups.find(id);
    std::optional<GroupReport> report;
    if (known != engine.groups.end())
      report = GroupReport{.limits_revision = known->second.limits().revision()};
    state.groups().Report(name, id, report);
  }
}

void StatusReporter::ReportView(const EngineView& engine, const std::string& controller) {
  const ControllerView* view = engine.FindController(controller);
  if (view == nullptr) return;
  if (view->actual)
    context_.state.controllers().Report(engine.info.id, controller, StatusOf(engine, controller, *view));
  for (const auto& [target, status] : view->attachments) {
    context_.state.attachments().Report(engine.info.id, {controller, target, status.attachment().revision()},
                                        ReportOf(status));
  }
}

void StatusReporter::ReportUnknown(const std::string& engine, const std::string& controller) {
  ReportPending(engine, controller,
                context_.engines.IsDead(engine)
                    ? fmt::format("{} has ended: start it again", EngineName(engine))
                    : fmt::format("{} is not connected (it may still be serving)", EngineName(engine)));
}

void StatusReporter::ReportPending(const std::string& engine, const std::string& controller,
                                   const std::string& why) {
  v1::ControllerStatus status;
  status.set_state(v1::CONTROLLER_STATE_PENDING);
  status.set_message(why);
  context_.state.controllers().Report(engine, controller, status);
  for (const AttachmentIntent& attachment : context_.state.controllers().IntentOf(controller).attachments) {
    context_.state.attachments().Report(engine, {controller, attachment.row.spec.target(), 0},
                                        {.state = v1::ATTACHMENT_STATE_PENDING, .message = why});
  }
}

void StatusReporter::ReportAttachments(const EngineView& engine, const std::string& disk,
                                       const std::string& message) {
  for (const auto& [controller, view] : engine.controllers) {
    for (const auto& [target, actual] : view.attachments) {
      const engine::v1::Attachment& attachment = actual.attachment();
      if (!IsOpen(actual.state()) || attachment.disk().name() != DiskName(disk)) continue;
      AttachmentReport report = ReportOf(actual);
      report.message = message;
      context_.state.attachments().Report(engine.info.id, {controller, target, attachment.revision()},
                                          report);
    }
  }
}

uint64_t StatusReporter::CountStandbys(uint64_t now_ns) {
  auto& engines = context_.engines.all();
  const bool wanted =
      std::any_of(engines.begin(), engines.end(), [](const auto& e) { return e.second.recount; });
  if (!wanted) return RetryQueue::kNever;
  if (now_ns < recount_ns_) return recount_ns_;
  recount_ns_ = now_ns + kRecountNs;
  for (auto& [peer, engine] : engines) {
    if (!std::exchange(engine.recount, false) || engine.foreign) continue;
    const auto count =
        std::count_if(engine.controllers.begin(), engine.controllers.end(), [](const auto& controller) {
          return StandsBy(controller.second) && !controller.second.targets.AnyBusy();
        });
    const bool unclaimed_changed =
        std::exchange(engine.unclaimed_reported, engine.unclaimed.size()) != engine.unclaimed.size();
    if (std::exchange(engine.standing_by, static_cast<uint32_t>(count)) != count || unclaimed_changed)
      ReportEngine(engine.info, true, "");
  }
  return RetryQueue::kNever;
}

}  // namespace cleat::control
