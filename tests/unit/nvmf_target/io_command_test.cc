// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/io/io_command.h"

#include <gtest/gtest.h>

#include "nvme/command.h"

namespace cleat::nvmf_target::io_command_test {
namespace {

block::Geometry WithDiscard() {
  block::Geometry geometry;
  geometry.size_bytes = 1 << 20;
  geometry.discard = true;
  return geometry;
}

// Linux' list has room for all ranges, whatever it has in it.
TEST(PlanOfDiscardTest, TheListMayBeLongerThanItsRangesAndNotShorter) {
  nvme::fabrics::SubmissionEntry entry;
  entry.opcode = static_cast<uint8_t>(nvme::Opcode::kDatasetManagement);
  entry.flags = nvme::fabrics::kFlagsSgl;
  entry.cdw11 = nvme::kDatasetDeallocate;
  for (const uint32_t ranges : {1U, 3U, kRangesMax}) {
    entry.cdw10 = ranges - 1;
    for (const uint32_t bytes : {ranges * 16, kRangesMax * 16}) {
      IoPlan plan;
      ASSERT_TRUE(PlanOf(entry, WithDiscard(), block::AccessMode::kReadWrite, bytes, plan).ok()) << bytes;
      EXPECT_EQ(plan.kind, IoPlan::Kind::kDiscard);
      EXPECT_EQ(plan.ranges, ranges);
    }
    for (const uint32_t bytes : {0U, ranges * 16 - 1, kRangesMax * 16 + 1}) {
      IoPlan plan;
      EXPECT_FALSE(PlanOf(entry, WithDiscard(), block::AccessMode::kReadWrite, bytes, plan).ok()) << bytes;
    }
  }
}

}  // namespace
}  // namespace cleat::nvmf_target::io_command_test
