// SPDX-License-Identifier: Apache-2.0
// One reactor of a target over RDMA with some hosts, from a seed to the end of all: model_adapter.h below, storage_model.h above, host_model.h at the other
// end. Connections end and come anew by the same numbers.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/rdma/model_adapter.h"

namespace cleat::sim::rdma {

enum class TargetDefect : uint8_t {
  kNone,
  kReusesMemoryAtTheEnd,    // the owner does not wait for Give
  kDestroysWithoutPolling,  // what a queue pair has received is lost with it
};

struct TargetOutcome {
  std::string wrong;  // the first thing, or nothing
  uint64_t answered = 0;
  uint64_t connections = 0;
  uint64_t ended = 0;  // before their host was done
};

TargetOutcome RunTarget(uint64_t seed, AdapterDefect adapter_defect, TargetDefect target_defect);

}  // namespace cleat::sim::rdma
