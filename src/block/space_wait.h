// SPDX-License-Identifier: Apache-2.0
// Requests of one channel for which the storage had no space, and that wait for it where the disk says so
// (Pipeline::SetWaitsForSpace), as under QEMU's werror=enospc, but with the guest running:
//
//   failed for want of space --> waits, in order --after a second--> the first is tried again
//                                      ^                               |              |
//                                      +------- no space again --------+              +--ended otherwise--> the next one is
//                                                                                        tried, at the next turn
//
// One request at a time is tried again, below the limits, for which it has paid already. Reads, flushes and writes that find space go
// past those that wait. What waits is in a list of the requests themselves: nothing is allocated, and there are no more than
// guests have in flight.
//
// Waiting ends with kNoSpace when the request's queue drains or the disk is to fail again, and with kAborted when the front end aborts
// the request. A request of a queue that drains, or that its front end has aborted already, does not begin to wait. Those of the
// disk's other queues wait on.
//
// Part of a PipelineChannel, which counts what waits as in flight; on its reactor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "block/request.h"
#include "reactor/timer_wheel.h"

namespace cleat::block {

class PipelineChannel;

class SpaceWait {
 public:
  // Between two tries of the first one. Also how long it takes at most until what waits hears that the disk is to fail again.
  static constexpr uint64_t kRetryNs = kNsPerSecond;
  // Between two tries while the requests that a try waits for are held back by a COMPARE AND WRITE.
  static constexpr uint64_t kHeldBackNs = kNsPerMs;

  // `allowed`: the disk's setting, shared with the pipeline; nullptr: nothing ever waits.
  SpaceWait(PipelineChannel& channel, std::shared_ptr<const std::atomic<bool>> allowed)
      : channel_(channel), allowed_(std::move(allowed)) {}
  ~SpaceWait() { CLEAT_CHECK(count_ == 0); }
  SpaceWait(const SpaceWait&) = delete;
  SpaceWait& operator=(const SpaceWait&) = delete;

  // Takes a request that has failed with kNoSpace, whether for the first time or not. True: it waits, and is answered later.
  bool Hold(Request& request);
  // A request has ended otherwise; if it is the one that was tried again, the next one is tried.
  void Ended(const Request& request) {
    if (&request == retried_) GoOn();
  }
  bool any() const { return count_ > 0; }
  // Whether it waits no longer for the moment, since the storage has it once more.
  bool tries_again(const Request& request) const { return &request == retried_; }
  // What waits is taken out, for the caller to complete: all, or (`only`) that one if it is here.
  void Withdraw(const Request* only, RequestList& withdrawn);
  // ... those that may not wait any more.
  void WithdrawUnwanted(RequestList& withdrawn);

 private:
  struct RetryTimer : Timer {
    explicit RetryTimer(SpaceWait& w)
        : Timer([](Timer& timer) { static_cast<RetryTimer&>(timer).space_wait.Retry(); }), space_wait(w) {}
    SpaceWait& space_wait;
  };

  bool MayWait(const Request& request) const;
  template <typename Which>
  void TakeOut(Which which, RequestList& withdrawn);
  void Retry();
  void GoOn();
  void SetTimer(uint64_t after_ns);

  PipelineChannel& channel_;
  const std::shared_ptr<const std::atomic<bool>> allowed_;
  RequestList waiting_;
  Request* retried_ = nullptr;  // the first, while the storage has it
  uint32_t count_ = 0;          // with that one
  RetryTimer timer_{*this};
};

}  // namespace cleat::block
