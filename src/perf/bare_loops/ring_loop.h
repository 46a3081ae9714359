// SPDX-License-Identifier: Apache-2.0
// What the machine can do: the load generator's own driver and rings, and on another core, instead of an engine, a bare
// loop that takes each chain from the ring, reads its header, writes its status and shows it as used. No socket, no
// disk, no checks: what an engine needs above this is the engine's own. Results of different machines are comparable
// when they are divided by this.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "perf/load/load_options.h"
#include "perf/load/load_stats.h"

namespace cleat::perf {

struct RingLoopOptions {
  bool packed = false;
  bool indirect = true;
  uint32_t depth = 1;
  uint32_t block_bytes = 4096;
  uint64_t time_ns = 1'000'000'000;
  uint64_t requests = 0;  // 0: no limit; one of the two
  int generator_core = -1;
  int device_core = -1;
};

struct RingLoopReport {
  uint64_t requests = 0;
  uint64_t errors = 0;
  uint64_t elapsed_ns = 0;
  LatencyHistogram latency;

  double ns_per_request() const {
    return requests == 0 ? 0 : static_cast<double>(elapsed_ns) / static_cast<double>(requests);
  }
};

Result<RingLoopReport> RunRingLoop(const RingLoopOptions& options);

}  // namespace cleat::perf
