// SPDX-License-Identifier: Apache-2.0
// The simulation's own arguments: without any, the tests run with their fixed seeds; with --seed, one run of that seed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace cleat::sim {

struct CommandLine {
  uint64_t seed = 0;        // 0: not given
  uint64_t operations = 0;  // 0: as the test has it
  bool trace = false;
};

// The command that runs this seed again.
std::string ReplayCommand(uint64_t seed, uint64_t operations);

// For main: `replay` runs one seed and returns what was violated.
int RunMain(int argc, char** argv, const std::function<std::string(const CommandLine&)>& replay);

}  // namespace cleat::sim
