// SPDX-License-Identifier: Apache-2.0
// Cleat's order of READs beside another one, over loads from few small writes to many large ones.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/sim/rdma/read_policies.h"

namespace cleat::sim::rdma {

inline constexpr uint32_t kReadsMin = 2, kReadsMax = 16;  // of a write; with one all orders are the same
inline constexpr std::array<uint32_t, 4> kDepths = {32, 64, 128, 256};

// An entry for each number of writes under way and of READs a write. Throughput and latencies are Cleat's over the other's.
struct Comparison {
  std::vector<double> throughput, p99, small_p99;
  std::vector<double> most;  // READs a second that the credits can ever bring, over the other's
  std::vector<double> credit_use_percent, cleat_credit_use_percent;
};

Outcome RunPolicy(PolicyKind kind, const Load& load);

// `load` says all but what is varied.
Comparison CompareWith(PolicyKind other, Load load);

}  // namespace cleat::sim::rdma
