// SPDX-License-Identifier: Apache-2.0
#include "engine/attached/placement.h"

#include <algorithm>

#include "base/check.h"

namespace cleat::engine {

std::vector<Reactor*> Placement::Take(size_t queues) {
  CLEAT_CHECK(queues > 0);
  const auto first = static_cast<size_t>(std::min_element(queues_.begin(), queues_.end()) - queues_.begin());
  std::vector<Reactor*> taken;
  for (size_t i = 0; i < std::min(queues, reactors_.size()); ++i) {
    taken.push_back(reactors_[(first + i) % reactors_.size()]);
  }
  Count(taken, queues, true);
  return taken;
}

void Placement::GiveBack(const std::vector<Reactor*>& reactors, size_t queues) {
  Count(reactors, queues, false);
}

void Placement::Count(const std::vector<Reactor*>& reactors, size_t queues, bool more) {
  for (size_t i = 0; i < queues; ++i) {
    const Reactor* reactor = reactors[i % reactors.size()];
    const auto index =
        static_cast<size_t>(std::find(reactors_.begin(), reactors_.end(), reactor) - reactors_.begin());
    if (more) {
      ++queues_[index];
    } else {
      CLEAT_CHECK(queues_[index] > 0);
      --queues_[index];
    }
  }
}

}  // namespace cleat::engine
