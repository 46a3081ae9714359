// SPDX-License-Identifier: Apache-2.0
// Which I/O reactors a controller's queues run on: as many as it has queues, beginning with the one that has the
// fewest queues, so that many small disks spread over all reactors. Control reactor.
#pragma once

#include <cstddef>
#include <vector>

#include "reactor/reactor.h"

namespace cleat::engine {

class Placement {
 public:
  explicit Placement(const std::vector<Reactor*>& reactors) : reactors_(reactors), queues_(reactors.size()) {}

  // For `queues` virtqueues, of which queue q runs on the result's [q % size]. Given back as it is.
  std::vector<Reactor*> Take(size_t queues);
  void GiveBack(const std::vector<Reactor*>& reactors, size_t queues);

 private:
  void Count(const std::vector<Reactor*>& reactors, size_t queues, bool more);

  const std::vector<Reactor*>& reactors_;
  std::vector<size_t> queues_;  // placed on each reactor
};

}  // namespace cleat::engine
