// SPDX-License-Identifier: Apache-2.0
// Threads in the simulated world: real ones, of which one runs at a time, until a point at which the seed gives the turn to another: where
// it takes a mutex, waits or sleeps. So a run can be repeated exactly, and a seed tries an order of the threads' steps that would come once
// in a million on a machine.
//
// Threads are of one process, which may die at any of those points: from then on dead() is true, whatever they call has to come back at
// once and do nothing to what outlives the process, and they run to their end.
//
// Owned by the test. What does not say otherwise is for the world's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "../world.h"
#include "base/random.h"
#include "base/thread_scheduler.h"

namespace cleat::sim {

class SimThreads final : public Actor, private ThreadScheduler {
 public:
  static constexpr size_t kThreadsMax = 64;
  static constexpr uint64_t kNever = UINT64_MAX;

  explicit SimThreads(World& world);
  ~SimThreads() override;  // none is running

  // `run` is called on a thread of its own, from its first turn on. From the world's thread or one of these.
  void Start(std::string name, std::function<void()> run);
  size_t running() const;

  // ---- Death
  // The process dies at its point of that number from now, of those at which threads may take turns; `on_death` is called then, on the
  // world's thread. kNever: it lives.
  void DieAt(uint64_t point, std::function<void()> on_death);
  bool dead() const { return dead_; }
  // Runs the threads of a dead process to their end. The next process begins with the next Start.
  void RunOut();
  uint64_t points() const { return points_; }  // that were passed, of all processes

  // ---- For the thread that runs
  // Another one may have its turn.
  void Pass();
  void SleepFor(uint64_t duration_ns) {
    AwaitReady([] { return false; }, world_.now_ns() + duration_ns);
  }
  // Until `ready`, which the world's thread calls between turns, or that time, or death.
  void AwaitReady(std::function<bool()> ready, uint64_t until_ns);

  // ---- Actor
  bool Step() override;
  uint64_t NextNs() const override;
  std::string Describe() const override;

 private:
  // What a thread waits for. `object`: a mutex or a condition variable.
  struct Waiting {
    const void* object = nullptr;
    std::function<bool()> ready = {};
    uint64_t until_ns = kNever;
    bool may_go() const { return object == nullptr && ready == nullptr; }
  };
  struct Worker {
    std::string name;
    std::function<void()> run;  // empty: the thread is free
    Waiting waiting = {};
    bool notified = false;
    std::binary_semaphore turn{0};
    std::thread thread = {};
  };

  // ThreadScheduler
  void BeforeLock() override;
  void AwaitUnlocked(const void* mutex) override;
  void OnLocked(const void* mutex) override { held_.insert(mutex); }
  void OnUnlocked(const void* mutex) override;
  bool AwaitNotified(const void* condition,
                     std::optional<std::chrono::steady_clock::time_point> until) override;
  void OnNotified(const void* condition, bool all) override;

  void RunWorker(Worker& worker);
  void GiveTurnBack(Waiting waiting);
  void Release(const void* object);
  void Wake(Worker& worker);
  bool MayGo(const Worker& worker) const;
  bool CountPoint();
  void Die();

  World& world_;
  Random random_;
  const uint32_t pass_percent_;  // of the points at which another one could go on
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> ready_;  // Step's, kept for its memory
  Worker* current_ = nullptr;
  std::unordered_set<const void*> held_;  // mutexes
  std::binary_semaphore back_{0};         // the turn is the world's
  uint64_t points_ = 0;
  uint64_t dies_at_ = kNever;
  std::function<void()> on_death_;
  bool dying_ = false;  // on_death_ is to be called
  bool dead_ = false;
  bool quitting_ = false;
};

}  // namespace cleat::sim
