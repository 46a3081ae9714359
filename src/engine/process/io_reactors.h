// SPDX-License-Identifier: Apache-2.0
// The reactors that serve guests, each with its thread and with what it has of its own: a ring to the kernel, a cipher,
// counters. Made, started and destroyed by the process' main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/process/reactor_thread.h"
#include "engine/process/settings.h"
#include "modules/crypto/crypto_hub.h"
#include "modules/uring/io_lifetime.h"
#include "modules/uring/uring_hub.h"
#include "observe/engine_counters.h"
#include "reactor/reactor.h"
#include "reactor/stall_breaker.h"

namespace cleat::engine {

class IoReactors {
 public:
  // `incarnation`: this start's number, for the counters and for random numbers' seeds.
  static Result<std::unique_ptr<IoReactors>> Make(const Settings& settings, uint64_t incarnation);
  // Stops the threads first; whatever was on the reactors is gone.
  ~IoReactors();
  IoReactors(const IoReactors&) = delete;
  IoReactors& operator=(const IoReactors&) = delete;

  Status Start(const Settings& settings);

  const std::vector<Reactor*>& reactors() const { return reactors_; }
  std::vector<StallBreaker::Watched> Threads() const;  // started
  // What tells others, and this process of others, whose I/O is still under way.
  const modules::IoLifetime& lifetime() const { return *lifetime_; }
  modules::UringHub& uring() { return uring_; }
  const modules::CryptoHub& crypto() const { return crypto_; }
  observe::EngineCounters& counters() { return *counters_; }

 private:
  explicit IoReactors(std::unique_ptr<modules::IoLifetime> lifetime)
      : lifetime_(std::move(lifetime)), uring_(lifetime_.get()) {}
  Status MakeThreads(const Settings& settings, uint64_t incarnation);

  std::vector<std::unique_ptr<ReactorThread>> threads_;
  std::vector<Reactor*> reactors_;
  const std::unique_ptr<modules::IoLifetime> lifetime_;
  modules::UringHub uring_;
  modules::CryptoHub crypto_;
  std::unique_ptr<observe::EngineCounters> counters_;
};

}  // namespace cleat::engine
