// SPDX-License-Identifier: Apache-2.0
#include "perf/bare_loops/copy_loop.h"

#include <gtest/gtest.h>

namespace cleat::perf::copy_loop_test {
namespace {

TEST(CopyLoopTest, CopiesAsLongAsItIsTold) {
  for (const uint32_t depth : {1U, 32U}) {
    const CopyLoopOptions options{.disk_bytes = 1 << 20, .depth = depth, .time_ns = 1'000'000};
    Result<CopyLoopReport> report = RunCopyLoop(options);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_GT(report->copied_blocks, 0U);
    EXPECT_GT(report->ns_per_copy(), 0);
    EXPECT_GE(report->copying_ns, 1U);
  }
}

TEST(CopyLoopTest, RefusesWhatCantBeCopied) {
  const CopyLoopOptions good{.disk_bytes = 1 << 20, .time_ns = 1};
  CopyLoopOptions small = good, odd = good, none = good, deep = good, nowhere = good;
  small.disk_bytes = 2048;
  odd.disk_bytes = (1 << 20) + 512;
  none.block_bytes = 0;
  deep.depth = 0;
  nowhere.core = 1000;
  for (const CopyLoopOptions& options : {small, odd, none, deep, nowhere})
    EXPECT_FALSE(RunCopyLoop(options).ok());
}

}  // namespace
}  // namespace cleat::perf::copy_loop_test
