// SPDX-License-Identifier: Apache-2.0
// Waiting for commands in flight: Quiesce and Close go on only when the storage has let go.
#include <gtest/gtest.h>

#include "unit_rig.h"

namespace cleat::scsi::task_management_test {
namespace {

Task<void> Quiesce(UnitChannel& unit, std::optional<uint64_t> tag, bool& over) {
  auto quiesce = unit.Quiesce(Abort::kTask, tag);
  co_await std::move(quiesce);
  over = true;
}

struct Writes {
  explicit Writes(UnitRig& rig, int count) {
    rig.disk.hold = true;
    for (int i = 0; i < count; ++i) {
      commands.push_back(std::make_unique<TestCommand>(Cdb10(kWrite10, 0, 1), Filled(512, 1)));
      commands.back()->tag = static_cast<uint64_t>(i);
      rig.unit->Execute(*commands.back());
    }
  }
  std::vector<std::unique_ptr<TestCommand>> commands;
};

TEST(QuiesceTest, WaitsForAllThatAreInFlightAndForNoneThatComesLater) {
  UnitRig rig;
  Writes writes(rig, 3);
  bool over = false;
  Spawn(Quiesce(*rig.unit, std::nullopt, over));
  TestCommand later(Cdb10(kWrite10, 0, 1), Filled(512, 1));
  rig.unit->Execute(later);
  for (int i = 0; i < 3; ++i) {
    rig.Turn();
    EXPECT_FALSE(over) << i;
    rig.disk.CompleteOne();
  }
  rig.Turn();
  EXPECT_TRUE(over);
  EXPECT_FALSE(later.done);
  rig.disk.CompleteOne();
}

TEST(QuiesceTest, WaitsForTheOneTask) {
  UnitRig rig;
  Writes writes(rig, 3);
  EXPECT_TRUE(rig.unit->Has(1));
  EXPECT_FALSE(rig.unit->Has(7));
  bool over = false;
  bool absent = false;
  Spawn(Quiesce(*rig.unit, 1, over));
  Spawn(Quiesce(*rig.unit, 7, absent));
  EXPECT_TRUE(absent);
  rig.disk.CompleteOne();
  rig.Turn();
  EXPECT_FALSE(over);
  rig.disk.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(over);
  EXPECT_TRUE(rig.unit->Has(std::nullopt));
  rig.disk.CompleteOne();
}

TEST(QuiesceTest, ACommandOfManyStepsTakesNoFurtherOne) {
  UnitRig rig;
  rig.disk.hold = true;
  TestCommand command(Cdb16(kWriteSame16, 0, 4096), Filled(512, 0));
  rig.unit->Execute(command);
  bool over = false;
  Spawn(Quiesce(*rig.unit, std::nullopt, over));
  rig.Turn();
  EXPECT_FALSE(over);  // one step is in the storage
  rig.disk.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(over);
  EXPECT_EQ(command.Outcome(), "aborted");
  EXPECT_EQ(command.abort, Abort::kTask);
  EXPECT_EQ(rig.disk.seen.size(), 1U);
}

TEST(QuiesceTest, CloseWaitsForCommandsAndForWhoWaits) {
  UnitRig rig;
  Writes writes(rig, 2);
  bool quiesced = false;
  bool closed = false;
  Spawn(Quiesce(*rig.unit, std::nullopt, quiesced));
  const auto close = [](UnitChannel& unit, bool& done) -> Task<void> {
    auto task = unit.Close();
    co_await std::move(task);
    done = true;
  };
  Spawn(close(*rig.unit, closed));
  rig.disk.CompleteOne();
  rig.Turn();
  EXPECT_FALSE(closed);
  rig.disk.CompleteOne();
  rig.Turn();
  EXPECT_TRUE(quiesced);
  EXPECT_TRUE(closed);
}

}  // namespace
}  // namespace cleat::scsi::task_management_test
