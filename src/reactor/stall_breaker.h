// SPDX-License-Identifier: Apache-2.0
// Ends a reactor's wait in a system call that was never to wait. What peers send us stays theirs as well: O_NONBLOCK
// belongs to the eventfd, not to our descriptor of it, so that a front end can clear it and fill the counter in the very
// moment in which we signal it. No check beforehand closes that. A thread of its own therefore looks at the reactors now
// and then: one that waits in the kernel, but not for work, gets a signal that does nothing but end that wait, with EINTR.
// One look is a sample: who makes a reactor wait for short whiles only is met as surely, when it has had a look's time of
// it all in all. When the next look comes nobody can foresee.
//
// A thread that computes never gets the signal: its registers, which may hold a cipher's keys, would be written to its stack
// (keys/traces.h). What can't be interrupted - storage, a FUSE server - is not for reactors at all.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "reactor/reactor.h"

namespace cleat {

class StallBreaker {
 public:
  // Between two looks; 25 ms on average.
  static constexpr uint64_t kLookMinNs = 15 * kNsPerMs;
  static constexpr uint64_t kLookMaxNs = 35 * kNsPerMs;

  // A reactor, which outlives Stop(), and the thread that runs it, of this process.
  struct Watched {
    const Reactor* reactor;
    pid_t thread;
  };

  StallBreaker() = default;
  ~StallBreaker() { Stop(); }
  StallBreaker(const StallBreaker&) = delete;
  StallBreaker& operator=(const StallBreaker&) = delete;

  // Takes SIGURG for the process. Once; any thread, as Stop(). An error when /proc does not tell of our threads.
  Status Start(const std::vector<Watched>& reactors, uint64_t random_seed);
  void Stop();

  // How often a reactor got the signal. Any thread.
  uint64_t interruptions() const { return interruptions_.load(std::memory_order_relaxed); }

 private:
  struct Seen {
    Watched watched;
    UniqueFd stat;  // of /proc
  };
  void Run();
  // Waits so long, unless it is to stop: true.
  bool StopsBefore(uint64_t pause_ns) CLEAT_REQUIRES(mutex_);
  void Look(const Seen& seen);

  // The thread's.
  std::vector<Seen> seen_;
  Random random_{1};
  uint64_t warned_ns_ = 0;

  std::atomic<uint64_t> interruptions_{0};
  Mutex mutex_;
  CondVar stop_wanted_;
  bool stop_ CLEAT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cleat
