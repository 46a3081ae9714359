// SPDX-License-Identifier: Apache-2.0
// Nanoseconds as seconds, for messages.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace cleat::control {

inline double ToSeconds(uint64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kNsPerSecond);
}

}  // namespace cleat::control
