// SPDX-License-Identifier: Apache-2.0
#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace cleat::mutex_test {
namespace {

using std::chrono::steady_clock;

// False: somebody has it. Otherwise it is given back by the lock.
bool TryInScope(Mutex& mutex) {
  if (!mutex.TryLock()) return false;
  const MutexLock lock(mutex, std::adopt_lock);
  return true;
}

bool HeldByOthers(Mutex& mutex) {
  bool held = false;
  std::thread([&] { held = !TryInScope(mutex); }).join();
  return held;
}

TEST(Mutex, IsHeldForTheScopeOfALockAndNotForThatOfAnUnlock) {
  Mutex mutex;
  {
    const MutexLock lock(mutex);
    EXPECT_TRUE(HeldByOthers(mutex));
    {
      const MutexUnlock unlocked(mutex);
      EXPECT_FALSE(HeldByOthers(mutex));
    }
    EXPECT_TRUE(HeldByOthers(mutex));
  }
  EXPECT_FALSE(HeldByOthers(mutex));
}

TEST(Mutex, WhatWasTriedWithSuccessIsGivenBackByItsLock) {
  Mutex mutex;
  EXPECT_TRUE(TryInScope(mutex));
  EXPECT_FALSE(HeldByOthers(mutex));
  {
    const MutexLock lock(mutex);
    EXPECT_TRUE(HeldByOthers(mutex));  // a second try fails, and gives nothing back
    EXPECT_TRUE(HeldByOthers(mutex));
  }
}

TEST(CondVar, WaitLetsGoOfTheMutexAndHasItAgain) {
  Mutex mutex;
  CondVar changed;
  int turns = 0;
  std::thread other([&] {
    const MutexLock lock(mutex);
    while (turns != 1) changed.Wait(mutex);
    turns = 2;
    changed.NotifyAll();
  });
  {
    const MutexLock lock(mutex);
    turns = 1;
    changed.NotifyOne();
    while (turns != 2) changed.Wait(mutex);
    EXPECT_TRUE(HeldByOthers(mutex));
  }
  other.join();
}

TEST(CondVar, WaitUntilSaysWhenTheTimeHasCome) {
  Mutex mutex;
  CondVar changed;
  const MutexLock lock(mutex);
  const auto until = steady_clock::now() + std::chrono::milliseconds(5);
  while (changed.WaitUntil(mutex, until)) {
  }
  EXPECT_GE(steady_clock::now(), until);
  EXPECT_TRUE(HeldByOthers(mutex));
}

}  // namespace
}  // namespace cleat::mutex_test
