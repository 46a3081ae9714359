// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one queue's authentication, on a thread that may be busy with it (0.1 s at most): a reactor never is. Many queues share
// the pool's few threads, and wait for one another there and nowhere else. What has waited for kWaitMaxNs does not begin any more: its target
// would soon give the queue up, and by computing answers just too late the threads would let no queue in at all.
//
// Ownership and thread: whoever has the queue owns this beside its login (nvme/host/queue_login.h), on the queue's reactor; both may go while
// the arithmetic runs. It then runs to its end on memory of its own, and nobody hears of it. The pool outlives all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "nvme/auth/authentication.h"
#include "nvme/host/queue_login.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class LoginArithmetic {
 public:
  static constexpr uint64_t kWaitMaxNs = 3 * kNsPerSecond;

  // `pool` is nullptr only where no secrets are configured. `done` is called on `reactor` when what a login needs was computed, or with an
  // error when it won't be.
  LoginArithmetic(BlockingPool* pool, Reactor& reactor, std::function<void(const Status&)> done,
                  uint64_t wait_max_ns = kWaitMaxNs);
  ~LoginArithmetic();
  LoginArithmetic(const LoginArithmetic&) = delete;
  LoginArithmetic& operator=(const LoginArithmetic&) = delete;

  // What a login with these secrets needs, done here. nullptr: none are configured.
  nvme::host::HostChap ChapWith(std::shared_ptr<const nvme::auth::ChapSecrets> secrets);
  // What has begun is not waited for any more; what has not begun yet is left out.
  void Cancel();

 private:
  struct Job;
  void Begin(const std::shared_ptr<nvme::auth::Authentication>& authentication);
  static void Tell(const Job& job, bool is_late);

  BlockingPool* const pool_;
  Reactor& reactor_;
  const std::function<void(const Status&)> done_;
  const uint64_t wait_max_ns_;
  std::shared_ptr<Job> job_;  // nullptr: nobody waits
};

}  // namespace cleat::modules
