// SPDX-License-Identifier: Apache-2.0
// The longest silence between two completions of a device that always has requests in flight: what a guest sees of an
// engine's death. One thread completes, another asks.
#pragma once

#include <atomic>
#include <cstdint>

namespace cleat::perf {

class GapMeter {
 public:
  // The completing thread. The first one ends no silence.
  void Completed(uint64_t now_ns) {
    if (last_ns_ != 0 && now_ns > last_ns_) Keep(now_ns - last_ns_);
    last_ns_ = now_ns;
  }

  // The longest silence that has ended since the last call; 0 when there was none. Any thread.
  uint64_t TakeLongestNs() { return longest_ns_.exchange(0, std::memory_order_relaxed); }

 private:
  void Keep(uint64_t gap_ns) {
    uint64_t longest_ns = longest_ns_.load(std::memory_order_relaxed);
    while (gap_ns > longest_ns &&
           !longest_ns_.compare_exchange_weak(longest_ns, gap_ns, std::memory_order_relaxed)) {
    }
  }

  uint64_t last_ns_ = 0;
  std::atomic<uint64_t> longest_ns_{0};
};

}  // namespace cleat::perf
