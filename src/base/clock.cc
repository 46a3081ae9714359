// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace cleat {

uint64_t MonotonicClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace cleat
