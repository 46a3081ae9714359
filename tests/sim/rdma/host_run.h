// SPDX-License-Identifier: Apache-2.0
// One reactor of hosts over RDMA with some controllers, from a seed to the end of all: initiator_model.h below, guest_model.h above, remote_target.h at the
// other end. Connections end and come anew by the same numbers.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/rdma/initiator_model.h"

namespace cleat::sim::rdma {

enum class HostDefect : uint8_t {
  kNone,
  kGivesMemoryBackAtTheEnd,  // the maker says that the queue pair is destroyed, and destroys it later
  kForgetsWindows,           // the maker does not destroy windows that may be bound
  kDestroysWithoutPolling,   // what a queue pair has received is lost with it
};

struct HostOutcome {
  std::string wrong;  // the first thing, or nothing
  uint64_t completed = 0;
  uint64_t unanswered = 0;
  uint64_t connections = 0;
  uint64_t ended = 0;    // before their guest was done
  uint64_t refused = 0;  // accesses of controllers
};

HostOutcome RunHost(uint64_t seed, InitiatorDefect adapter_defect, HostDefect host_defect);

}  // namespace cleat::sim::rdma
