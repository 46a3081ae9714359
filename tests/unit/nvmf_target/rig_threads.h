// SPDX-License-Identifier: Apache-2.0
// What rigs have for reactors on threads of their own, as an engine's are: the threads, and a time that passes no faster than they turn.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "reactor/reactor.h"

namespace cleat::test {

// The time of all reactors of a rig. Read on any thread.
class RigClock final : public Clock {
 public:
  uint64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }
  void AdvanceBy(uint64_t ns) { now_ns_.fetch_add(ns, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> now_ns_ = kNsPerSecond;
};

// Used on the rig's own thread.
class RigThreads {
 public:
  RigThreads() = default;
  ~RigThreads() { Stop(); }
  RigThreads(const RigThreads&) = delete;
  RigThreads& operator=(const RigThreads&) = delete;

  // Until Stop, which the reactors outlive.
  void Run(std::span<const std::unique_ptr<Reactor>> reactors) {
    for (const auto& reactor : reactors) {
      reactors_.push_back({reactor.get(), 0});
      threads_.emplace_back([this, running = reactor.get()] {
        while (!stop_) {
          if (!running->RunOnce()) std::this_thread::yield();
        }
      });
    }
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  bool running() const { return !threads_.empty(); }
  // Each has had a turn since this was true last; time may pass then.
  bool HaveTurned() {
    for (const Running& one : reactors_) {
      if (one.reactor->turns() == one.turns_before) return false;
    }
    for (Running& one : reactors_) one.turns_before = one.reactor->turns();
    return true;
  }

 private:
  struct Running {
    Reactor* reactor;
    uint64_t turns_before;
  };
  std::vector<Running> reactors_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_ = false;
};

}  // namespace cleat::test
