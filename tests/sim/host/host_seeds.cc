// SPDX-License-Identifier: Apache-2.0
#include "host_seeds.h"

#include <fmt/format.h>

#include <cstdio>

namespace cleat::sim {
std::string RunHostSeeds(uint64_t first, uint64_t count, HostResult& sum) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const HostResult result = RunHost({.seed = seed});
    sum.acknowledged += result.acknowledged;
    sum.cleatd_deaths += result.cleatd_deaths;
    sum.engine_deaths += result.engine_deaths;
    sum.syncs += result.syncs;
    sum.points += result.points;
    if (!result.violated.empty())
      return fmt::format("seed {}; again: sim_host --seed {} --trace 1\n{}", seed, seed, result.violated);
  }
  return {};
}

void PrintSum(const HostResult& sum) {
  fmt::print("{} changes acknowledged, cleatd died {} times, engines {} times, {} syncs, {} points\n",
             sum.acknowledged, sum.cleatd_deaths, sum.engine_deaths, sum.syncs, sum.points);
  std::fflush(stdout);
}

}  // namespace cleat::sim
