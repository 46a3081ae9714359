// SPDX-License-Identifier: Apache-2.0
// Runs the tests; or seeds, `sim_host --seed 7 --trace 1`, `sim_host --seeds 20000`.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/log.h"
#include "control/state/host_state.h"
#include "host_run.h"
#include "host_seeds.h"
#include "tests/support/test_main.h"

namespace cleat::sim {
namespace {

// A failed check has said what; this is where.
void OnAbort(int) {
  char text[80];
  const int length = std::snprintf(text, sizeof(text), "while seed %llu was run\n",
                                   static_cast<unsigned long long>(SeedUnderWay()));
  std::fwrite(text, 1, static_cast<size_t>(length), stderr);
}

[[noreturn]] void Usage(const char* program) {
  std::fprintf(stderr, "usage: %s [--seeds COUNT] [--seed N] [--trace 1] [googletest's options]\n", program);
  std::exit(2);
}

int Main(int argc, char** argv) {
  HostConfig config{.seed = 0};
  uint64_t seeds = 0;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    char* end = nullptr;
    const uint64_t value = i + 1 < argc ? std::strtoull(argv[i + 1], &end, 10) : 0;
    if (i + 1 >= argc || *end != '\0') Usage(argv[0]);
    if (option == "--seed") {
      config.seed = value;
    } else if (option == "--seeds") {
      seeds = value;
    } else if (option == "--trace") {
      config.trace = value != 0;
    } else {
      Usage(argv[0]);
    }
  }
  if (config.seed == 0 && seeds == 0) return RUN_ALL_TESTS();
  HostResult sum;
  std::string violated;
  if (seeds > 0) {
    violated = RunHostSeeds(config.seed == 0 ? 1 : config.seed, seeds, sum);
  } else {
    sum = RunHost(config);
    violated = sum.violated;
  }
  PrintSum(sum);
  std::printf("%s\n", violated.empty() ? "ok" : violated.c_str());
  return violated.empty() ? 0 : 1;
}

}  // namespace
}  // namespace cleat::sim

int main(int argc, char** argv) {
  // What daemons say about dying peers is of no interest here, but to who looks for what a seed does: CLEAT_LOG=info.
  const char* level = std::getenv("CLEAT_LOG");
  if (!cleat::log::Init(argv[0], level == nullptr ? "critical" : level)) return 1;
  std::signal(SIGABRT, cleat::sim::OnAbort);
  cleat::control::HostState::CheckAlways();
  cleat::test::InitTestProgram(&argc, argv);
  return cleat::sim::Main(argc, argv);
}
