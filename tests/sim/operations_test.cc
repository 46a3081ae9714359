// SPDX-License-Identifier: Apache-2.0
// Attach, detach and delete at any moment, also under I/O, in any order: nothing leaks, hangs or is left half-way.
#include <gtest/gtest.h>

#include "command_line.h"
#include "operations.h"

namespace cleat::sim::operations_test {
namespace {

class OperationsTest : public testing::TestWithParam<uint64_t> {};

TEST_P(OperationsTest, NothingLeaksHangsOrIsLeftHalfWay) {
  OperationsConfig config;
  config.seed = GetParam();
  SCOPED_TRACE("again: " + ReplayCommand(config.seed, config.operations));
  std::fprintf(stderr, "seed %llu; again: %s\n", static_cast<unsigned long long>(config.seed),
               ReplayCommand(config.seed, config.operations).c_str());
  Operations operations(config);
  EXPECT_EQ(operations.Run(), "");
  // It was about something: most requests succeed and guests get much done.
  EXPECT_GT(operations.requests_ok(), config.operations / 10);
  EXPECT_GT(operations.completed_io(), config.operations / 4);
}

INSTANTIATE_TEST_SUITE_P(Seeds, OperationsTest, testing::Values(1, 2, 3, 4));

TEST(OperationsReplayTest, TheSameSeedGivesTheSameRun) {
  OperationsConfig config;
  config.seed = 77;
  config.operations = 500;
  uint64_t digests[2] = {};
  for (uint64_t& digest : digests) {
    Operations operations(config);
    EXPECT_EQ(operations.Run(), "");
    digest = operations.digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

}  // namespace
}  // namespace cleat::sim::operations_test
