// SPDX-License-Identifier: Apache-2.0
#include "control/reconcile/engines/engine_requests.h"

#include "base/log.h"
#include "base/log_request.h"

namespace cleat::control {

uint64_t EngineRequests::Ask(EngineView& engine, engine::v1::Envelope envelope, std::vector<UniqueFd> fds,
                             Done done) {
  const PeerId peer = engine.info.peer;
  const std::string& request = log::CurrentRequest();
  if (!request.empty()) envelope.set_request(request);
  return link_.Request(
      peer, std::move(envelope), std::move(fds),
      [this, peer, request, done = std::move(done)](const engine::v1::Reply& reply, UniqueFd answer_fd) {
        const log::RequestScope scope(request);
        done(engines_.Get(peer), reply, std::move(answer_fd));
      });
}

double EngineRequests::Enqueue(uint64_t now_ns, uint64_t wait_ns, ResourceId resource) {
  retries_.Add(now_ns + wait_ns, std::move(resource));
  return static_cast<double>(wait_ns) / static_cast<double>(kNsPerSecond);
}

void EngineRequests::RetryLater(const Status& status, ResourceId resource) {
  if (status.ok()) return;
  spdlog::error("{}; the reconciler tries again in {:.3g} s", status.error().message,
                static_cast<double>(limits_.max_ns) / static_cast<double>(kNsPerSecond));
  retries_.Add(clock_.NowNs() + limits_.max_ns, std::move(resource));
}

}  // namespace cleat::control
