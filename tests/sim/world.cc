// SPDX-License-Identifier: Apache-2.0
#include "world.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace cleat::sim {

World::World(uint64_t seed, uint32_t io_reactors) : seed_(seed), random_(seed) {
  MakeReactors(io_reactors);
}

void World::MakeReactors(uint32_t io_reactors) {
  for (uint32_t i = 0; i <= io_reactors; ++i) {
    Reactor::Options options;
    options.name = i == 0 ? "control" : "io" + std::to_string(i - 1);
    options.index = i == 0 ? io_reactors : i - 1;  // I/O reactors count from 0
    options.spin_ns = 0;  // time stands still while there is work, so there is nothing to spin for
    options.random_seed = random_.Next();
    auto reactor = Reactor::Make(clock_, options);
    CLEAT_CHECK(reactor.ok());
    reactors_.push_back(std::move(reactor).value());
    if (i > 0) io_reactors_.push_back(reactors_.back().get());
  }
}

void World::RestartReactors() {
  const auto count = static_cast<uint32_t>(io_reactors_.size());
  io_reactors_.clear();
  reactors_.clear();
  MakeReactors(count);
}

World::~World() {
  CLEAT_CHECK(actors_.empty());
}

void World::RemoveActor(const Actor& actor) {
  std::erase(actors_, &actor);
}

bool World::Step() {
  interrupted_ = false;
  const auto count = static_cast<uint32_t>(reactors_.size() + (frozen_ ? 0 : actors_.size()));
  order_.resize(count);
  for (uint32_t i = 0; i < count; ++i) order_[i] = i;
  for (uint32_t i = count; i > 1; --i) std::swap(order_[i - 1], order_[random_.Below(i)]);
  bool worked = false;
  for (const uint32_t who : order_) {
    if (interrupted_) break;
    if (who < reactors_.size()) {
      worked |= reactors_[who]->RunOnce() || !reactors_[who]->CanSleep();
    } else if (who - reactors_.size() < actors_.size()) {  // one may have left meanwhile
      worked |= actors_[who - reactors_.size()]->Step();
    }
  }
  return worked;
}

bool World::AdvanceToNext(uint64_t limit_ns) {
  uint64_t next_ns = kNoDeadline;
  for (const auto& reactor : reactors_) next_ns = std::min(next_ns, reactor->NextTimerNs());
  if (!frozen_) {
    for (const Actor* actor : actors_) next_ns = std::min(next_ns, actor->NextNs());
  }
  if (next_ns == kNoDeadline || next_ns > limit_ns) return false;
  clock_.AdvanceTo(std::max(next_ns, now_ns()));
  return true;
}

bool World::RunUntil(const std::function<bool()>& done, uint64_t limit_ns, const std::string& what) {
  const uint64_t deadline_ns = now_ns() + limit_ns;
  uint64_t idle_since_ns = now_ns();
  uint64_t steps = 0;
  while (!done()) {
    if (violations_.size() >= kViolationsMax && !frozen_) return false;
    if (now_ns() != idle_since_ns) {
      idle_since_ns = now_ns();
      steps = 0;
    }
    if (++steps > kStepsWithoutTimeMax) {
      Hang(what + " (a loop without end at one point in time)");
      return false;
    }
    if (Step()) continue;
    if (done()) break;
    if (!AdvanceToNext(deadline_ns)) {
      Hang(what);
      return false;
    }
  }
  return true;
}

void World::RunFor(uint64_t duration_ns) {
  const uint64_t until_ns = now_ns() + duration_ns;
  uint64_t steps = 0;
  for (;;) {
    if (Step()) {
      if (++steps > kStepsWithoutTimeMax) return Hang("running for a while (a loop without end)");
      continue;
    }
    steps = 0;
    if (!AdvanceToNext(until_ns)) break;
  }
  clock_.AdvanceTo(std::max(until_ns, now_ns()));
}

void World::Hang(const std::string& what) {
  std::string text = "hang: " + what + "; at " + std::to_string(now_ns()) + " ns:";
  for (const auto& reactor : reactors_) {
    text += "\n    " + reactor->name() + (reactor->CanSleep() ? " asleep" : " busy") + ", next timer " +
            (reactor->NextTimerNs() == kNoDeadline ? "none" : std::to_string(reactor->NextTimerNs()));
  }
  for (const Actor* actor : actors_) text += "\n    " + actor->Describe();
  for (const auto& dump : dumps_) text += "\n    " + dump();
  Violation(text);
}

void World::Violation(const std::string& what) {
  Note("VIOLATION " + what);
  if (violations_.size() < kViolationsMax)
    violations_.push_back("step " + std::to_string(step_) + ": " + what);
}

void World::Note(const std::string& event) {
  // FNV-1a over what happened and when.
  const auto mix = [this](uint8_t byte) { digest_ = (digest_ ^ byte) * 0x100000001b3ULL; };
  for (const char c : event) mix(static_cast<uint8_t>(c));
  for (int shift = 0; shift < 64; shift += 8) mix(static_cast<uint8_t>(now_ns() >> shift));
  if (trace_) {
    std::printf("%6llu %14llu  %s\n", static_cast<unsigned long long>(step_),
                static_cast<unsigned long long>(now_ns()), event.c_str());
  }
}

}  // namespace cleat::sim
