// SPDX-License-Identifier: Apache-2.0
#include "perf/workload/zipf.h"

#include <algorithm>
#include <cmath>

namespace cleat::perf {
namespace {

constexpr double kTiny = 1e-8;

// (exp(x) - 1) / x and log(1 + x) / x, also where x is 0: there theta is 1.
double ExpRatio(double x) {
  return std::abs(x) > kTiny ? std::expm1(x) / x : 1 + x / 2;
}
double LogRatio(double x) {
  return std::abs(x) > kTiny ? std::log1p(x) / x : 1 - x / 2;
}

}  // namespace

Zipf::Zipf(uint64_t count, double theta) : count_(count), theta_(theta) {
  // A prime above every count has no divisor in common with it, so that Scatter gives each number once.
  CLEAT_CHECK(count > 0 && count < kPrime && theta >= kThetaMin && theta <= kThetaMax);
  h_first_ = H(1.5) - 1;
  h_last_ = H(static_cast<double>(count) + 0.5);
  accept_ = 2 - InverseH(H(2.5) - std::pow(2.0, -theta_));
}

double Zipf::H(double x) const {
  const double log_x = std::log(x);
  return ExpRatio((1 - theta_) * log_x) * log_x;
}

double Zipf::InverseH(double x) const {
  const double t = std::max(x * (1 - theta_), -1.0);
  return std::exp(LogRatio(t) * x);
}

uint64_t Zipf::NextRank(Random& random) {
  for (;;) {
    const double unit = static_cast<double>(random.Next() >> 11) * 0x1.0p-53;
    const double u = h_last_ + unit * (h_first_ - h_last_);
    const double x = InverseH(u);
    const auto k = std::clamp<uint64_t>(static_cast<uint64_t>(std::llround(x)), 1, count_);
    const auto kd = static_cast<double>(k);
    if (kd - x <= accept_ || u >= H(kd + 0.5) - std::pow(kd, -theta_)) return k - 1;
  }
}

}  // namespace cleat::perf
