// SPDX-License-Identifier: Apache-2.0
// One generator thread: polls its queues, or sleeps until one of them is called, until the load has ended. Made and
// joined by RunLoad, which gets its attention with Notify; everything else is the thread's own from Start to Join.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "perf/load/load.h"

namespace cleat::perf {

class LoadThread {
 public:
  enum Attention : uint32_t {
    kStop = 1,  // end the load now
    kLook = 2,  // a device may be gone, a queue may be stuck
  };
  // A device whose connection is watched by the caller of RunLoad: gone is set there, taken back here.
  struct Watched {
    const LoadDevice* device = nullptr;
    std::atomic<bool> gone{false};
  };

  // `done_fd` is an eventfd that is signalled at the end.
  LoadThread(const TickRate& rate, const LoadOptions& options, const LoadEnvironment& environment,
             int done_fd)
      : state(rate), options_(options), environment_(environment), done_fd_(done_fd) {}
  ~LoadThread();
  LoadThread(const LoadThread&) = delete;
  LoadThread& operator=(const LoadThread&) = delete;

  void AddQueue(std::unique_ptr<LoadQueue> queue, Watched& device);
  Status Prepare();      // after the last queue
  void Start(int core);  // -1: any
  void Notify(uint32_t attention);
  bool done() const { return done_.load(std::memory_order_acquire); }
  Status Join();  // and how it went

  LoadThreadState state;
  uint64_t loaded_ns = 0;  // when the last request of the load completed; after Join

 private:
  struct Lane {
    std::unique_ptr<LoadQueue> queue;
    Watched* device = nullptr;
    uint64_t completed_seen = 0;
    uint64_t stuck_since_ns = 0;
  };

  Status Run();
  Status Drive();
  Status DrivePolling();
  Status DriveWaiting();
  Status Sleep(std::vector<uint32_t>* ready);
  bool Live() const { return state.in_flight > 0 || state.live_streams > 0; }
  Status Attend();
  Status LookAfter(Lane& lane, uint64_t now_ns);
  Status LeftBy(Watched& device);

  const LoadOptions& options_;
  const LoadEnvironment& environment_;
  const int done_fd_;
  std::vector<Lane> lanes_;
  UniqueFd epoll_, wake_;
  std::atomic<uint32_t> attention_{0};
  std::atomic<bool> done_{false};
  Status status_;
  std::thread thread_;
};

}  // namespace cleat::perf
