// SPDX-License-Identifier: Apache-2.0
#include "control/state/disks/purge_timer.h"

#include <pthread.h>

#include "base/log.h"

namespace cleat::control {

void PurgeTimer::Start() {
  thread_ = std::thread([this] { Run(); });
}

void PurgeTimer::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  stop_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

void PurgeTimer::Turn() {
  if (clock_.NowNs() - started_ns_ < kGraceNs) return;
  // A purge that fails is tried again in the next turn.
  if (auto status = disks_.PurgeExpired(); !status.ok())
    spdlog::warn("deleted disks: not purged yet: {}; see to the store's file system", status.error().message);
}

void PurgeTimer::Run() {
  pthread_setname_np(pthread_self(), "purge-timer");
  const MutexLock lock(mutex_);
  for (;;) {
    const auto next = std::chrono::steady_clock::now() + kTurn;
    while (!stopping_ && stop_.WaitUntil(mutex_, next)) {
    }
    if (stopping_) return;
    Turn();
  }
}

}  // namespace cleat::control
