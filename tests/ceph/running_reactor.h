// SPDX-License-Identifier: Apache-2.0
// A reactor on a thread of its own, as an engine has them, and another thread's ways of having it do things. Ends with
// the object.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "reactor/reactor.h"
#include "reactor/task.h"

namespace cleat::test {

class RunningReactor {
 public:
  RunningReactor(const Clock& clock, const std::string& name) {
    Reactor::Options options;
    options.name = name;
    options.spin_ns = 0;
    reactor_ = std::move(Reactor::Make(clock, options)).value();
    thread_ = std::thread([this] { reactor_->Run(); });
  }
  ~RunningReactor() {
    reactor_->Stop();
    thread_.join();
  }
  RunningReactor(const RunningReactor&) = delete;
  RunningReactor& operator=(const RunningReactor&) = delete;

  Reactor& operator*() { return *reactor_; }
  Reactor* operator->() { return reactor_.get(); }

  // There, and waited for.
  template <typename T>
  T Call(const std::function<T()>& function) {
    std::promise<T> promise;
    reactor_->PostCall([&] {
      if constexpr (std::is_void_v<T>) {
        function();
        promise.set_value();
      } else {
        promise.set_value(function());
      }
    });
    return promise.get_future().get();
  }
  void Do(const std::function<void()>& function) { Call<void>(function); }

  // Starts the coroutine that `make` makes, there.
  template <typename T>
  std::future<T> Begin(std::function<Task<T>()> make) {
    auto held = std::make_shared<Started<T>>();
    held->make = std::move(make);
    auto future = held->promise.get_future();
    reactor_->PostCall([held] { Spawn(Keep(held)); });
    return future;
  }
  template <typename T>
  T Await(std::function<Task<T>()> make) {
    return Begin(std::move(make)).get();
  }

 private:
  template <typename T>
  struct Started {
    std::function<Task<T>()> make;
    std::promise<T> promise;
  };
  template <typename T>
  static Task<void> Keep(std::shared_ptr<Started<T>> held) {
    auto task = held->make();
    held->promise.set_value(co_await std::move(task));
  }

  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
};

}  // namespace cleat::test
