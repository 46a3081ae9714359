// SPDX-License-Identifier: Apache-2.0
#include "pool/extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "base/random.h"

namespace cleat::pool::extents_test {
namespace {

constexpr uint32_t kExtents = 60;

ExtentRun AnyRun(Random& random) {
  const auto first = static_cast<uint32_t>(random.Below(kExtents));
  return {first, static_cast<uint32_t>(random.Between(1, std::min<uint64_t>(kExtents - first, 12)))};
}

// The same set, an extent at a time.
class Model {
 public:
  bool IsFree(ExtentRun run) const { return CountIn(run) == 0; }
  bool HasAll(ExtentRun run) const { return CountIn(run) == run.count; }
  void Add(ExtentRun run) {
    for (uint32_t i = run.first; i < run.end(); ++i) set_.insert(i);
  }
  void Remove(ExtentRun run) {
    for (uint32_t i = run.first; i < run.end(); ++i) set_.erase(i);
  }
  ExtentRuns Runs() const {
    ExtentRuns runs;
    for (const uint32_t extent : set_) {
      if (!runs.empty() && runs.back().end() == extent) {
        ++runs.back().count;
      } else {
        runs.push_back({extent, 1});
      }
    }
    return runs;
  }
  uint32_t longest() const {
    uint32_t longest = 0;
    for (const ExtentRun& run : Runs()) longest = std::max(longest, run.count);
    return longest;
  }
  size_t count() const { return set_.size(); }

 private:
  uint32_t CountIn(ExtentRun run) const {
    const auto end = set_.lower_bound(static_cast<uint32_t>(run.end()));
    return static_cast<uint32_t>(std::distance(set_.lower_bound(run.first), end));
  }

  std::set<uint32_t> set_;
};

// What Take promises of the runs that it took out of `before`.
void ExpectFewestRuns(const ExtentRuns& taken, const Model& before, uint32_t count) {
  EXPECT_EQ(CountOf(taken), count);
  EXPECT_TRUE(AreWithin(taken, kExtents));
  for (const ExtentRun& run : taken) EXPECT_TRUE(before.HasAll(run));
  std::vector<uint32_t> lengths;
  for (const ExtentRun& run : before.Runs()) lengths.push_back(run.count);
  std::sort(lengths.rbegin(), lengths.rend());
  size_t fewest = 0;
  for (uint32_t sum = 0; sum < count; ++fewest) sum += lengths[fewest];
  EXPECT_EQ(taken.size(), fewest);
  if (fewest != 1) return;
  // The run that it came from is the shortest of those that are long enough.
  const ExtentRuns runs = before.Runs();
  const auto from = std::find_if(runs.begin(), runs.end(), [&](const ExtentRun& run) {
    return run.first <= taken[0].first && taken[0].end() <= run.end();
  });
  ASSERT_NE(from, runs.end());
  for (const ExtentRun& run : runs) EXPECT_FALSE(run.count >= count && run.count < from->count);
}

void TakeFromBoth(Random& random, ExtentSet& set, Model& model) {
  const auto count = static_cast<uint32_t>(random.Below(kExtents / 2));
  const Model before = model;
  const auto taken = set.Take(count);
  ASSERT_EQ(taken.has_value(), count <= before.count());
  if (!taken) return;
  ExpectFewestRuns(*taken, before, count);
  for (const ExtentRun& run : *taken) model.Remove(run);
}

TEST(ExtentSet, IsWhatASetOfNumbersIs) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ExtentSet set;
    Model model;
    for (int step = 0; step < 100; ++step) {
      const ExtentRun run = AnyRun(random);
      ASSERT_EQ(set.IsFree(run), model.IsFree(run));
      ASSERT_EQ(set.HasAll(run), model.HasAll(run));
      if (random.Chance(1, 8)) {
        TakeFromBoth(random, set, model);
      } else if (model.IsFree(run)) {
        set.Add(run);
        model.Add(run);
      } else if (model.HasAll(run)) {
        set.Remove(run);
        model.Remove(run);
      }
      ASSERT_EQ(set.Runs(), model.Runs());
      ASSERT_EQ(set.count(), model.count());
      ASSERT_EQ(set.longest(), model.longest());
      ASSERT_EQ(set.empty(), model.count() == 0);
    }
  }
}

TEST(ExtentSet, LeavesAllWhenThereAreTooFew) {
  ExtentSet set;
  set.Add({.first = 3, .count = 4});
  EXPECT_FALSE(set.Take(5));
  EXPECT_EQ(set.Runs(), (ExtentRuns{{3, 4}}));
  EXPECT_EQ(set.Take(0), ExtentRuns());
}

TEST(ExtentRuns, EndWithinThePoolAndNameNoneTwice) {
  EXPECT_TRUE(AreWithin({}, 0));
  EXPECT_TRUE(AreWithin({{5, 5}, {0, 5}}, 10)) << "in any order";
  EXPECT_FALSE(AreWithin({{5, 6}}, 10));
  EXPECT_FALSE(AreWithin({{UINT32_MAX, UINT32_MAX}}, UINT32_MAX));
  EXPECT_FALSE(AreWithin({{1, 0}}, 10)) << "an empty run";
  EXPECT_FALSE(AreWithin({{0, 3}, {2, 1}}, 10)) << "extent 2 twice";
  EXPECT_EQ(CountOf({{0, UINT32_MAX}, {0, UINT32_MAX}}), 2 * uint64_t{UINT32_MAX});
}

}  // namespace
}  // namespace cleat::pool::extents_test
