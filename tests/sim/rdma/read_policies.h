// SPDX-License-Identifier: Apache-2.0
// The order of READs as Cleat has it (nvme/rdma_target/read_scheduler.h), and as others have or had it. SPDK's limit of the send queue is left out, and
// that it posts in the midst of a look at the completion queue, with the credits that it has seen by then: both would make its figures worse.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "tests/sim/rdma/read_model.h"

namespace cleat::sim::rdma {

enum class PolicyKind : uint8_t {
  kCleat,  // one FIFO of READs
  kWholeRequests,  // SPDK before 23.09: one FIFO of writes; the first one goes when there are credits for all of its READs
  kReorders,  // SPDK 23.09 to 24.05 (ca59dd5d35): of the first write as many READs as there are credits; its rest goes to the end of the queue
  kSpdk,  // SPDK 24.09 to 26.05 (e53bd98a3a): likewise; its rest, and those behind it, when all of these READs have come
  kOracle,  // one FIFO of READs by one that knows beforehand how long each will take: of a write the longest first
};
inline constexpr std::array kPolicyKinds = {PolicyKind::kCleat, PolicyKind::kWholeRequests, PolicyKind::kSpdk,
                                            PolicyKind::kReorders, PolicyKind::kOracle};

const char* NameOf(PolicyKind kind);  // as in the names of figures
std::unique_ptr<ReadPolicy> MakePolicy(PolicyKind kind, const Load& load);

}  // namespace cleat::sim::rdma
