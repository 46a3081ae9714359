// SPDX-License-Identifier: Apache-2.0
// Verified I/O that keeps a guest's own pace: besides requests that follow one another as fast as they are
// answered, one is due each period, whether or not the ones before it were answered. So a disk that stands still
// has everybody wait who came meanwhile, as it is with guests, and not one request alone. Small reads and writes,
// every block stamped, every read compared (perf/workload/verify.h).
//
// Between Start and Stop the driver belongs to the load's thread; queue 0 of it, whose size is at least eager +
// paced_max.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/result.h"
#include "perf/driver/blk_driver.h"
#include "perf/workload/verify.h"

namespace cleat::system_test {

struct PacedOptions {
  uint64_t seed = 1;
  uint32_t eager = 0;      // in flight at all times
  uint64_t period_ns = 0;  // of those beside them; 0: there are none
  uint32_t paced_max =
      64;  // of these in flight; what is due meanwhile waits, and is late from when it was due
};

struct PacedAnswer {
  uint64_t due_ns = 0;  // of an eager one: when it was submitted
  uint64_t answered_ns = 0;
};

class PacedLoad {
 public:
  static constexpr uint32_t kBytes = 4096;  // a request's

  // Both outlive the load; the model's blocks are of kBytes or divide it, and there are as many as requests in
  // flight.
  PacedLoad(perf::BlkDriver& driver, perf::StampedBlocks& blocks, const PacedOptions& options);
  ~PacedLoad();  // Stop()
  PacedLoad(const PacedLoad&) = delete;
  PacedLoad& operator=(const PacedLoad&) = delete;

  // Once or several times, each with its Stop. An error: see Stop.
  Status Start();
  // Waits for what is in flight. An error is a request that failed, data that was wrong, a ring whose rules were
  // broken, or no answer at all for two minutes.
  Status Stop();
  // Reads everything and compares; stopped.
  Status Verify();

  // Until that many more were answered since the call; false when the load ended before.
  bool WaitAnswers(uint64_t count);
  // Until everything that was due before this time has been answered; false when the load ended with an error
  // before.
  bool WaitSettled(uint64_t due_before_ns);
  uint64_t answered() const { return answered_.load(std::memory_order_relaxed); }
  uint64_t in_flight() const { return in_flight_.load(std::memory_order_relaxed); }
  std::vector<PacedAnswer> TakeAnswers();  // all since the last call

 private:
  // One request at a time in a part of the disk of its own, so that no two are ever for the same block.
  struct Lane {
    uint64_t first_byte = 0;
    perf::BlkIo io;
    bool eager = false;
    bool busy = false;
    uint64_t due_ns = 0;
  };

  Status Prepare();
  Status Drive();
  Status BeginDue(uint64_t now_ns);
  Status Begin(std::vector<uint32_t>& free, uint64_t due_ns);
  Status Reap();
  Status Complete(const perf::BlkCompletion& completion);
  void Sleep(uint64_t time_ns);
  void Publish(uint64_t now_ns);

  perf::BlkDriver& driver_;
  perf::StampedBlocks& blocks_;
  const PacedOptions options_;
  const MonotonicClock clock_;
  Random random_;
  std::vector<Lane> lanes_;
  uint64_t lane_bytes_ = 0;
  std::vector<uint32_t> eager_free_;
  std::vector<uint32_t> paced_free_;
  uint64_t next_due_ns_ = 0;
  std::vector<PacedAnswer> fresh_;  // not yet published
  std::atomic<uint64_t> answered_{0};
  std::atomic<uint64_t> in_flight_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  bool running_ = false;
  uint64_t settled_ns_ = 0;  // what was due before has been answered
  std::vector<PacedAnswer> answers_;
  Status result_;
};

}  // namespace cleat::system_test
