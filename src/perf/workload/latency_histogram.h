// SPDX-License-Identifier: Apache-2.0
// Counts of latencies in log-linear buckets: exact below 128 ns, above that at most 1/128 (0.8 %) too large, up to any
// 64-bit value. Fixed memory; recording is a few instructions without a lock or an atomic read-modify-write.
//
// One thread records. Others may read at the same time (counters are stored and loaded atomically, relaxed): what they
// see is a state of a moment ago, and exact once the recording thread has been joined.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cleat::perf {

class LatencyHistogram {
 public:
  static constexpr uint32_t kSubBits = 7;
  static constexpr uint64_t kSub = 1ULL << kSubBits;
  static constexpr size_t kBuckets = (64 - kSubBits + 1) * kSub;

  void Record(uint64_t latency_ns) {
    Add(&counts_[Bucket(latency_ns)], 1);
    Add(&total_, 1);
    Add(&sum_ns_, latency_ns);
    if (latency_ns > max_ns_) Ref(&max_ns_).store(latency_ns, std::memory_order_relaxed);
    if (latency_ns < min_ns_) Ref(&min_ns_).store(latency_ns, std::memory_order_relaxed);
  }

  // Adds what another histogram has counted; the other may still be recorded to.
  void Merge(const LatencyHistogram& other);
  // What was counted since `earlier`, which was a copy (Merge into an empty one) of this one. min and max are those of
  // the buckets, not exact.
  LatencyHistogram Since(const LatencyHistogram& earlier) const;

  // The upper end of the bucket in which the given part (0 to 1) of all latencies is reached; 0 without any.
  uint64_t PercentileNs(double part) const;

  uint64_t total() const { return Get(total_); }
  uint64_t sum_ns() const { return Get(sum_ns_); }
  uint64_t min_ns() const { return total() == 0 ? 0 : Get(min_ns_); }
  uint64_t max_ns() const { return Get(max_ns_); }
  double mean_ns() const {
    return total() == 0 ? 0 : static_cast<double>(sum_ns()) / static_cast<double>(total());
  }
  uint64_t count(size_t bucket) const { return Get(counts_[bucket]); }

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

 private:
  static std::atomic_ref<uint64_t> Ref(uint64_t* value) { return std::atomic_ref<uint64_t>(*value); }
  static uint64_t Get(const uint64_t& value) {
    return Ref(const_cast<uint64_t*>(&value)).load(std::memory_order_relaxed);
  }
  static void Add(uint64_t* value, uint64_t more) {  // of the one thread that writes
    Ref(value).store(*value + more, std::memory_order_relaxed);
  }

  std::vector<uint64_t> counts_ = std::vector<uint64_t>(kBuckets);  // cheap to move
  uint64_t total_ = 0;
  uint64_t sum_ns_ = 0;
  uint64_t min_ns_ = UINT64_MAX;
  uint64_t max_ns_ = 0;
};

}  // namespace cleat::perf
