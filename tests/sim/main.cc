// SPDX-License-Identifier: Apache-2.0
// sim_test: gtest's and ctest's options, or `--seed N [--ops M] [--trace]` for one run of the random operations.
#include "command_line.h"
#include "operations.h"

namespace cleat::sim {
namespace {

std::string RunOperations(const CommandLine& line) {
  OperationsConfig config;
  config.seed = line.seed;
  config.operations = line.operations != 0 ? line.operations : config.operations;
  config.trace = line.trace;
  Operations operations(config);
  return operations.Run();
}

}  // namespace
}  // namespace cleat::sim

int main(int argc, char** argv) {
  return cleat::sim::RunMain(argc, argv, cleat::sim::RunOperations);
}
