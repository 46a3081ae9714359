// SPDX-License-Identifier: Apache-2.0
// A host's reactor and a target's, both as engines have them, at the two ends of one wire: from a seed to the end of all. guest_model.h is above the one,
// storage_model.h above the other.
#pragma once

#include <cstdint>
#include <string>

namespace cleat::sim::rdma {

struct BothEndsOutcome {
  std::string wrong;  // the first thing, or nothing
  uint64_t completed = 0;
  uint64_t unanswered = 0;
};

BothEndsOutcome RunBothEnds(uint64_t seed);

}  // namespace cleat::sim::rdma
