// SPDX-License-Identifier: Apache-2.0
#include "reactor/blocking.h"

#include <pthread.h>

#include "base/check.h"

namespace cleat {

BlockingPool::BlockingPool(uint32_t threads_max) : threads_max_(threads_max) {
  CLEAT_CHECK(pthread_getaffinity_np(pthread_self(), sizeof cpus_, &cpus_) == 0);
}

BlockingPool::~BlockingPool() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void BlockingPool::Submit(std::function<void()> work) {
  {
    const MutexLock lock(mutex_);
    CLEAT_CHECK(!stopping_);
    queue_.push_back(std::move(work));
    if (queue_.size() > idle_ && threads_.size() < threads_max_) {
      threads_.emplace_back([this] { ThreadMain(); });
    }
  }
  wake_.NotifyOne();
}

void BlockingPool::ThreadMain() {
  pthread_setname_np(pthread_self(), "blocking");
  pthread_setaffinity_np(pthread_self(), sizeof cpus_, &cpus_);
  const MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    while (!stopping_ && queue_.empty()) wake_.Wait(mutex_);
    --idle_;
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    const MutexUnlock unlocked(mutex_);
    work();
    work = nullptr;
  }
}

}  // namespace cleat
