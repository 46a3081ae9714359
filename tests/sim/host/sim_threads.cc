// SPDX-License-Identifier: Apache-2.0
#include "sim_threads.h"

#include <algorithm>
#include <utility>

namespace cleat::sim {
namespace {

constexpr uint32_t kPassPercents[] = {2, 10, 40};

}  // namespace

SimThreads::SimThreads(World& world)
    : world_(world),
      random_(world.random().Next()),
      pass_percent_(kPassPercents[random_.Below(std::size(kPassPercents))]) {
  world_.AddActor(*this);
}

SimThreads::~SimThreads() {
  CLEAT_CHECK(running() == 0);
  world_.RemoveActor(*this);
  quitting_ = true;
  for (const auto& worker : workers_) {
    worker->turn.release();
    worker->thread.join();
  }
}

void SimThreads::Start(std::string name, std::function<void()> run) {
  const auto free = std::find_if(workers_.begin(), workers_.end(),
                                 [](const auto& worker) { return worker->run == nullptr; });
  if (free == workers_.end()) CLEAT_CHECK(workers_.size() < kThreadsMax);
  Worker& worker = free != workers_.end() ? **free : *workers_.emplace_back(std::make_unique<Worker>());
  worker.name = std::move(name);
  worker.run = std::move(run);
  worker.waiting = {};
  if (!worker.thread.joinable()) worker.thread = std::thread([this, &worker] { RunWorker(worker); });
}

size_t SimThreads::running() const {
  return static_cast<size_t>(std::count_if(workers_.begin(), workers_.end(),
                                           [](const auto& worker) { return worker->run != nullptr; }));
}

void SimThreads::RunWorker(Worker& worker) {
  ThreadScheduler::of_this_thread = this;
  for (;;) {
    worker.turn.acquire();
    if (quitting_) return;
    worker.run();
    worker.run = nullptr;
    back_.release();
  }
}

// ---- Turns

bool SimThreads::MayGo(const Worker& worker) const {
  if (worker.run == nullptr) return false;
  const Waiting& waiting = worker.waiting;
  if (waiting.may_go()) return true;
  if (waiting.object != nullptr)
    return waiting.until_ns != kNever && (dead_ || world_.now_ns() >= waiting.until_ns);
  return dead_ || world_.now_ns() >= waiting.until_ns || waiting.ready();
}

bool SimThreads::Step() {
  ready_.clear();
  for (const auto& worker : workers_) {
    if (MayGo(*worker)) ready_.push_back(worker.get());
  }
  if (ready_.empty()) return false;
  current_ = ready_[random_.Below(ready_.size())];
  current_->waiting = {};
  current_->turn.release();
  back_.acquire();
  current_ = nullptr;
  if (std::exchange(dying_, false)) Die();
  return true;
}

uint64_t SimThreads::NextNs() const {
  uint64_t next_ns = kNoDeadline;
  for (const auto& worker : workers_) {
    if (worker->run != nullptr && !worker->waiting.may_go())
      next_ns = std::min(next_ns, worker->waiting.until_ns);
  }
  return next_ns;
}

void SimThreads::GiveTurnBack(Waiting waiting) {
  Worker& worker = *current_;
  worker.waiting = std::move(waiting);
  back_.release();
  worker.turn.acquire();
}

void SimThreads::Pass() {
  if (CountPoint() || random_.Chance(pass_percent_, 100)) GiveTurnBack({});
}

void SimThreads::AwaitReady(std::function<bool()> ready, uint64_t until_ns) {
  CountPoint();
  GiveTurnBack({.ready = std::move(ready), .until_ns = until_ns});
}

// ---- ThreadScheduler

void SimThreads::BeforeLock() {
  Pass();
}

void SimThreads::AwaitUnlocked(const void* mutex) {
  // Held by a thread that is none of these, for an instant of real time.
  if (!held_.contains(mutex)) return std::this_thread::yield();
  GiveTurnBack({.object = mutex});
}

void SimThreads::OnUnlocked(const void* mutex) {
  held_.erase(mutex);
  Release(mutex);
}

// Time does not pass while a simulated thread runs, and the real one is nobody's here: a wait with a limit ends a virtual millisecond later,
// as having been notified without cause until its real time has come.
bool SimThreads::AwaitNotified(const void* condition,
                               std::optional<std::chrono::steady_clock::time_point> until) {
  Worker& worker = *current_;
  worker.notified = false;
  CountPoint();
  GiveTurnBack({.object = condition, .until_ns = until ? world_.now_ns() + kNsPerMs : kNever});
  return worker.notified || !until || std::chrono::steady_clock::now() < *until;
}

// A thread is drawn of those that wait, as the kernel may choose any.
void SimThreads::OnNotified(const void* condition, bool all) {
  if (all) return Release(condition);
  std::vector<Worker*> waiting;
  for (const auto& worker : workers_) {
    if (worker->waiting.object == condition) waiting.push_back(worker.get());
  }
  if (!waiting.empty()) Wake(*waiting[random_.Below(waiting.size())]);
}

void SimThreads::Release(const void* object) {
  for (const auto& worker : workers_) {
    if (worker->waiting.object == object) Wake(*worker);
  }
}

void SimThreads::Wake(Worker& worker) {
  worker.waiting = {};
  worker.notified = true;
}

// ---- Death

void SimThreads::DieAt(uint64_t point, std::function<void()> on_death) {
  dies_at_ = point == kNever ? kNever : points_ + point;
  on_death_ = std::move(on_death);
}

// True: the thread is to give its turn back, for the process dies.
bool SimThreads::CountPoint() {
  ++points_;
  if (points_ != dies_at_ || dead_) return false;
  dying_ = true;
  return true;
}

void SimThreads::Die() {
  dies_at_ = kNever;
  dead_ = true;
  const std::function<void()> on_death = std::move(on_death_);
  on_death();
}

void SimThreads::RunOut() {
  dead_ = true;
  uint64_t steps = 0;
  while (running() > 0) {
    CLEAT_CHECK(Step());
    CLEAT_CHECK(++steps < World::kStepsWithoutTimeMax);
  }
  dead_ = dying_ = false;
  dies_at_ = kNever;
}

std::string SimThreads::Describe() const {
  std::string text = "threads:";
  for (const auto& worker : workers_) {
    if (worker->run == nullptr) continue;
    text += " " + worker->name +
            (worker->waiting.object != nullptr ? " blocked;"
             : worker->waiting.may_go()        ? " ready;"
                                               : " asleep;");
  }
  return text;
}

}  // namespace cleat::sim
