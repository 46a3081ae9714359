// SPDX-License-Identifier: Apache-2.0
// A closed-loop load: as many requests in flight as were asked for, each replaced when it completes, polling.
// With verification every request has a stripe of the disk to itself, so that what it reads is never being
// written. Runs on the caller's thread until its end; allocates at the start only.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "perf/blk_driver.h"
#include "perf/latency_histogram.h"
#include "perf/verify.h"

namespace cleat::perf {

enum class LoadPattern : uint8_t { kRead, kWrite, kRandRead, kRandWrite };

struct LoadOptions {
  LoadPattern pattern = LoadPattern::kRandRead;
  uint32_t block_bytes = 4096;
  uint32_t queue_depth = 1;  // requests in flight a queue
  uint64_t seconds = 0;      // 0: no limit; one of the two has to be set
  uint64_t requests = 0;     // in all, reads that verify not counted
  bool verify = false;       // writes are read back now and then, and all at the end
  uint64_t seed = 1;
};

struct LoadReport {
  uint64_t requests = 0;
  uint64_t errors = 0;
  uint64_t elapsed_ns = 0;
  uint64_t verified_blocks = 0;
  uint64_t faults = 0;
  std::string first_fault;
  LatencyHistogram latency;

  double iops() const;
};

// An error when the load can't be run (options, memory) or the device stopped serving it; requests that the
// device failed are counted in the report.
Result<LoadReport> RunLoad(BlkDriver& driver, const LoadOptions& options);

}  // namespace cleat::perf
