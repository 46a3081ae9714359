// SPDX-License-Identifier: Apache-2.0
// Requests to engines, which are told the id of the API call that this thread works for (base/log_request.h), as is whoever handles the
// answer: an answer is given the view of the engine it came from, and what failed is queued to be reconciled again. The
// reconciler owns it. On the link's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "cleat/engine/v1/engine.pb.h"
#include "control/link/engine_link.h"
#include "control/link/translate.h"
#include "control/reconcile/engines/connected_engines.h"
#include "control/reconcile/engines/engine_view.h"
#include "control/reconcile/engines/pending_requests.h"

namespace cleat::control {

class EngineRequests {
 public:
  // All of them outlive it.
  EngineRequests(EngineLink& link, const Clock& clock, ConnectedEngines& engines, RetryQueue& retries,
                 BackoffLimits limits)
      : link_(link), clock_(clock), engines_(engines), retries_(retries), limits_(limits) {}

  using Done = std::function<void(EngineView& engine, const engine::v1::Reply& reply, UniqueFd fd)>;
  // `done` is not called when the connection ends first. Gives the request's id; see EngineLink::Request.
  uint64_t Ask(EngineView& engine, engine::v1::Envelope envelope, std::vector<UniqueFd> fds, Done done);

  struct Outcome {
    Status status;
    double retry_s = 0;  // of a failure: in how many seconds it is tried again
  };
  // Asks about a resource about which no such request is on its way.
  template <typename Id>
  void AskOnce(EngineView& engine, PendingRequests<Id> EngineView::*requests, const Id& id,
               engine::v1::Envelope envelope, std::function<void(EngineView&, const Outcome&)> done) {
    (engine.*requests).Begin(id);
    Ask(engine, std::move(envelope), {},
        [this, requests, id, done = std::move(done)](EngineView& answered, const engine::v1::Reply& reply,
                                                     const UniqueFd&) {
          Outcome outcome{.status = FromEngine(reply)};
          if (outcome.status.ok()) {
            (answered.*requests).Done(id);
          } else {
            outcome.retry_s = Fail(answered.*requests, id, id);
          }
          done(answered, outcome);
        });
  }

  // The request has failed: `resource` is reconciled again when the next one may be made. Returns in how many seconds that is.
  double Fail(PendingRequest& request, ResourceId resource) {
    const uint64_t now_ns = clock_.NowNs();
    return Enqueue(now_ns, request.Fail(now_ns, limits_), std::move(resource));
  }
  template <typename Id>
  double Fail(PendingRequests<Id>& requests, const Id& id, ResourceId resource) {
    const uint64_t now_ns = clock_.NowNs();
    return Enqueue(now_ns, requests.Fail(id, now_ns, limits_), std::move(resource));
  }
  // A write to the store that failed may succeed later: `resource` is reconciled again then. Does nothing when the status is OK.
  void RetryLater(const Status& status, ResourceId resource);

 private:
  double Enqueue(uint64_t now_ns, uint64_t wait_ns, ResourceId resource);

  EngineLink& link_;
  const Clock& clock_;
  ConnectedEngines& engines_;
  RetryQueue& retries_;
  const BackoffLimits limits_;
};

}  // namespace cleat::control
