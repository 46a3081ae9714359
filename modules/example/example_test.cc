// SPDX-License-Identifier: Apache-2.0
// The example through the block API, as a front end uses it.
#include "modules/example/example.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "tests/unit/modules/test_disk.h"
#include "tests/unit/reactor/virtual_reactors.h"

namespace cleat::modules::example_test {
namespace {

using block::IoStatus;
using block::Op;

constexpr uint64_t kBytes = 1 << 20;

class Example : public testing::Test {
 protected:
  Result<std::unique_ptr<block::Device>> Open(uint64_t bytes, uint8_t fill, uint32_t block = 512) {
    ExampleOptions options(block::DiskShape("disks/e", bytes, block, 4096));
    options.fill = fill;
    return reactors_.Await(OpenExample(std::move(options)));
  }
  std::unique_ptr<test::TestDisk> OpenDisk(uint8_t fill, uint32_t block = 512) {
    auto opened = Open(kBytes, fill, block);
    CLEAT_CHECK(opened.ok());
    return std::make_unique<test::TestDisk>(std::move(opened).value(), reactors_[0],
                                            [] { FAIL() << "must complete at once"; });
  }

  test::VirtualReactors reactors_;
};

TEST_F(Example, AgreesWithTheReference) {
  for (const uint32_t block : {512U, 4096U}) {
    const auto disk = OpenDisk(0, block);
    test::RandomLoad load(*disk, block, 0, kBytes, test::RandomLoad::Discards::kNone);
    load.Run(2000);
  }
}

TEST_F(Example, ReadsTheFillWhereNothingWasWritten) {
  const auto disk = OpenDisk('f');
  test::Arena arena(8192);
  std::memset(arena.data(), 'x', 4096);
  EXPECT_EQ(disk->Do(Op::kWrite, 4096, 512, &arena), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kRead, 4096, 4096, &arena, 4096), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data() + 4096, arena.data() + 8192, 'x'), 512);
  EXPECT_EQ(std::count(arena.data() + 4096, arena.data() + 8192, 'f'), 4096 - 512);
  EXPECT_EQ(disk->Do(Op::kFlush, 0, 0), IoStatus::kOk);
  EXPECT_EQ(disk->Do(Op::kDiscard, 0, 4096), IoStatus::kUnsupported);
}

TEST_F(Example, GrowsWithFilledBlocksUpToItsLimit) {
  const auto disk = OpenDisk('f');
  test::Arena arena(512);
  EXPECT_EQ(disk->Do(Op::kRead, kBytes, 512, &arena), IoStatus::kInvalid);
  ASSERT_TRUE(reactors_.Await(disk->pipeline().Resize(2 * kBytes)).ok());
  EXPECT_EQ(disk->Do(Op::kRead, 2 * kBytes - 512, 512, &arena), IoStatus::kOk);
  EXPECT_EQ(std::count(arena.data(), arena.data() + 512, 'f'), 512);
  const Status grown = reactors_.Await(disk->pipeline().Resize(kExampleBytesMax + 512));
  ASSERT_FALSE(grown.ok());
  EXPECT_EQ(grown.error().code, ErrorCode::kFailedPrecondition);
}

TEST_F(Example, RefusesWhatIsTooLarge) {
  EXPECT_TRUE(Open(kExampleBytesMax, 0).ok());
  const auto opened = Open(kExampleBytesMax + 512, 0);
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(opened.error().message.find("disks/e"), std::string::npos) << opened.error().message;
}

}  // namespace
}  // namespace cleat::modules::example_test
