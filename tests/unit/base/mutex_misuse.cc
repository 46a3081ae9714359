// SPDX-License-Identifier: Apache-2.0
// Compiled by thread_safety_test.py and never run: clang takes it, but with MISUSE defined it refuses each line that says so, and
// says what stands behind "refused:".
#include "base/mutex.h"

namespace cleat::mutex_misuse {

class Counter {
 public:
  void Add() CLEAT_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    AddLocked();
    changed_.NotifyAll();
  }

  bool TryAdd() {
    if (!mutex_.TryLock()) return false;
    const MutexLock lock(mutex_, std::adopt_lock);
    AddLocked();
    return true;
  }

  void AwaitTen() {
    const MutexLock lock(mutex_);
    while (count_ < 10) changed_.Wait(mutex_);
    {
      const MutexUnlock unlocked(mutex_);
      Add();
    }
    count_ = 0;
  }

#if defined(MISUSE)
  int count() const {
    return count_;  // refused: reading variable 'count_' requires holding mutex 'mutex_'
  }
  void Reset() {
    count_ = 0;  // refused: writing variable 'count_' requires holding mutex 'mutex_'
  }
  void ResetWhileUnlocked() {
    const MutexLock lock(mutex_);
    const MutexUnlock unlocked(mutex_);
    count_ = 0;  // refused: writing variable 'count_' requires holding mutex 'mutex_'
  }
  void AddWithout() {
    AddLocked();  // refused: calling function 'AddLocked' requires holding mutex 'mutex_'
  }
  void AddInLambda() {
    const MutexLock lock(mutex_);
    const auto add = [this] {
      AddLocked();  // refused: calling function 'AddLocked' requires holding mutex 'mutex_'
    };
    add();
  }
  void WaitWithout() {
    changed_.Wait(mutex_);  // refused: calling function 'Wait' requires holding mutex 'mutex_'
  }
  void LockTwice() {
    const MutexLock lock(mutex_);
    Add();  // refused: cannot call function 'Add' while mutex 'mutex_' is held
  }
  void AdoptWithout() {
    const MutexLock lock(mutex_, std::adopt_lock);  // refused: calling function 'MutexLock' requires holding
  }
  void Keep() { mutex_.Lock(); }  // refused: mutex 'mutex_' is still held at the end of function
#endif

 private:
  void AddLocked() CLEAT_REQUIRES(mutex_) { ++count_; }

  mutable Mutex mutex_;
  CondVar changed_;
  int count_ CLEAT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cleat::mutex_misuse
