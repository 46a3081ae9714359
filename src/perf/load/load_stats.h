// SPDX-License-Identifier: Apache-2.0
// What one generator thread has counted, and the sum over all. A thread writes its own LoadStats; others may read the
// histograms and the counters at any time (relaxed atomics), the texts after the thread was joined.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "perf/load/load_options.h"
#include "perf/workload/latency_histogram.h"

namespace cleat::perf {

struct LoadStats {
  std::array<LatencyHistogram, kLoadOps> latency;  // counts are of requests that completed
  std::array<std::atomic<uint64_t>, kLoadOps> errors{};
  std::atomic<uint64_t> completions{0};  // warm-up and verification included: is there progress?
  std::atomic<uint64_t> faults{0};
  std::atomic<uint64_t> verified_blocks{0};
  // Open loop: requests that were due before the end and never sent, in `latency` with what they had waited by the end.
  std::array<uint64_t, kLoadOps> unsent{};
  // Looks at a ring, and those that found nothing: few mean that the generator is what limits the load. Polling only.
  uint64_t polls = 0;
  uint64_t idle_polls = 0;
  uint64_t last_completion_ns = 0;
  uint64_t longest_gap_ns =
      0;  // between two looks that found completions, at whichever of the thread's rings
  std::string first_error;
  std::string first_fault;

  void Completed(size_t count, uint64_t now_ns) {
    Add(&completions, count);
    if (last_completion_ns != 0 && now_ns > last_completion_ns)
      longest_gap_ns = std::max(longest_gap_ns, now_ns - last_completion_ns);
    last_completion_ns = now_ns;
  }

  static void Add(std::atomic<uint64_t>* value, uint64_t more) {  // by the one thread that writes
    value->store(value->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
};

// The result of a load.
struct LoadReport {
  struct Operation {
    uint64_t requests = 0;
    uint64_t errors = 0;
    uint64_t unsent = 0;       // due before the end and never sent (open loop)
    LatencyHistogram latency;  // of both, the latter with what they had waited by the end
  };
  std::array<Operation, kLoadOps> operations;
  LatencyHistogram latency;  // of all operations
  uint64_t requests = 0;     // that completed, with or without an error
  uint64_t errors = 0;
  uint64_t unsent = 0;
  uint64_t elapsed_ns = 0;  // from the end of the warm-up to the last completion
  uint64_t data_bytes = 0;  // read and written
  // The longest time in which a generator thread had no answer, from its first one on; of a load that always has requests in flight, how long
  // its devices were silent.
  uint64_t longest_gap_ns = 0;
  uint32_t devices = 0;
  uint32_t disks = 0;
  uint64_t reconnects = 0;
  uint64_t polls = 0;  // by generators that poll, warm-up included
  uint64_t idle_polls = 0;
  uint64_t verified_blocks = 0;
  uint64_t faults = 0;
  std::string first_fault;
  std::string first_error;

  double iops() const { return PerSecond(requests); }
  double bytes_per_second() const { return PerSecond(data_bytes); }

 private:
  double PerSecond(uint64_t count) const {
    return elapsed_ns == 0 ? 0 : static_cast<double>(count) * 1e9 / static_cast<double>(elapsed_ns);
  }
};

}  // namespace cleat::perf
