// SPDX-License-Identifier: Apache-2.0
#include "observe/histogram.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "observe/reader.h"

namespace cleat::observe::histogram_test {
namespace {

TEST(BucketTest, EachDurationLiesInItsBucket) {
  Random random(1);
  for (int i = 0; i < 100'000; ++i) {
    const uint64_t ns = random.Next() >> (27 + random.Below(37));
    const BucketAt at = BucketOf(ns);
    ASSERT_LT(at.group, kGroups);
    ASSERT_LT(at.bucket, kGroupBuckets);
    ASSERT_LE(BucketLowestNs(at), ns);
    ASSERT_GE(BucketHighestNs(at), ns);
  }
}

TEST(BucketTest, BucketsFollowOneAnotherAndAreNarrow) {
  uint64_t next = 0;
  for (uint32_t group = 0; group < kGroups; ++group) {
    for (uint32_t bucket = 0; bucket < kGroupBuckets; ++bucket) {
      const BucketAt at{group, bucket};
      ASSERT_EQ(BucketLowestNs(at), next);
      const uint64_t width = BucketHighestNs(at) - BucketLowestNs(at) + 1;
      ASSERT_TRUE(width == 1 || width * 32 <= BucketLowestNs(at)) << group << " " << bucket;
      next = BucketHighestNs(at) + 1;
    }
  }
  EXPECT_EQ(next, uint64_t{1} << 37);
}

TEST(BucketTest, WhatLastsTooLongIsInTheLast) {
  const BucketAt last = BucketOf(UINT64_MAX);
  EXPECT_EQ(last.group, kGroups - 1);
  EXPECT_EQ(last.bucket, kGroupBuckets - 1);
}

Histogram Of(std::initializer_list<uint64_t> durations_ns) {
  Histogram histogram;
  for (const uint64_t ns : durations_ns) histogram.Add(BucketOf(ns).group, BucketOf(ns).bucket, 1);
  return histogram;
}

TEST(HistogramTest, PercentilesAreOffByHalfABucketAtMost) {
  Histogram histogram;
  for (uint64_t ns = 1; ns <= 100'000; ++ns) histogram.Add(BucketOf(ns).group, BucketOf(ns).bucket, 1);
  for (const double part : {0.01, 0.5, 0.9, 0.99, 0.999}) {
    const double exact = part * 100'000;
    EXPECT_NEAR(static_cast<double>(histogram.PercentileNs(part)), exact, exact / 64 + 1) << part;
  }
  EXPECT_NEAR(histogram.SumNs(), 100'000.0 * 100'001 / 2, 0.016 * 5e9);
  EXPECT_EQ(histogram.count(), 100'000U);
}

TEST(HistogramTest, NothingAndOne) {
  EXPECT_EQ(Histogram().PercentileNs(0.5), 0U);
  EXPECT_EQ(Histogram().LongestNs(), 0U);
  EXPECT_EQ(Of({20}).PercentileNs(0), 20U);
  EXPECT_EQ(Of({20}).PercentileNs(1), 20U);
}

TEST(HistogramTest, SumsAndDifferences) {
  Histogram both = Of({5, 1000});
  both.Add(Of({5, 1'000'000}));
  EXPECT_EQ(both.count(), 4U);
  EXPECT_EQ(both.CountUpTo(5), 2U);
  EXPECT_EQ(both.CountUpTo(2'000), 3U);
  const Histogram since = both.Since(Of({5, 1000}));
  EXPECT_EQ(since.count(), 2U);
  EXPECT_GE(since.LongestNs(), 1'000'000U);
  EXPECT_LT(since.LongestNs(), 1'040'000U);
}

}  // namespace
}  // namespace cleat::observe::histogram_test
