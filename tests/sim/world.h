// SPDX-License-Identifier: Apache-2.0
// The simulated world: one thread, several reactors, virtual time, one seed. Nothing in it happens behind the clock's
// back, so a run can be repeated exactly: the same seed gives the same run on every machine.
//
// A step gives every reactor and every actor (a pretend guest, say) one turn, in an order drawn from the seed. When
// nobody has anything to do, time jumps to the next timer. Broken promises are collected as violations rather than
// asserted on the spot, so that the negative controls can ask for them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "injections.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"

namespace cleat::sim {

// Something outside the reactors that acts by itself. Owned by the test; removed before it goes.
class Actor {
 public:
  virtual ~Actor() = default;
  virtual bool Step() = 0;  // a bounded piece of work; true when there was some
  virtual uint64_t NextNs()
      const = 0;  // when it will act by itself; kNoDeadline: only when somebody else acts
  virtual std::string Describe() const = 0;  // for the dump of who is stuck
};

class World {
 public:
  // A run that makes so many steps without time going on is stuck in a loop.
  static constexpr uint64_t kStepsWithoutTimeMax = 200'000;
  static constexpr size_t kViolationsMax = 20;

  World(uint64_t seed, uint32_t io_reactors);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  uint64_t seed() const { return seed_; }
  Random& random() { return random_; }
  ManualClock& clock() { return clock_; }
  uint64_t now_ns() const { return clock_.NowNs(); }
  Reactor& control() { return *reactors_.front(); }
  const std::vector<Reactor*>& io_reactors() const { return io_reactors_; }
  BlockingPool& blocking() { return blocking_; }
  Injections& injections() { return injections_; }

  void AddActor(Actor& actor) { actors_.push_back(&actor); }
  void RemoveActor(const Actor& actor);

  // Runs until `done`, letting time go on. False when `limit_ns` of virtual time have passed first, or when nothing
  // can happen any more; that is a violation ("hang") that names who is stuck.
  bool RunUntil(const std::function<bool()>& done, uint64_t limit_ns, const std::string& what);
  void RunFor(uint64_t duration_ns);
  // One turn of everybody; true when anything was done.
  bool Step();

  // ---- The death of a process, which all the reactors are taken for
  // From now on only the reactors have turns, until Thaw; whoever would have had his turn after this one has none.
  void Freeze() { frozen_ = interrupted_ = true; }
  void Thaw() { frozen_ = false; }
  // control() and io_reactors() become other reactors. Nothing is left that knows the old ones.
  void RestartReactors();

  // Who says what he waits for when a run hangs. Called in RunUntil only.
  void AddDump(std::function<std::string()> dump) { dumps_.push_back(std::move(dump)); }

  // ---- What went wrong
  void Violation(const std::string& what);
  const std::vector<std::string>& violations() const { return violations_; }
  bool failed() const { return !violations_.empty(); }

  // ---- What happened. The digest of all notes tells two runs apart; they are printed when tracing.
  void set_trace(bool trace) { trace_ = trace; }
  void Note(const std::string& event);
  uint64_t digest() const { return digest_; }
  uint64_t step() const { return step_; }
  void set_step(uint64_t step) { step_ = step; }  // of the test's own counting, for messages

 private:
  void MakeReactors(uint32_t io_reactors);
  bool AdvanceToNext(uint64_t limit_ns);
  void Hang(const std::string& what);

  const uint64_t seed_;
  Random random_;
  ManualClock clock_;
  BlockingPool blocking_{0};
  Injections injections_;
  std::vector<std::unique_ptr<Reactor>> reactors_;  // control, then I/O
  std::vector<Reactor*> io_reactors_;
  std::vector<Actor*> actors_;
  std::vector<uint32_t> order_;
  std::vector<std::function<std::string()>> dumps_;
  std::vector<std::string> violations_;
  uint64_t digest_ = 0xcbf29ce484222325ULL;
  uint64_t step_ = 0;
  bool trace_ = false;
  bool frozen_ = false;
  bool interrupted_ = false;
};

}  // namespace cleat::sim
