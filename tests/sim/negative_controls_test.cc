// SPDX-License-Identifier: Apache-2.0
// The checks would notice: each defect, planted in the simulation's own storage, transport or ring, must be found within
// a few seeds. A check that finds none of them proves nothing when it is silent.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "operations.h"

namespace cleat::sim::negative_controls_test {
namespace {

struct Control {
  Defect defect;
  const char* name;
};

class NegativeControlTest : public testing::TestWithParam<Control> {};

TEST_P(NegativeControlTest, IsFound) {
  constexpr uint64_t kSeeds = 5;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    OperationsConfig config;
    config.seed = seed;
    config.operations = 2'000;
    config.defect = GetParam().defect;
    const std::string found = Operations(config).Run();
    if (found.empty()) continue;
    std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
                 found.substr(0, found.find('\n')).c_str());
    return;
  }
  FAIL() << "no seed up to " << kSeeds << " shows '" << GetParam().name << "'";
}

INSTANTIATE_TEST_SUITE_P(
    Defects, NegativeControlTest,
    testing::Values(Control{Defect::kLoseWrite, "LoseWrite"}, Control{Defect::kTearWrite, "TearWrite"},
                    Control{Defect::kMisplaceWrite, "MisplaceWrite"},
                    Control{Defect::kStaleRead, "StaleRead"}, Control{Defect::kTwoOwners, "TwoOwners"},
                    Control{Defect::kKeepOwner, "KeepOwner"}, Control{Defect::kLeakDisk, "LeakDisk"},
                    Control{Defect::kLoseKick, "LoseKick"}, Control{Defect::kHideStatus, "HideStatus"},
                    Control{Defect::kDropCompletion, "DropCompletion"},
                    Control{Defect::kDuplicateCompletion, "DuplicateCompletion"},
                    Control{Defect::kSwapStatus, "SwapStatus"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cleat::sim::negative_controls_test
