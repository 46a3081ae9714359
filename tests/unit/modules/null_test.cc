// SPDX-License-Identifier: Apache-2.0
#include "modules/null/null.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "tests/unit/modules/test_disk.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::modules::null_test {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint64_t kNullBytes = 1 << 20;

TEST(Null, ReadsGiveZeroesUnlessSwitchedOff) {
  test::VirtualReactors reactors;
  for (const bool zero_fill : {true, false}) {
    NullOptions options(block::DiskShape("disks/n", kNullBytes, 512, 4096));
    options.zero_fill = zero_fill;
    auto opened = reactors.Await(OpenNull(options));
    ASSERT_TRUE(opened.ok());
    test::TestDisk disk(std::move(opened).value(), reactors[0], [] { FAIL() << "must complete at once"; });
    test::Arena arena(8192);
    EXPECT_EQ(disk.Do(Op::kRead, 512, 4096, &arena), IoStatus::kOk);
    EXPECT_EQ(std::count(arena.data(), arena.data() + 8192, 0), zero_fill ? 4096 : 0);
    EXPECT_EQ(disk.Do(Op::kWrite, 0, 4096, &arena, 4096), IoStatus::kOk);
    EXPECT_EQ(disk.Do(Op::kFlush, 0, 0), IoStatus::kOk);
    EXPECT_EQ(disk.Do(Op::kDiscard, 0, kNullBytes), IoStatus::kOk);
    EXPECT_EQ(disk.Do(Op::kWriteZeroes, 0, kNullBytes), IoStatus::kOk);
    EXPECT_EQ(disk.Do(Op::kRead, kNullBytes, 512, &arena), IoStatus::kInvalid);
  }
}

TEST(Null, RefusesAnImpossibleShape) {
  test::VirtualReactors reactors;
  NullOptions options(block::DiskShape("disks/n", 1000, 512, 512));
  const auto opened = reactors.Await(OpenNull(options));
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("disks/n"), std::string::npos);
}

}  // namespace
}  // namespace cleat::modules::null_test
