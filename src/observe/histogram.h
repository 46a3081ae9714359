// SPDX-License-Identifier: Apache-2.0
// Log-linear buckets for durations in ns: exact below 32, above that 32 buckets for each power of two, so a bucket is at
// most 1/32 (3.1 %) wide, and what is told as its middle is off by half of that. Pure arithmetic, for writer and reader.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace cleat::observe {

// Buckets of one power of two lie together: a group. Group 0 is 0 to 31 ns, group g is [2^(4+g), 2^(5+g)).
inline constexpr uint32_t kGroupBits = 5;
inline constexpr uint32_t kGroupBuckets = 1U << kGroupBits;
inline constexpr uint32_t kGroups = 33;  // to 137 s; what lasts longer is counted in the last bucket

struct BucketAt {
  uint32_t group;
  uint32_t bucket;  // in the group
};

constexpr BucketAt BucketOf(uint64_t duration_ns) {
  constexpr uint64_t kLongest = (uint64_t{1} << (kGroups - 1 + kGroupBits)) - 1;
  const uint64_t ns = std::min(duration_ns, kLongest);
  if (ns < kGroupBuckets) return {0, static_cast<uint32_t>(ns)};
  const auto shift = static_cast<uint32_t>(std::bit_width(ns)) - 1 - kGroupBits;
  return {shift + 1, static_cast<uint32_t>(ns >> shift) - kGroupBuckets};
}

constexpr uint64_t BucketLowestNs(BucketAt at) {
  return at.group == 0 ? at.bucket : uint64_t{kGroupBuckets + at.bucket} << (at.group - 1);
}
constexpr uint64_t BucketHighestNs(BucketAt at) {
  return at.group == 0 ? at.bucket : (uint64_t{kGroupBuckets + at.bucket + 1} << (at.group - 1)) - 1;
}
constexpr uint64_t BucketMiddleNs(BucketAt at) {
  return (BucketLowestNs(at) + BucketHighestNs(at)) / 2;
}

}  // namespace cleat::observe
