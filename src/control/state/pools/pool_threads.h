// SPDX-License-Identifier: Apache-2.0
// The threads that look after pools' drives, one a pool, since a drive may hang: each opens its drive, writes the map when it has changed, and
// erases what is to be erased, for at most half of the time; a drive that needs nothing is looked at every few seconds. Every minute each asks
// its drive for its condition. A drive that fails is opened again every few seconds. One thread more looks whether a call to a drive lasts too
// long, and says so.
//
// Start, Stop and the destructor on one thread; Wake on any.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "control/pools/drive_health.h"
#include "control/state/pools/pool_work.h"

namespace cleat::control {

class PoolThreads {
 public:
  // How long the threads wait.
  struct Pace {
    std::chrono::milliseconds retry{5'000};     // after a drive has failed
    std::chrono::milliseconds patience{5'000};  // before a drive that does not answer is called that
    std::chrono::milliseconds look_at{500};     // how often that is looked at
    std::chrono::milliseconds locked{
        1'000};                             // before extents are tried again that an engine still has locked
    std::chrono::milliseconds bad{60'000};  // ... and those that could not be erased
    std::chrono::milliseconds idle{
        5'000};  // before a drive that needs nothing is looked at: it may be gone, or hang
  };

  // `work` outlives it. `health` may be asked on a thread that outlives it.
  explicit PoolThreads(PoolWork& work, HealthQuestion health = {})
      : work_(work), health_(std::move(health)) {}
  ~PoolThreads() { Stop(); }
  PoolThreads(const PoolThreads&) = delete;
  PoolThreads& operator=(const PoolThreads&) = delete;

  void Start();
  // For tests, before Start.
  void SetPace(const Pace& pace) { pace_ = pace; }
  // Waits for what the threads do, but for calls of drives that do not answer: their threads end by themselves, and touch nothing of this
  // process any more.
  void Stop();
  // The pool has something to do, is new, or is gone.
  void Wake(const std::string& id);

 private:
  struct OnePool;
  void Watch();

  PoolWork& work_;
  const HealthQuestion health_;
  Pace pace_;
  Mutex mutex_;
  CondVar stop_;
  bool started_ CLEAT_GUARDED_BY(mutex_) = false;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::shared_ptr<OnePool>> pools_ CLEAT_GUARDED_BY(mutex_);  // by id
  std::thread watch_;
};

}  // namespace cleat::control
