// SPDX-License-Identifier: Apache-2.0
#include "reactor/blocking.h"

#include <pthread.h>

namespace cleat {

BlockingPool::BlockingPool(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { ThreadMain(); });
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
  }
  wake_.notify_one();
}

void BlockingPool::ThreadMain() {
  pthread_setname_np(pthread_self(), "blocking");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
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
