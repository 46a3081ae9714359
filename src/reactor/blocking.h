// SPDX-License-Identifier: Apache-2.0
// Where calls that may block go (open, fstat, fallocate, munmap of a large map): threads of their own, so
// that no reactor ever waits for a file system. Owned by the process' main; outlives every coroutine that
// uses it.
#pragma once

#include <sched.h>

#include <coroutine>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log_request.h"
#include "base/mutex.h"
#include "reactor/reactor.h"

namespace cleat {

class BlockingPool {
 public:
  // Threads are made when they are needed, up to `threads_max`, and stay; calls beyond wait for one. With 0 the
  // calls run inline: for virtual time, where nothing may happen behind the clock's back.
  // A thread runs where the maker of the pool may run, whoever's call it was made for.
  explicit BlockingPool(uint32_t threads_max);
  ~BlockingPool();  // waits for the calls that were handed in
  BlockingPool(const BlockingPool&) = delete;
  BlockingPool& operator=(const BlockingPool&) = delete;

  // auto result = co_await pool.Run<T>(function): runs it on a pool thread, goes on on the same reactor as
  // before. `function` is a named object or a plain lambda bound to a name (see task.h), and lives until the
  // call is over.
  template <typename T>
  class Call {
   public:
    Call(BlockingPool& pool, const std::function<T()>& function)
        : pool_(pool), function_(function), request_(log::CurrentRequest()) {}
    bool await_ready() {
      if (pool_.threads_max_ > 0) return false;
      result_.emplace(function_());
      return true;
    }
    CLEAT_AWAIT_SUSPEND void await_suspend(std::coroutine_handle<> awaiting) {
      Reactor* reactor = Reactor::Current();
      CLEAT_CHECK(reactor != nullptr);
      pool_.Submit([this, reactor, awaiting] {
        {
          const log::RequestScope request(request_);
          result_.emplace(function_());
        }
        reactor->PostCall([awaiting] { awaiting.resume(); });
      });
    }
    T await_resume() { return std::move(*result_); }

   private:
    BlockingPool& pool_;
    const std::function<T()>& function_;
    const std::string request_;  // what is logged there is logged for it
    std::optional<T> result_;
  };

  template <typename T>
  Call<T> Run(const std::function<T()>& function) {
    return {*this, function};
  }
  template <typename T>
  Call<T> Run(std::function<T()>&& function) = delete;  // it must outlive the call

  // Any thread; nobody waits for it (the last reference to a large mapping, say).
  void Post(std::function<void()> work) {
    if (threads_max_ == 0) return work();
    Submit(std::move(work));
  }

 private:
  void Submit(std::function<void()> work);
  void ThreadMain();

  const uint32_t threads_max_;
  cpu_set_t cpus_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<std::function<void()>> queue_ CLEAT_GUARDED_BY(mutex_);
  size_t idle_ CLEAT_GUARDED_BY(mutex_) = 0;
  bool stopping_ CLEAT_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ CLEAT_GUARDED_BY(mutex_);
};

}  // namespace cleat
