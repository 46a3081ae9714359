// SPDX-License-Identifier: Apache-2.0
#include "command_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "tests/support/test_main.h"

namespace cleat::sim {
namespace {

std::string program;  // as it was called

[[noreturn]] void Usage() {
  std::fprintf(stderr, "usage: %s [--seed N [--ops M] [--trace]] [googletest's options]\n", program.c_str());
  std::exit(2);
}

uint64_t Number(int argc, char** argv, int index) {
  char* end = nullptr;
  const uint64_t value = index < argc ? std::strtoull(argv[index], &end, 10) : 0;
  if (value == 0 || *end != '\0') Usage();
  return value;
}

}  // namespace

std::string ReplayCommand(uint64_t seed, uint64_t operations) {
  return program + " --seed " + std::to_string(seed) + " --ops " + std::to_string(operations) + " --trace";
}

int RunMain(int argc, char** argv, const std::function<std::string(const CommandLine&)>& replay) {
  program = argv[0];
  // What the engine says about injected failures is of no interest here.
  if (!log::Init(program, "critical")) std::fprintf(stderr, "no log\n");
  test::InitTestProgram(&argc, argv);
  CommandLine line;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--seed") {
      line.seed = Number(argc, argv, ++i);
    } else if (argument == "--ops") {
      line.operations = Number(argc, argv, ++i);
    } else if (argument == "--trace") {
      line.trace = true;
    } else {
      Usage();
    }
  }
  if (line.seed == 0) return RUN_ALL_TESTS();
  const std::string violated = replay(line);
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(line.seed),
              violated.empty() ? "ok" : violated.c_str());
  return violated.empty() ? 0 : 1;
}

}  // namespace cleat::sim
