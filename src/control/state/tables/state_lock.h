// SPDX-License-Identifier: Apache-2.0
// The one mutex of the host's state. Many classes keep a part of that state and all of them are under it, so that what clang checks is not
// a member of theirs but a role, `holds_state`: a function that CLEAT_REQUIRES(holds_state) is called with the mutex held, whoever
// holds it. There is one state in a process that serves; where a test has two, clang takes their mutexes for one.
#pragma once

#include <chrono>
#include <functional>

#include "base/mutex.h"

namespace cleat::control {

class CLEAT_CAPABILITY("role") StateRole {};
inline constexpr StateRole holds_state;

class StateMutex {
 public:
  void Lock() CLEAT_ACQUIRE(holds_state) CLEAT_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void Unlock() CLEAT_RELEASE(holds_state) CLEAT_NO_THREAD_SAFETY_ANALYSIS {
    if (check_) check_();
    mutex_.Unlock();
  }
  // Without the mutex meanwhile, as CondVar's.
  void Wait(CondVar& condition) CLEAT_REQUIRES(holds_state) CLEAT_NO_THREAD_SAFETY_ANALYSIS {
    if (check_) check_();
    condition.Wait(mutex_);
  }
  bool WaitUntil(CondVar& condition, std::chrono::steady_clock::time_point until)
      CLEAT_REQUIRES(holds_state) CLEAT_NO_THREAD_SAFETY_ANALYSIS {
    if (check_) check_();
    return condition.WaitUntil(mutex_, until);
  }
  // For tests: called each time that the mutex is given back. Set while the mutex is held.
  void SetCheck(std::function<void()> check) { check_ = std::move(check); }

 private:
  Mutex mutex_;
  std::function<void()> check_;
};

// Holds the mutex for a scope.
class CLEAT_SCOPED_CAPABILITY StateLock {
 public:
  explicit StateLock(StateMutex& mutex) CLEAT_ACQUIRE(holds_state) : mutex_(mutex) { mutex.Lock(); }
  ~StateLock() CLEAT_RELEASE() { mutex_.Unlock(); }
  StateLock(const StateLock&) = delete;
  StateLock& operator=(const StateLock&) = delete;

 private:
  StateMutex& mutex_;
};

// Lets go of it for a scope, in which others may change all that is not named in a write that is under way.
class CLEAT_SCOPED_CAPABILITY StateUnlock {
 public:
  explicit StateUnlock(StateMutex& mutex) CLEAT_RELEASE(holds_state) : mutex_(mutex) { mutex.Unlock(); }
  ~StateUnlock() CLEAT_RELEASE() { mutex_.Lock(); }  // to clang: the end of what the constructor began
  StateUnlock(const StateUnlock&) = delete;
  StateUnlock& operator=(const StateUnlock&) = delete;

 private:
  StateMutex& mutex_;
};

}  // namespace cleat::control
