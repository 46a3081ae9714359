// SPDX-License-Identifier: Apache-2.0
#include "perf/workload/latency_histogram.h"

#include <algorithm>

namespace cleat::perf {

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  uint64_t total = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    const uint64_t count = other.count(i);
    counts_[i] += count;
    total += count;
  }
  if (total == 0) return;
  // Of the buckets, so that it agrees with them also while the other is being recorded to.
  total_ += total;
  sum_ns_ += other.sum_ns();
  min_ns_ = std::min(min_ns_, Get(other.min_ns_));
  max_ns_ = std::max(max_ns_, other.max_ns());
}

LatencyHistogram LatencyHistogram::Since(const LatencyHistogram& earlier) const {
  LatencyHistogram since;
  for (size_t i = 0; i < kBuckets; ++i) {
    since.counts_[i] = count(i) - earlier.count(i);
    since.total_ += since.counts_[i];
    if (since.counts_[i] == 0) continue;
    if (since.min_ns_ == UINT64_MAX) since.min_ns_ = UpperNs(i);
    since.max_ns_ = std::min(UpperNs(i), max_ns());
  }
  since.sum_ns_ = sum_ns() - earlier.sum_ns();
  return since;
}

uint64_t LatencyHistogram::PercentileNs(double part) const {
  const uint64_t all = total();
  if (all == 0) return 0;
  const auto wanted = static_cast<uint64_t>(part * static_cast<double>(all));
  uint64_t below = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    below += count(i);
    if (below > wanted || below >= all) return std::min(UpperNs(i), max_ns());
  }
  return max_ns();
}

}  // namespace cleat::perf
