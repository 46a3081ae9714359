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

namespace cleat::control {
namespace {

// Any engine can ask. One that answers is preferred: a call waits.
EngineView* FindAsker(ConnectedEngines& engines) {
  EngineView* found = nullptr;
  for (auto& [peer, engine] : engines.all()) {
    if (engine.foreign || engine.info.protocol < kProtocolDiscovery) continue;
    if (engine.not_answering.empty()) return &engine;
    if (found == nullptr) found = &engine;
  }
  return found;
}

Error NobodyCanAsk(const ConnectedEngines& engines, const std::string& service) {
  for (const auto& [peer, engine] : engines.all()) {
    if (engine.foreign) continue;
    return RefuseFor(
        EngineName(engine.info.id), v1::REASON_ENGINE_TOO_OLD,
        fmt::format(
            "{} (version {}, protocol {}) can't ask the discovery service at {}, which takes protocol {}: "
            "upgrade the engine (cleatctl engine upgrade), or stop it and start the new one under the same "
            "name (--name {})",
            EngineName(engine.info.id), engine.info.version, engine.info.protocol, service,
            kProtocolDiscovery, engine.info.id));
  }
  return Refuse(
      v1::REASON_ENGINE_NOT_CONNECTED,
      fmt::format("no engine is connected that could ask the discovery service at {}: start one, then repeat",
                  service));
}

// What can be done about it, by the engine's code.
std::string NextStep(ErrorCode code, const v1::DiscoverSubsystemsRequest& request) {
  switch (code) {
    case ErrorCode::kPermissionDenied:
      return fmt::format(
          "have the service let in host {} with the identifier {}, without authentication, or give another "
          "host",
          request.host_nqn(), request.host_id());
    case ErrorCode::kUnavailable:
    case ErrorCode::kDeadlineExceeded:
      return "see that a discovery service listens there over NVMe/TCP, by default at port 8009, and that "
             "this "
             "host reaches it";
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
  return Refuse(v1::REASON_DISCOVERY_FAILED,
                fmt::format("{} can't be read by {}: {}; {}", service, EngineName(engine.info.id), why,
                            NextStep(error.code, question.request())));
}

}  // namespace

void DiscoveryRequests::AskAll() {
  for (const auto& question : context_.state.discoveries().TakeAsked()) Ask(question);
}

void DiscoveryRequests::Ask(const std::shared_ptr<const DiscoveryQuestion>& question) {
  const v1::DiscoverSubsystemsRequest& request = question->request();
  EngineView* const asker = FindAsker(context_.engines);
  if (asker == nullptr) return question->Give(NobodyCanAsk(context_.engines, request.address()));
  engine::v1::Envelope envelope;
  engine::v1::Discover& discover = *envelope.mutable_discover();
  discover.set_address(request.address());
  discover.set_host_nqn(request.host_nqn());
  discover.set_host_id(request.host_id());
  discover.set_timeout_ms(
      static_cast<uint32_t>(std::chrono::milliseconds(Discoveries::kServiceTime).count()));
  const log::RequestScope scope(question->request_id());
  context_.requests.Ask(*asker, std::move(envelope), {},
                        [question](EngineView& engine, const engine::v1::Reply& reply, const UniqueFd&) {
                          const Status status = FromEngine(reply);
                          if (!status.ok()) return question->Give(Failed(engine, *question, status.error()));
                          question->Give(FromEngine(reply.discovery()));
                        });
}

}  // namespace cleat::control
