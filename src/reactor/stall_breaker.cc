// SPDX-License-Identifier: Apache-2.0
#include "reactor/stall_breaker.h"

#include <signal.h>

#include <cerrno>
#include <chrono>
#include <utility>

namespace cleat {
namespace {

// By default it is ignored, so one that comes when nobody handles it does no harm.
constexpr int kSignal = SIGURG;

void Nothing(int /*signal*/) {}

}  // namespace

Status StallBreaker::Start(std::vector<Watched> reactors) {
  CLEAT_CHECK(!thread_.joinable());
  struct sigaction action {};
  action.sa_handler = Nothing;  // without SA_RESTART: what was interrupted is to end
  if (sigaction(kSignal, &action, nullptr) != 0) return ErrnoError(errno, "installing a handler of SIGURG");
  for (const Watched& watched : reactors) seen_.push_back({watched});
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "stall-breaker");
  return Ok{};
}

void StallBreaker::Stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stop_wanted_.notify_one();
  thread_.join();
}

void StallBreaker::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_wanted_.wait_for(lock, std::chrono::nanoseconds(kLookNs), [this] { return stop_; })) {
    for (Seen& seen : seen_) Look(&seen);
  }
}

void StallBreaker::Look(Seen* seen) {
  const Reactor& reactor = *seen->watched.reactor;
  const uint64_t turn = reactor.turns();
  const bool awake = !reactor.asleep();
  if (awake && seen->awake && turn == seen->turn) {
    interruptions_.fetch_add(1, std::memory_order_relaxed);
    pthread_kill(seen->watched.thread, kSignal);
  }
  seen->turn = turn;
  seen->awake = awake;
}

}  // namespace cleat
