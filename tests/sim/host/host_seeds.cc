// SPDX-License-Identifier: Apache-2.0
#include "host_seeds.h"

#include <fmt/format.h>

#include <cstdio>

namespace cleat::sim {
namespace {

uint64_t seed_under_way = 0;

}  // namespace

uint64_t SeedUnderWay() {
  return seed_under_way;
}

std::string RunHostSeeds(uint64_t first, uint64_t count, HostResult& sum) {
  for (uint64_t seed = first; seed < first + count; ++seed) {
    seed_under_way = seed;
    const HostResult result = RunHost({.seed = seed});
    sum.acknowledged += result.acknowledged;
    sum.cleatd_deaths += result.cleatd_deaths;
    sum.engine_processes += result.engine_processes;
    sum.syncs += result.syncs;
    sum.points += result.points;
    if (!result.violated.empty())
      return fmt::format("seed {}; again: sim_host --seed {} --trace 1\n{}", seed, seed, result.violated);
  }
  return {};
}

void PrintSum(const HostResult& sum) {
  fmt::print("{} changes acknowledged, cleatd died {} times, {} engine processes, {} syncs, {} points\n",
             sum.acknowledged, sum.cleatd_deaths, sum.engine_processes, sum.syncs, sum.points);
  std::fflush(stdout);
}

}  // namespace cleat::sim
