// SPDX-License-Identifier: Apache-2.0
// Runs a load on any number of devices with any number of generator threads, closed loop (each request is replaced when
// it completes) or open loop (requests are sent when they are due, and their latency counts from then: what a stalled
// device delays is seen in full, no coordinated omission). The caller's thread starts the generators, watches the back
// ends' connections, reports progress and returns when all have ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "perf/driver/blk_driver.h"
#include "perf/driver/scsi_driver.h"
#include "perf/load/load_options.h"
#include "perf/load/load_queue.h"
#include "perf/load/load_stats.h"
#include "perf/nvme_tcp/driver.h"

namespace cleat::perf {

// A started device with its disks; the driver, which is one of the two, outlives the load and has nothing else in flight on the
// request queues.
struct LoadDevice {
  std::string name;
  DeviceType type = DeviceType::kBlk;
  VirtioDriver* driver = nullptr;
  NvmeTcpDriver* nvme = nullptr;
  uint16_t first_ring = 0;  // of the request queues
  uint16_t queues = 1;
  std::vector<LoadDisk> disks;

  static LoadDevice Of(BlkDriver& driver, std::string name);
  // The disks behind these targets; unit attentions are taken. Errors say what the device answered.
  static Result<LoadDevice> Of(ScsiDriver& driver, std::string name, std::span<const uint8_t> targets);
  static LoadDevice Of(NvmeTcpDriver& driver, std::string name);

  Result<std::unique_ptr<LoadQueue>> MakeQueue(const LoadQueue::Setup& setup, const LoadOptions& options,
                                               LoadThreadState& state) const;
  // Hangs up when the other side is gone.
  int connection_fd() const;
};

struct LoadProgress {
  double seconds = 0;    // since the start
  double part_done = 0;  // 0 to 1, of time or requests; negative: nobody knows
  bool warming_up = false;
  double iops = 0;  // since the last progress, as all below
  double bytes_per_second = 0;
  uint64_t p50_ns = 0;
  uint64_t p99_ns = 0;
  uint64_t errors = 0;  // since the start
};

struct LoadEnvironment {
  std::vector<int> cores;  // a generator thread for each; empty: one, not bound to a core
  // A back end that closes its connection is waited for, as QEMU does; otherwise that is an error. Only where all
  // queues of a device are on one thread.
  bool reconnect = false;
  std::function<void(const LoadProgress&)> progress;  // once a second, on the caller's thread
  const std::atomic<bool>* stop = nullptr;  // set by somebody (a signal): the load ends early, with a report
};

// An error when the load can't be run (options, memory) or a device stopped serving it: its connection was closed, it
// broke the rules of its rings, or requests were in flight and none completed for stall_timeout_ns. Requests that a
// device failed are counted in the report.
Result<LoadReport> RunLoad(std::span<LoadDevice> devices, const LoadOptions& options,
                           const LoadEnvironment& environment = {});
Result<LoadReport> RunLoad(BlkDriver& driver, const LoadOptions& options);

}  // namespace cleat::perf
