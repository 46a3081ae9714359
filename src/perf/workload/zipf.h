// SPDX-License-Identifier: Apache-2.0
// Numbers from 0 to count - 1 of which the k-th most frequent is drawn with a probability in proportion to 1 / k^theta:
// some blocks of a disk are hot, most are not. Rejection-inversion (W. Hoermann, G. Derflinger, "Rejection-inversion to
// generate variates from monotone discrete distributions", 1996): constant time and memory for any count. A rank is
// then mapped to a number by a multiplication modulo count, so that the hot numbers are not neighbours. One thread.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace cleat::perf {

class Zipf {
 public:
  static constexpr double kThetaMin = 0.01;
  static constexpr double kThetaMax = 10;

  Zipf(uint64_t count, double theta);

  uint64_t Next(Random& random) { return Scatter(NextRank(random)); }
  uint64_t NextRank(Random& random);  // 0 is the most frequent
  uint64_t Scatter(uint64_t rank) const {
    return static_cast<uint64_t>(Wide{rank} * kPrime % count_);  // a bijection: see the constructor
  }

 private:
  static constexpr uint64_t kPrime = 0xffff'ffff'ffff'ffc5ULL;  // the largest below 2^64
  double H(double x) const;                                     // the integral of x^-theta
  double InverseH(double x) const;

  const uint64_t count_;
  const double theta_;
  double h_first_;
  double h_last_;
  double accept_;
};

}  // namespace cleat::perf
