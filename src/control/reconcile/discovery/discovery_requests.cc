// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/discovery/discovery_requests.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "base/log_request.h"
#include "control/link/translate.h"
#include "control/model/names.h"
#include "control/model/reasons.h"
#include "control/validate/spec_rules.h"
#include "control/validate/spec_secrets.h"

namespace cleat::control {
namespace {

// The version of the protocol that has what is asked. An older engine would read over secrets, and connect without; and takes no address over
// RDMA for one.
uint32_t ProtocolFor(const DiscoveryQuestion& question) {
  if (IsOverRdma(question.request().address())) return kProtocolRdmaDisks;
  return question.watches() || HasSecrets(question.request()) ? kProtocolWatching : kProtocolDiscovery;
}

// Any engine of that protocol can ask. One that answers is preferred: a call waits.
EngineView* FindAsker(ConnectedEngines& engines, uint32_t protocol) {
  EngineView* found = nullptr;
  for (auto& [peer, engine] : engines.all()) {
    if (engine.foreign || engine.info.protocol < protocol) continue;
    if (engine.not_answering.empty()) return &engine;
    if (found == nullptr) found = &engine;
  }
  return found;
}

std::string WhatIsAsked(const DiscoveryQuestion& question) {
  if (question.watches()) return "watch";
  return HasSecrets(question.request()) ? "use secrets with" : "ask";
}

Error NobodyCanAsk(const ConnectedEngines& engines, const DiscoveryQuestion& question) {
  const std::string& service = question.request().address();
  const std::string what = WhatIsAsked(question);
  for (const auto& [peer, engine] : engines.all()) {
    if (engine.foreign) continue;
    return RefuseFor(
        EngineName(engine.info.id), v1::REASON_ENGINE_TOO_OLD,
        fmt::format(
            "{} (version {}, protocol {}) can't {} the discovery service at {}, which takes protocol {}: "
            "upgrade the engine (cleatctl engine upgrade), or stop it and start the new one under the same "
            "name (--name {})",
            EngineName(engine.info.id), engine.info.version, engine.info.protocol, what, service,
            ProtocolFor(question), engine.info.id));
  }
  return Refuse(
      v1::REASON_ENGINE_NOT_CONNECTED,
      fmt::format("no engine is connected that could {} the discovery service at {}: start one, then repeat",
                  what, service));
}

// What can be done about it, by the engine's code.
std::string NextStep(ErrorCode code, const DiscoveryQuestion& question) {
  const v1::DiscoverSubsystemsRequest& request = question.request();
  if (question.is_told() && code == ErrorCode::kUnimplemented)
    return "discover again to see what has changed";
  if (question.is_told()) return "see that the service is there, and watch it again";
  switch (code) {
    case ErrorCode::kPermissionDenied:
      return fmt::format("have the service let in host {} with the identifier {}, {}, or give another host",
                         request.host_nqn(), request.host_id(),
                         HasSecrets(request)
                             ? "and see that both sides have the same secrets"
                             : "or give the secrets that it wants (--dhchap-secret-file, --tls-psk-file)");
    case ErrorCode::kUnavailable:
    case ErrorCode::kDeadlineExceeded:
      return fmt::format(
          "see that a discovery service listens there over {}, mostly at port 8009 or 4420, and that this "
          "host "
          "reaches it",
          IsOverRdma(request.address()) ? "NVMe/RDMA" : "NVMe/TCP");
    case ErrorCode::kCancelled:
      return "the engine shuts down: repeat";
    default:
      return "see to the service, or give the subsystem's addresses without it";
  }
}

Error Failed(const EngineView& engine, const DiscoveryQuestion& question, const Error& error) {
  const std::string service = fmt::format("the discovery service at {}", question.request().address());
  std::string why = error.message;
  if (why.starts_with(service + ": ")) why.erase(0, service.size() + 2);
  const std::string asker = EngineName(engine.info.id);
  const std::string outcome = question.is_told() ? fmt::format("is not watched by {} any more", asker)
                                                 : fmt::format("can't be read by {}", asker);
  return Refuse(v1::REASON_DISCOVERY_FAILED,
                fmt::format("{} {}: {}; {}", service, outcome, why, NextStep(error.code, question)));
}

}  // namespace

void DiscoveryRequests::AskAll() {
  StopAbandoned();
  for (const auto& question : context_.state.discoveries().TakeAsked()) Ask(question);
}

void DiscoveryRequests::Ask(const std::shared_ptr<const DiscoveryQuestion>& question) {
  if (question->has_left()) return;
  EngineView* const asker = FindAsker(context_.engines, ProtocolFor(*question));
  if (asker == nullptr) return question->Give(NobodyCanAsk(context_.engines, *question));
  engine::v1::Envelope envelope;
  const auto timeout_ms = static_cast<uint32_t>(std::chrono::milliseconds(Discoveries::kServiceTime).count());
  *envelope.mutable_discover() = ToEngine(question->request(), timeout_ms, question->watches());
  const log::RequestScope scope(question->request_id());
  const uint64_t request =
      context_.requests.Ask(*asker, std::move(envelope), {},
                            [question](EngineView& engine, const engine::v1::Reply& reply, const UniqueFd&) {
                              const Status status = FromEngine(reply);
                              if (!status.ok())
                                return question->Give(Failed(engine, *question, status.error()));
                              auto log = FromEngine(reply.discovery());
                              if (reply.more() && question->watches()) return question->Tell(std::move(log));
                              question->Give(std::move(log));
                            });
  asked_.push_back({.question = question, .engine = asker->info.peer, .request = request});
}

// An engine that is too old to be told ends by itself, as it does not watch.
void DiscoveryRequests::StopAbandoned() {
  std::erase_if(asked_, [this](const Asked& asked) {
    const auto question = asked.question.lock();
    if (question == nullptr) return true;
    if (!question->has_left()) return false;
    EngineView* const engine = context_.engines.Find(asked.engine);
    if (engine == nullptr || engine->info.protocol < kProtocolWatching) return true;
    engine::v1::Envelope envelope;
    envelope.mutable_stop_discover()->set_discover(asked.request);
    context_.requests.Ask(*engine, std::move(envelope), {},
                          [](EngineView&, const engine::v1::Reply&, const UniqueFd&) {});
    return true;
  });
}

}  // namespace cleat::control
