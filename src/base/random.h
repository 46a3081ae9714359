// SPDX-License-Identifier: Apache-2.0
// Seeded randomness (splitmix64): the same seed gives the same sequence on every machine. Not for secrets.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace cleat {

__extension__ using Wide = unsigned __int128;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound); bound > 0. The bias of the multiply-shift is below 2^-32 for the bounds used here.
  uint64_t Below(uint64_t bound) {
    CLEAT_CHECK(bound > 0);
    return static_cast<uint64_t>((static_cast<Wide>(Next()) * bound) >> 64);
  }

  // Uniform in [low, high].
  uint64_t Between(uint64_t low, uint64_t high) {
    CLEAT_CHECK(low <= high);
    const uint64_t span = high - low + 1;
    return span == 0 ? Next() : low + Below(span);  // 0: all 2^64 values
  }

  // True with probability numerator / denominator.
  bool Chance(uint64_t numerator, uint64_t denominator) { return Below(denominator) < numerator; }

 private:
  uint64_t state_;
};

}  // namespace cleat
