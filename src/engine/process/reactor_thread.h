// SPDX-License-Identifier: Apache-2.0
// A reactor with the thread that runs it. Made and destroyed by IoReactors.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "base/result.h"
#include "base/tick_clock.h"
#include "reactor/reactor.h"

namespace cleat::engine {

class ReactorThread {
 public:
  static Result<std::unique_ptr<ReactorThread>> Make(const TickRate& rate, const Reactor::Options& options);
  ~ReactorThread();  // stopped
  ReactorThread(const ReactorThread&) = delete;
  ReactorThread& operator=(const ReactorThread&) = delete;

  // `cpu`: the core that it is pinned to, if any; one that this process may not use is an error.
  Status Start(std::optional<uint32_t> cpu);
  // Ends the loop and joins; the reactor stays, for what was made on it to be taken down.
  void Stop();

  Reactor& reactor() { return *reactor_; }
  pid_t tid() const { return tid_.load(); }  // started

 private:
  explicit ReactorThread(const TickRate& rate) : clock_(rate) {}
  const TickClock clock_;
  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
  std::atomic<pid_t> tid_{0};
};

}  // namespace cleat::engine
