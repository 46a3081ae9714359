// SPDX-License-Identifier: Apache-2.0
// Mutexes between threads, as types that clang checks: which mutex guards a member and which one a function needs stands in
// its declaration, and the builds with clang (the sanitizers') refuse code that does not keep to it (-Wthread-safety). GCC
// sees std::mutex and nothing else.
//
//   class Counter {
//    public:
//     void Add() {
//       const MutexLock lock(mutex_);
//       AddLocked();
//       changed_.NotifyAll();
//     }
//     void AwaitTen() {
//       const MutexLock lock(mutex_);
//       while (count_ < 10) changed_.Wait(mutex_);
//     }
//
//    private:
//     void AddLocked() CLEAT_REQUIRES(mutex_) { ++count_; }
//
//     Mutex mutex_;
//     CondVar changed_;
//     int count_ CLEAT_GUARDED_BY(mutex_) = 0;
//   };
//
// A lambda is a function of its own to clang. What is called under the mutex says so behind its parameters,
// `[&](int x) CLEAT_REQUIRES(mutex_) { ... }`; a wait is a loop rather than a predicate.
//
// For threads: coroutines of one reactor have AsyncMutex (reactor/sync.h), which suspends instead of blocking.
//
// In a simulation the threads that have a scheduler (base/thread_scheduler.h) run one at a time, and it says which goes on. That costs all
// others a load of a thread's variable and a branch, each time that they take or give back a mutex, or notify.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/thread_scheduler.h"

// clang's attributes: https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#if defined(__clang__)
#define CLEAT_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define CLEAT_THREAD_ATTRIBUTE(x)
#endif

// Of a class: it can be held; it holds something as long as it lives.
#define CLEAT_CAPABILITY(name) CLEAT_THREAD_ATTRIBUTE(capability(name))
#define CLEAT_SCOPED_CAPABILITY CLEAT_THREAD_ATTRIBUTE(scoped_lockable)
// Of a member or a variable: nobody reads or writes it without that mutex. Constructors and destructors aside.
#define CLEAT_GUARDED_BY(mutex) CLEAT_THREAD_ATTRIBUTE(guarded_by(mutex))
// Of a function: its caller holds the mutexes, or does not.
#define CLEAT_REQUIRES(...) CLEAT_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define CLEAT_EXCLUDES(...) CLEAT_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Of a function: it takes the mutexes, or gives them back.
#define CLEAT_ACQUIRE(...) CLEAT_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define CLEAT_TRY_ACQUIRE(...) CLEAT_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define CLEAT_RELEASE(...) CLEAT_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
// Of a function that is right in a way that can't be said with these; a comment says how.
#define CLEAT_NO_THREAD_SAFETY_ANALYSIS CLEAT_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace cleat {

class CLEAT_CAPABILITY("mutex") Mutex {
 public:
  constexpr Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() CLEAT_ACQUIRE() {
    if (ThreadScheduler* const scheduler = ThreadScheduler::of_this_thread; scheduler != nullptr) [[unlikely]]
      return LockScheduled(*scheduler);
    mutex_.lock();
  }
  void Unlock() CLEAT_RELEASE() {
    mutex_.unlock();
    if (ThreadScheduler* const scheduler = ThreadScheduler::of_this_thread; scheduler != nullptr) [[unlikely]]
      scheduler->OnUnlocked(this);
  }
  // True: it is held from now on, and MutexLock(mutex, std::adopt_lock) gives it back.
  [[nodiscard]] bool TryLock() CLEAT_TRY_ACQUIRE(true) {
    if (!mutex_.try_lock()) return false;
    if (ThreadScheduler* const scheduler = ThreadScheduler::of_this_thread; scheduler != nullptr) [[unlikely]]
      scheduler->OnLocked(this);
    return true;
  }

 private:
  friend class CondVar;
  // NOLINTNEXTLINE(readability-make-member-function-const): it takes the mutex.
  void LockScheduled(ThreadScheduler& scheduler) CLEAT_ACQUIRE() CLEAT_NO_THREAD_SAFETY_ANALYSIS {
    scheduler.BeforeLock();
    while (!mutex_.try_lock()) scheduler.AwaitUnlocked(this);
    scheduler.OnLocked(this);
  }

  std::mutex mutex_;
};

// Holds a mutex for a scope.
class CLEAT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CLEAT_ACQUIRE(mutex) : mutex_(mutex) { mutex.Lock(); }
  MutexLock(Mutex& mutex, std::adopt_lock_t) CLEAT_REQUIRES(mutex) : mutex_(mutex) {}  // after TryLock()
  ~MutexLock() CLEAT_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Lets go of a mutex for a scope, in which others may change all that it guards.
class CLEAT_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) CLEAT_RELEASE(mutex) : mutex_(mutex) { mutex.Unlock(); }
  ~MutexUnlock() CLEAT_RELEASE() { mutex_.Lock(); }  // to clang: the end of what the constructor began
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits let go of the mutex and have it again when they return, which may be without cause: they belong into a loop that
// looks at what is waited for. Notify with or without the mutex.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void NotifyOne() {
    condition_.notify_one();
    TellScheduler(false);
  }
  void NotifyAll() {
    condition_.notify_all();
    TellScheduler(true);
  }

  void Wait(Mutex& mutex) CLEAT_REQUIRES(mutex) {
    if (ThreadScheduler* const scheduler = ThreadScheduler::of_this_thread; scheduler != nullptr)
        [[unlikely]] {
      WaitScheduled(*scheduler, mutex, std::nullopt);
      return;
    }
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    condition_.wait(held);
    held.release();  // the caller's still
  }
  // False: that time has come.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point until) CLEAT_REQUIRES(mutex) {
    if (ThreadScheduler* const scheduler = ThreadScheduler::of_this_thread; scheduler != nullptr) [[unlikely]]
      return WaitScheduled(*scheduler, mutex, until);
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = condition_.wait_until(held, until);
    held.release();
    return status == std::cv_status::no_timeout;
  }

 private:
  void TellScheduler(bool all) {
    if (ThreadScheduler* const scheduler = ThreadScheduler::of_this_thread; scheduler != nullptr) [[unlikely]]
      scheduler->OnNotified(this, all);
  }
  bool WaitScheduled(ThreadScheduler& scheduler, Mutex& mutex,
                     std::optional<std::chrono::steady_clock::time_point> until) CLEAT_REQUIRES(mutex) {
    mutex.Unlock();
    const bool notified = scheduler.AwaitNotified(this, until);
    mutex.Lock();
    return notified;
  }

  std::condition_variable condition_;
};

}  // namespace cleat
