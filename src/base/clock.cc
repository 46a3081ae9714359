// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <ctime>

namespace cleat {

uint64_t MonotonicClock::NowNs() const {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kNsPerSecond + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t SecondsSince1970() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec);
}

}  // namespace cleat
