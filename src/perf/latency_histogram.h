// SPDX-License-Identifier: Apache-2.0
// Counts of latencies in buckets of about 3 % width, from a nanosecond to minutes. Fixed memory; recording is
// a few instructions. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace cleat::perf {

class LatencyHistogram {
 public:
  void Record(uint64_t latency_ns) {
    ++counts_[Bucket(latency_ns)];
    ++total_;
    max_ns_ = std::max(max_ns_, latency_ns);
  }

  // The upper end of the bucket in which the given part (0 to 1) of all latencies is reached; 0 without any.
  uint64_t PercentileNs(double part) const {
    const auto wanted = static_cast<uint64_t>(part * static_cast<double>(total_));
    uint64_t below = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      below += counts_[i];
      if (below > wanted || (below == total_ && total_ > 0)) return std::min(UpperNs(i), max_ns_);
    }
    return 0;
  }

  uint64_t total() const { return total_; }
  uint64_t max_ns() const { return max_ns_; }

 private:
  static constexpr uint32_t kSubBits = 5;
  static constexpr uint64_t kSub = 1ULL << kSubBits;
  static constexpr size_t kBuckets = (64 - kSubBits + 1) * kSub;

  // Exact below 2 * kSub; above, kSub buckets for each power of two.
  static size_t Bucket(uint64_t ns) {
    if (ns < kSub) return ns;
    const auto shift = static_cast<uint32_t>(std::bit_width(ns)) - 1 - kSubBits;
    return (shift + 1) * kSub + ((ns >> shift) - kSub);
  }
  static uint64_t UpperNs(size_t bucket) {
    if (bucket < kSub) return bucket;
    const size_t shift = bucket / kSub - 1;
    return (((kSub + bucket % kSub) + 1) << shift) - 1;
  }

  std::array<uint64_t, kBuckets> counts_{};
  uint64_t total_ = 0;
  uint64_t max_ns_ = 0;
};

}  // namespace cleat::perf
