// SPDX-License-Identifier: Apache-2.0
// A ThreadScheduler decides, in a simulation, which thread goes on: threads run one at a time, and a seed draws whose turn it is where one
// takes a mutex or waits (base/mutex.h). A thread without a scheduler, as all are in a product, does as the kernel likes.
//
// What threads with a scheduler share through mutexes is used by them alone, or while none of them is under way. All calls come from the
// thread that runs.
#pragma once

#include <chrono>
#include <optional>

namespace cleat {

class ThreadScheduler {
 public:
  // Set by the scheduler on its threads.
  static constinit inline thread_local ThreadScheduler* of_this_thread = nullptr;

  // The thread is about to take a mutex: others may have their turn first.
  virtual void BeforeLock() = 0;
  // The mutex was found taken. Returns when it was given back; another thread may have taken it again.
  virtual void AwaitUnlocked(const void* mutex) = 0;
  virtual void OnLocked(const void* mutex) = 0;
  virtual void OnUnlocked(const void* mutex) = 0;
  // Returns when the condition variable was notified, or without cause. False: it was not, and that time has come.
  virtual bool AwaitNotified(const void* condition,
                             std::optional<std::chrono::steady_clock::time_point> until) = 0;
  virtual void OnNotified(const void* condition, bool all) = 0;

 protected:
  ~ThreadScheduler() = default;
};

}  // namespace cleat
