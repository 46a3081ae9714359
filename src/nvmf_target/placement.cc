// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/placement.h"

#include <algorithm>

#include "base/check.h"

namespace cleat::nvmf_target {

size_t ChooseReactor(std::span<const ReactorLoad> reactors, int incoming_cpu, size_t in_turn) {
  CLEAT_CHECK(in_turn < reactors.size());
  const auto least = std::ranges::min_element(reactors, {}, &ReactorLoad::queues);
  const auto may_have_it = [&](const ReactorLoad& reactor) {
    return reactor.queues <= least->queues + kImbalanceMax;
  };
  if (incoming_cpu != kAnyCpu) {
    const auto near = std::ranges::find_if(reactors, [&](const ReactorLoad& reactor) {
      return reactor.cpu == incoming_cpu && may_have_it(reactor);
    });
    if (near != reactors.end()) return static_cast<size_t>(near - reactors.begin());
  }
  return may_have_it(reactors[in_turn]) ? in_turn : static_cast<size_t>(least - reactors.begin());
}

}  // namespace cleat::nvmf_target
