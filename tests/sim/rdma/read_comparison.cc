// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rdma/read_comparison.h"

namespace cleat::sim::rdma {

namespace {

double Ratio(uint64_t a, uint64_t b) {
  return static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace

Outcome RunPolicy(PolicyKind kind, const Load& load) {
  return RunReads(load, *MakePolicy(kind, load));
}

Comparison CompareWith(PolicyKind other, Load load) {
  Comparison comparison;
  for (const uint32_t depth : kDepths) {
    for (uint32_t reads = kReadsMin; reads <= kReadsMax; ++reads) {
      load.writes_under_way = depth;
      load.reads_a_write = reads;
      const Outcome cleat = RunPolicy(PolicyKind::kCleat, load);
      const Outcome theirs = RunPolicy(other, load);
      comparison.throughput.push_back(cleat.reads_per_ms / theirs.reads_per_ms);
      comparison.p99.push_back(Ratio(cleat.p99_ns, theirs.p99_ns));
      const double most_per_ms = 1e6 * load.credits / static_cast<double>(load.mean_ns);
      comparison.most.push_back(most_per_ms / theirs.reads_per_ms);
      if (load.mixed) comparison.small_p99.push_back(Ratio(cleat.small_p99_ns, theirs.small_p99_ns));
      comparison.credit_use_percent.push_back(theirs.credit_use_percent);
      comparison.cleat_credit_use_percent.push_back(cleat.credit_use_percent);
    }
  }
  return comparison;
}

}  // namespace cleat::sim::rdma
