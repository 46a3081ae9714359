// SPDX-License-Identifier: Apache-2.0
// Purges the deleted disks whose time is over, once a minute; not in the first hour after cleatd's start, for an
// operator who restarts cleatd to rescue a disk, and for a host whose clock is still to be set. One thread of its own, from Start() to Stop().
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "control/state/disks/kept_disks.h"

namespace cleat::control {

class PurgeTimer {
 public:
  static constexpr uint64_t kGraceNs = 3600 * kNsPerSecond;
  static constexpr std::chrono::seconds kTurn{60};

  // Both outlive it. The hour begins here.
  PurgeTimer(KeptDisks& disks, const Clock& clock)
      : disks_(disks), clock_(clock), started_ns_(clock.NowNs()) {}
  ~PurgeTimer() { Stop(); }
  PurgeTimer(const PurgeTimer&) = delete;
  PurgeTimer& operator=(const PurgeTimer&) = delete;

  void Start();
  void Stop();  // idempotent
  void Turn();

 private:
  void Run();

  KeptDisks& disks_;
  const Clock& clock_;
  const uint64_t started_ns_;
  Mutex mutex_;
  CondVar stop_;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cleat::control
