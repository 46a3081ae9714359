// SPDX-License-Identifier: Apache-2.0
// What the order of READs is worth, in the model of an adapter. Time is virtual: the same seed gives the same figures everywhere.
#include "tests/sim/rdma/read_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "tests/sim/rdma/read_comparison.h"

namespace cleat::sim::rdma::read_policies_test {
namespace {

// The one at the lower side of the middle, which no rounding flatters.
double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

double Least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

class ReadPolicies : public testing::TestWithParam<LatencyLaw> {
 protected:
  static Load MakeLoad(bool in_order) {
    Load load;
    load.law = GetParam();
    load.in_order = in_order;
    load.writes = 300;
    return load;
  }
};
INSTANTIATE_TEST_SUITE_P(Laws, ReadPolicies, testing::Values(LatencyLaw::kEven, LatencyLaw::kExponential),
                         [](const auto& law) {
                           return law.param == LatencyLaw::kEven ? "Even" : "Exponential";
                         });

TEST_P(ReadPolicies, MoreIsReadAndSoonerThanWithPartsThatOthersWaitFor) {
  const Comparison as_they_come = CompareWith(PolicyKind::kSpdk, MakeLoad(false));
  EXPECT_GE(Median(as_they_come.throughput), 1.3);
  EXPECT_LE(Median(as_they_come.p99), 0.75);
  EXPECT_GE(Least(as_they_come.cleat_credit_use_percent), 99);
  const Comparison in_order = CompareWith(PolicyKind::kSpdk, MakeLoad(true));
  EXPECT_GE(Median(in_order.throughput), 1.08);
  EXPECT_LE(Median(in_order.p99), 0.93);
}

TEST_P(ReadPolicies, MoreIsReadAndSoonerThanWithWritesThatGoAsAWhole) {
  for (const bool in_order : {false, true}) {
    const Comparison comparison = CompareWith(PolicyKind::kWholeRequests, MakeLoad(in_order));
    EXPECT_GE(Median(comparison.throughput), 1.15) << in_order;
    EXPECT_LE(Median(comparison.p99), 0.87) << in_order;
  }
}

TEST_P(ReadPolicies, WritesAreSoonerWholeThanWhereTheyAreOvertaken) {
  EXPECT_LE(Median(CompareWith(PolicyKind::kReorders, MakeLoad(true)).p99), 0.75);
}

// Nor does any policy read more than the credits allow.
TEST_P(ReadPolicies, NoOrderOfOneWritesReadsWouldBeMuchBetter) {
  const Comparison comparison = CompareWith(PolicyKind::kOracle, MakeLoad(false));
  EXPECT_GE(Median(comparison.throughput), 0.99);
  EXPECT_LE(Median(comparison.p99), 1.03);
  Load load = MakeLoad(false);
  load.writes = 10'000;
  const double most = 1e6 * load.credits / static_cast<double>(load.mean_ns);
  EXPECT_NEAR(RunPolicy(PolicyKind::kCleat, load).reads_per_ms / most, 1, 0.02);
}

TEST_P(ReadPolicies, WithOneReadAWriteAllAreTheSame) {
  Load load = MakeLoad(true);
  load.reads_a_write = 1;
  const Outcome cleat = RunPolicy(PolicyKind::kCleat, load);
  for (const PolicyKind kind : kPolicyKinds) {
    const Outcome theirs = RunPolicy(kind, load);
    EXPECT_EQ(theirs.p99_ns, cleat.p99_ns) << NameOf(kind);
    EXPECT_EQ(theirs.reads_per_ms, cleat.reads_per_ms) << NameOf(kind);
  }
}

// SPDK's order leaves the link empty each time that it has fetched what it had posted.
TEST_P(ReadPolicies, ALinkThatFewReadsFillIsUsedMore) {
  Load load = MakeLoad(true);
  load.link_ns = load.mean_ns / 4;
  load.writes = 4'000;
  const double most = 1e6 / static_cast<double>(load.link_ns);
  const double cleat = RunPolicy(PolicyKind::kCleat, load).reads_per_ms;
  EXPECT_LE(cleat / most, 1.001);
  if (GetParam() == LatencyLaw::kEven) {
    EXPECT_GE(cleat / most, 0.98);
  }
  EXPECT_GE(cleat / RunPolicy(PolicyKind::kSpdk, load).reads_per_ms, 1.2);
}

// One FIFO of READs, with a defect that the model is to notice.
class Defective final : public ReadPolicy {
 public:
  enum class Defect : uint8_t { kOneCreditTooMany, kOneCreditIdle, kPostsTwice, kForgets };
  Defective(Defect defect, const Load& load) : defect_(defect), most_(load.credits) {
    if (defect == Defect::kOneCreditTooMany) ++most_;
    if (defect == Defect::kOneCreditIdle) --most_;
  }

  void Add(Write& write) override {
    const bool defective = ++writes_ % 100 == 0;
    if (defective && defect_ == Defect::kForgets) return;
    for (uint32_t i = 0; i < write.read_ns.size(); ++i) waiting_.push_back({&write, i});
    if (defective && defect_ == Defect::kPostsTwice) waiting_.push_back(waiting_.back());
  }
  PostedRead Next() override {
    if (waiting_.empty() || outstanding_ == most_) return {};
    ++outstanding_;
    const PostedRead read = waiting_.front();
    waiting_.pop_front();
    return read;
  }
  void Completed(const PostedRead& /*read*/) override { --outstanding_; }

 private:
  const Defect defect_;
  uint32_t most_, outstanding_ = 0, writes_ = 0;
  std::deque<PostedRead> waiting_;
};

TEST(ReadModelDeathTest, NoticesAPolicyThatBreaksTheRules) {
  Load load;
  load.writes = 2'000;
  const auto run = [&](Defective::Defect defect) {
    Defective policy(defect, load);
    return RunReads(load, policy);
  };
  EXPECT_DEATH(run(Defective::Defect::kOneCreditTooMany), "one credit too many");
  EXPECT_DEATH(run(Defective::Defect::kPostsTwice), "posted once");
  EXPECT_DEATH(run(Defective::Defect::kForgets), "under_way_ == 0");
  EXPECT_NEAR(run(Defective::Defect::kOneCreditIdle).credit_use_percent, 100.0 * 15 / 16, 0.1);
}

}  // namespace
}  // namespace cleat::sim::rdma::read_policies_test
