// SPDX-License-Identifier: Apache-2.0
// The checks of the simulated host would notice: each defect of cleatd is found within some seeds. Costs 3 s, with AddressSanitizer half a minute.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "defects/host_defect.h"
#include "host_run.h"

namespace cleat::sim::host_controls_test {
namespace {

struct Control {
  HostDefect defect;
  const char* name;
  const char* says;  // a part of what the check is to say
};

class HostControlTest : public testing::TestWithParam<Control> {
 protected:
  ~HostControlTest() override { planted = HostDefect::kNone; }
};

TEST_P(HostControlTest, IsFound) {
  constexpr uint64_t kSeeds = 200;
  planted = GetParam().defect;
  HostConfig config;
  if (planted == HostDefect::kToldBeforeStored) config.before_answer = StoreWhatIsHeldBack;
  for (config.seed = 1; config.seed <= kSeeds; ++config.seed) {
    const std::string found = RunHost(config).violated;
    if (found.find(GetParam().says) == std::string::npos) continue;  // or another check was quicker
    std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(config.seed),
                 found.substr(0, found.find('\n')).c_str());
    return;
  }
  FAIL() << "no seed up to " << kSeeds << " shows '" << GetParam().name << "'";
}

INSTANTIATE_TEST_SUITE_P(
    Defects, HostControlTest,
    testing::Values(Control{HostDefect::kForgetRequest, "ForgetRequest", "hang: "},
                    Control{HostDefect::kShownBeforeStored, "ShownBeforeStored", "finds after its restart: "},
                    Control{HostDefect::kToldBeforeStored, "ToldBeforeStored", "which was never stored"},
                    Control{HostDefect::kTwoChangesSwapped, "TwoChangesSwapped",
                            "which nobody asked for last"}),
    [](const auto& test) { return std::string(test.param.name); });

// A store that does not wait for its syncs would lose what was acknowledged: that is found when the power fails.
TEST(HostControlTest, ADiskThatLiesIsFound) {
  constexpr uint64_t kSeeds = 100;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::string found = RunHost({.seed = seed, .disk_lies = true}).violated;
    if (found.find("though it was promised") != std::string::npos) return;
  }
  FAIL() << "no seed up to " << kSeeds << " shows it";
}

// The same sources without a defect: what is found is the defects'.
TEST(HostControlTest, WithoutADefectNothingIsFound) {
  for (uint64_t seed = 1; seed <= 20; ++seed) EXPECT_EQ(RunHost({.seed = seed}).violated, "");
}

}  // namespace
}  // namespace cleat::sim::host_controls_test
