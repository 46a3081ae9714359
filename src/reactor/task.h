// SPDX-License-Identifier: Apache-2.0
// Task<T>: the one coroutine type, for control flows (open, attach, detach, hand-over); the I/O path is plain
// functions. A Task is lazy: it starts when it is awaited or given to Spawn(), and it must then run to its
// end - destroying a suspended Task is a programmer's error, since something still holds its handle. It runs
// on the reactor that resumed it last; who moves to another reactor (Reactor::Enter) comes back before
// returning. It works for the request for which its maker worked (base/log_request.h): what it logs says so, whatever it has waited for.
//
// GCC 12 destroys an aggregate twice that is made by braces within a co_await expression. An aggregate argument gets a name
// first (scripts/check_idioms.py finds the others):
//     AttachmentSpec spec = {.disk = disk};
//     Status attached = co_await controller.Attach(std::move(spec));
// tests/unit/reactor/task_test.cc compiles and runs the safe forms.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/log_request.h"
#include "reactor/await_suspend.h"

namespace cleat {

template <typename T>
class Task;

namespace internal {

class PromiseBase;

// Stands on the stack of a thread while it starts a task. A task that ends within its start tells it so and
// returns, and the awaiting coroutine goes on without having been suspended; so a loop over such tasks does
// not grow the stack, also where the compiler makes no tail calls (sanitizers, -O0).
struct TaskStart {
  explicit TaskStart(const PromiseBase& p) : promise(&p), outer(innermost) { innermost = this; }
  ~TaskStart() { innermost = outer; }
  TaskStart(const TaskStart&) = delete;
  TaskStart& operator=(const TaskStart&) = delete;

  const PromiseBase* promise;
  TaskStart* outer;
  bool ended = false;
  static inline constinit thread_local TaskStart* innermost = nullptr;
};

class PromiseBase {
 public:
  struct InitialAwaiter {
    PromiseBase& promise;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> /*self*/) const noexcept {}
    void await_resume() const noexcept { promise.request_.Enter(); }
  };

  // An awaiter of the coroutine, or the reference to one, with the thread's request put back while the coroutine is suspended.
  template <typename Inner>
  struct RequestAwaiter {
    PromiseBase& promise;
    Inner inner;
    bool suspended = false;

    bool await_ready() { return inner.await_ready(); }
    // The coroutine is not touched any more once `inner` has it.
    template <typename Promise>
    CLEAT_AWAIT_SUSPEND auto await_suspend(std::coroutine_handle<Promise> self) {
      suspended = true;
      promise.request_.Leave();
      return inner.await_suspend(self);
    }
    decltype(auto) await_resume() {
      if (suspended) promise.request_.Enter();
      return inner.await_resume();
    }
  };

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) const noexcept {
      PromiseBase& promise = self.promise();
      promise.request_.Leave();
      if (TaskStart* start = TaskStart::innermost; start != nullptr && start->promise == &promise) {
        start->ended = true;
        return std::noop_coroutine();
      }
      return promise.continuation_;
    }
    void await_resume() const noexcept {}
  };

  InitialAwaiter initial_suspend() noexcept { return {*this}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  // Errors are values here; an exception is out of memory or a bug.
  [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }

  template <typename Awaitable>
  auto await_transform(Awaitable&& awaitable) {
    if constexpr (requires { std::forward<Awaitable>(awaitable).operator co_await(); }) {
      using Inner = decltype(std::forward<Awaitable>(awaitable).operator co_await());
      return RequestAwaiter<Inner>{*this, std::forward<Awaitable>(awaitable).operator co_await()};
    } else {
      // What is awaited lives until the awaiting expression is over.
      return RequestAwaiter<std::remove_reference_t<Awaitable>&>{*this, awaitable};
    }
  }

  void set_continuation(std::coroutine_handle<> continuation) { continuation_ = continuation; }

 protected:
  std::coroutine_handle<> continuation_ = std::noop_coroutine();

 private:
  log::CarriedRequest request_;
};

template <typename T>
class Promise : public PromiseBase {
 public:
  Task<T> get_return_object();
  template <typename U>
  void return_value(U&& value) {
    value_.emplace(std::forward<U>(value));
  }
  T TakeResult() {
    CLEAT_CHECK(value_.has_value());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class Promise<void> : public PromiseBase {
 public:
  Task<void> get_return_object();
  void return_void() const noexcept {}
  void TakeResult() const noexcept {}
};

}  // namespace internal

template <typename T = void>
class [[nodiscard]] Task {
 public:
  using promise_type = internal::Promise<T>;
  using Handle = std::coroutine_handle<promise_type>;

  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), started_(std::exchange(other.started_, false)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_ == nullptr) return;
    CLEAT_CHECK(!started_ || handle_.done());
    handle_.destroy();
  }

  struct Awaiter {
    Task& task;
    bool await_ready() const noexcept { return false; }
    // False: it has ended, go on. True: suspended, and by now perhaps resumed by another thread: `this` may
    // be gone.
    CLEAT_AWAIT_SUSPEND bool await_suspend(std::coroutine_handle<> awaiting) noexcept {
      CLEAT_CHECK(!task.started_);
      task.started_ = true;
      task.handle_.promise().set_continuation(awaiting);
      internal::TaskStart start(task.handle_.promise());
      task.handle_.resume();
      return !start.ended;
    }
    T await_resume() { return task.handle_.promise().TakeResult(); }
  };

  Awaiter operator co_await() & noexcept { return Awaiter{*this}; }
  Awaiter operator co_await() && noexcept { return Awaiter{*this}; }

 private:
  Handle handle_;
  bool started_ = false;
};

namespace internal {

template <typename T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}

inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

// Owns itself: starts at once, frees itself at the end.
struct Detached {
  struct promise_type {
    Detached get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    [[noreturn]] void unhandled_exception() const noexcept { std::terminate(); }
  };
};

inline Detached RunDetached(Task<void> task) {
  co_await task;
}

}  // namespace internal

// Starts `task` here and now and lets it run to its end on its own. What it uses must outlive it: hold a
// Gate.
inline void Spawn(Task<void> task) {
  internal::RunDetached(std::move(task));
}

}  // namespace cleat
