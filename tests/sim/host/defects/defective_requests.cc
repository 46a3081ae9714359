// SPDX-License-Identifier: Apache-2.0
// In place of src/control/reconcile/engines/engine_requests.cc: forgets a request now and then.
#include "control/reconcile/engines/engine_requests.h"

#include <utility>

#include "../host_run.h"
#include "host_defect.h"

namespace cleat::control {
namespace {

constexpr uint64_t kForgottenOf = 40;  // one of so many
uint64_t asked = 0;                    // in the run with that seed
uint64_t asked_in = 0;

}  // namespace

uint64_t EngineRequests::Ask(EngineView& engine, engine::v1::Envelope envelope, std::vector<UniqueFd> fds,
                             Done done) {
  const PeerId peer = engine.info.peer;
  if (std::exchange(asked_in, sim::SeedUnderWay()) != sim::SeedUnderWay()) asked = 0;
  const bool forgotten = sim::planted == sim::HostDefect::kForgetRequest && ++asked % kForgottenOf == 0;
  return link_.Request(
      peer, std::move(envelope), std::move(fds),
      [this, peer, forgotten, done = std::move(done)](const engine::v1::Reply& reply, UniqueFd answer_fd) {
        if (!forgotten) done(engines_.Get(peer), reply, std::move(answer_fd));
      });
}

double EngineRequests::Enqueue(uint64_t now_ns, uint64_t wait_ns, ResourceId resource) {
  retries_.Add(now_ns + wait_ns, std::move(resource));
  return static_cast<double>(wait_ns) / static_cast<double>(kNsPerSecond);
}

void EngineRequests::RetryLater(const Status& status, ResourceId resource) {
  if (!status.ok()) retries_.Add(clock_.NowNs() + limits_.max_ns, std::move(resource));
}

}  // namespace cleat::control
