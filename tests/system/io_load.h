// SPDX-License-Identifier: Apache-2.0
// Random, verified I/O by one guest: reads, writes, flushes, discards and write zeroes of all sizes on all
// queues, several at once, every block stamped and every read compared (perf/workload/verify.h).
//
// Run() on the caller's thread, or Start() and Stop() around something else that the test does: then the
// driver belongs to the load's thread in between.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/result.h"
#include "perf/driver/blk_driver.h"
#include "perf/workload/verify.h"

namespace cleat::system_test {

struct IoLoadOptions {
  uint64_t seed = 1;
  uint32_t depth = 8;  // requests in flight on each queue
  uint32_t bytes_max = 128 * 1024;
  bool read_only = false;
};

class IoLoad {
 public:
  // The model says what the disk holds, also over several loads one after the other; it and the driver
  // outlive the load. Every disk is at least queues * depth * bytes_max large.
  IoLoad(perf::BlkDriver& driver, perf::StampedBlocks& blocks, const IoLoadOptions& options = {});
  ~IoLoad();  // Stop()

  // This many requests, all of them completed at the end. An error is a request that failed, data that was
  // wrong, a driver that found the device at fault - or kUnavailable: the back end is gone.
  Status Run(uint64_t requests);
  // Reads everything and compares.
  Status Verify();

  void Start();
  // Completes what is in flight.
  Status Stop();
  // Until that many more requests have completed since the call; false when the load ended before.
  bool WaitProgress(uint64_t requests);
  uint64_t completed() const { return completed_.load(std::memory_order_relaxed); }

 private:
  // One request at a time in a part of the disk of its own, so that no two are ever for the same block.
  struct Lane {
    uint16_t queue = 0;
    uint64_t first_byte = 0;
    uint64_t bytes = 0;
    uint64_t buffer_gpa = 0;
    perf::BlkIo io;
    bool prepared = false;  // `io` waits for room in the queue
    bool busy = false;
  };

  Status Prepare();
  Status Drive(uint64_t requests, const std::atomic<bool>* stop);
  void PrepareNext(Lane& lane, uint64_t token);
  bool SubmitNext(Lane& lane, uint64_t token);
  Status Complete(const perf::BlkCompletion& completion);
  Status Reap(uint16_t queue, uint32_t* busy);

  perf::BlkDriver& driver_;
  perf::StampedBlocks& blocks_;
  const IoLoadOptions options_;
  Random random_;
  std::vector<Lane> lanes_;
  std::atomic<uint64_t> completed_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable progress_;
  bool running_ = false;
  Status result_;
};

}  // namespace cleat::system_test
