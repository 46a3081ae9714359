// SPDX-License-Identifier: Apache-2.0
// One run of the simulation of a host: cleatd, its callers and two engines in one virtual time, all drawn from a seed. cleatd and engines die
// at any step, the power fails, syncs of the store take long or fail, engines stall, disks don't open, guests don't drain. All the while no two engines serve
// the same, each life of cleatd finds what the former ones have acknowledged, and engines have nothing that was not durable first. Left in
// peace, everything becomes what was asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cleat::sim {

struct HostConfig {
  uint64_t seed = 1;
  bool trace = false;
  uint32_t turns = 80;  // in which something is asked for, or goes wrong
  // For negative controls: called on the thread of a call before its answer; false: there is none.
  std::function<bool()> before_answer = {};
  bool disk_lies = false;  // likewise: the disk under the store says that it has synced, and has not
};

struct HostResult {
  std::string violated;       // empty: nothing
  uint64_t acknowledged = 0;  // changes
  // Until it was left in peace.
  uint64_t cleatd_deaths = 0;
  uint64_t engine_deaths = 0;
  uint64_t syncs = 0;
  uint64_t points = 0;  // at which threads took turns, or might have
  uint64_t digest = 0;
};

HostResult RunHost(const HostConfig& config);

// For whoever stops the process, by a failed check say.
uint64_t SeedUnderWay();

}  // namespace cleat::sim
