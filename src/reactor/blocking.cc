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
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockingPool::Submit(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    CLEAT_CHECK(!stopping_);
    queue_.push_back(std::move(work));
    if (queue_.size() > idle_ && threads_.size() < threads_max_) {
      threads_.emplace_back([this] { ThreadMain(); });
    }
  }
  wake_.notify_one();
}

void BlockingPool::ThreadMain() {
  pthread_setname_np(pthread_self(), "blocking");
  pthread_setaffinity_np(pthread_self(), sizeof cpus_, &cpus_);
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

}  // namespace cleat
