// SPDX-License-Identifier: Apache-2.0
#include "vhost/ring_yield.h"

namespace cleat::vhost {

Task<Status> RingYield::Ask(uint64_t deadline_ns) {
  CLEAT_CHECK(request_ == nullptr);
  Request request(control_, deadline_ns);
  request_ = &request;
  wake_();
  {
    const Deadline deadline(control_, request.over, deadline_ns);
    co_await request.over.Wait();
  }
  if (!request.over.is_set() && request.begun) co_await request.over.Wait();  // it has the same deadline
  if (request.over.is_set()) co_return request.result;                        // the conversation may be gone
  request_ = nullptr;
  co_return Error(ErrorCode::kDeadlineExceeded, busy_() + " is still being answered");
}

Task<bool> RingYield::Take(Session& session) {
  request_->begun = true;
  Status yielded = co_await session.YieldRings(request_->deadline_ns);
  const bool ok = yielded.ok();
  Finish(std::move(yielded));
  co_return ok;
}

void RingYield::End() {
  if (request_ != nullptr) Finish(Error(ErrorCode::kCancelled, "the connection ended"));
}

void RingYield::Finish(Status result) {
  Request& request = *std::exchange(request_, nullptr);
  request.result = std::move(result);
  request.over.Set();
}

}  // namespace cleat::vhost
