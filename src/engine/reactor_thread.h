// SPDX-License-Identifier: Apache-2.0
// A reactor with the thread that runs it. Made and destroyed by main.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "base/result.h"
#include "reactor/reactor.h"

namespace cleat::engine {

class ReactorThread {
 public:
  // Starts at once. `cpu`: the core that it is pinned to, if any; a core that does not exist is an error.
  static Result<std::unique_ptr<ReactorThread>> Start(const Clock& clock, const Reactor::Options& options,
                                                      std::optional<uint32_t> cpu);
  ~ReactorThread();  // stops and joins
  ReactorThread(const ReactorThread&) = delete;
  ReactorThread& operator=(const ReactorThread&) = delete;

  Reactor& reactor() { return *reactor_; }

 private:
  explicit ReactorThread(std::unique_ptr<Reactor> reactor) : reactor_(std::move(reactor)) {}
  std::unique_ptr<Reactor> reactor_;
  std::thread thread_;
};

}  // namespace cleat::engine
