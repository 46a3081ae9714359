// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/context/controller_requests.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "control/model/names.h"

namespace cleat::control {

void ControllerRequests::Ask(EngineView& engine, const std::string& controller, Request request, Done done) {
  AskForFd(
      engine, controller, std::move(request),
      [done = std::move(done)](EngineView& answered, ControllerView& view, const engine::v1::Reply& reply,
                               const UniqueFd&) { done(answered, view, reply); });
}

void ControllerRequests::AskForFd(EngineView& engine, const std::string& controller, Request request,
                                  DoneWithFd done) {
  ControllerView& asked = engine.controllers[controller];
  const std::optional<uint32_t> target = request.target;
  if (target) {
    asked.targets.Begin(*target);
  } else {
    asked.request.Begin();
  }
  context_.requests.Ask(engine, std::move(request.envelope), std::move(request.fds),
                        [this, controller, target, done = std::move(done)](
                            EngineView& answered, const engine::v1::Reply& reply, UniqueFd fd) {
                          ControllerView& view = answered.controllers[controller];
                          if (target) {
                            view.targets.End(*target);
                          } else {
                            view.request.End();
                          }
                          if (reply.ok()) {
                            answered.progress_ns = context_.now_ns();
                            view.last_error.clear();
                          } else {
                            view.last_error = reply.message();
                          }
                          answered.recount = true;
                          done(answered, view, reply, std::move(fd));
                          reconcile_.Controller(controller);
                        });
}

void ControllerRequests::FailController(EngineView& engine, ControllerView& view,
                                        const std::string& controller, const std::string& request,
                                        const Status& why) {
  const double wait_s = context_.requests.Fail(view.request, ControllerId{controller});
  spdlog::warn("{}: {} failed on {}: {}; tried again in {:.3g} s", ControllerName(controller), request,
               EngineName(engine.info.id), why.error().message, wait_s);
  v1::ControllerStatus report;
  report.set_state(v1::CONTROLLER_STATE_FAILED);
  report.set_failures(view.request.failures());
  report.set_message(fmt::format("{} (tried again in {:.3g} s)", why.error().message, wait_s));
  context_.state.controllers().Report(engine.info.id, controller, report);
}

void ControllerRequests::FailAttachment(EngineView& engine, ControllerView& view, const AttachmentKey& key,
                                        const Status& why) {
  const double wait_s = context_.requests.Fail(view.targets, key.target, ControllerId{key.controller});
  context_.state.attachments().Report(
      engine.info.id, key,
      {.state = v1::ATTACHMENT_STATE_FAILED,
       .message = fmt::format("{} (tried again in {:.3g} s)", why.error().message, wait_s),
       .failures = view.targets.Failures(key.target)});
}

}  // namespace cleat::control
