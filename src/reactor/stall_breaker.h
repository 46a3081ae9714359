// SPDX-License-Identifier: Apache-2.0
// Ends a reactor's wait in a system call that was never to wait. What peers send us stays theirs as well: O_NONBLOCK
// belongs to the eventfd, not to our descriptor of it, so that a front end can clear it and fill the counter in the very
// moment in which we signal it; a socket that it has hidden in a message makes our close(2) linger. No check beforehand
// closes that. A thread of its own therefore looks at the reactors: one that is neither asleep nor in another turn than at
// the last look gets a signal that does nothing but end what waits in the kernel, with EINTR. A long turn that only
// computes does not notice.
//
// It costs the reactors nothing but that their turns are counted where others may read it. What can't be interrupted -
// storage, a FUSE server - is not for reactors at all.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "reactor/reactor.h"

namespace cleat {

class StallBreaker {
 public:
  static constexpr uint64_t kLookNs = 25 * kNsPerMs;  // so a wait ends after one to two of these

  // A reactor and the thread that runs it: both outlive Stop().
  struct Watched {
    const Reactor* reactor;
    pthread_t thread;
  };

  StallBreaker() = default;
  ~StallBreaker() { Stop(); }
  StallBreaker(const StallBreaker&) = delete;
  StallBreaker& operator=(const StallBreaker&) = delete;

  // Takes SIGURG for the process. Once; any thread, as Stop().
  Status Start(std::vector<Watched> reactors);
  void Stop();

  // How often a reactor got the signal. Any thread. On a machine whose cores are taken away a turn may last that long.
  uint64_t interruptions() const { return interruptions_.load(std::memory_order_relaxed); }

 private:
  struct Seen {
    Watched watched;
    uint64_t turn = 0;
    bool awake = false;
  };
  void Run();
  void Look(Seen* seen);

  std::vector<Seen> seen_;  // the thread's
  std::atomic<uint64_t> interruptions_{0};
  std::mutex mutex_;
  std::condition_variable stop_wanted_;
  bool stop_ = false;  // by mutex_
  std::thread thread_;
};

}  // namespace cleat
