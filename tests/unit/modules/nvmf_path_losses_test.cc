// SPDX-License-Identifier: Apache-2.0
// What people are told of paths that broke.
#include "modules/nvmf/doubt/path_losses.h"

#include <gtest/gtest.h>

#include <string>

namespace cleat::modules::nvmf_path_losses_test {
namespace {

using nvme::host::Attempt;
using nvme::host::LifeId;
using nvme::host::Proof;

const std::string kWhere = "subsystems/a at 10.0.0.1:4420";

class NvmfPathLosses : public testing::Test {
 protected:
  // A path breaks, with a write unanswered or without.
  void Break(LifeId life, const std::string& why, bool leaves = false) {
    losses_.Note(kWhere, life, {ErrorCode::kUnavailable, kWhere + ": " + why}, /*failed_over=*/false);
    ledger_.Over(life);
    if (!leaves) return ledger_.Take({.reactor = reactor_, .life = life, .perhaps = {}});
    const Attempt write{.origin = life, .range = {.first = 8 * life, .blocks = 8}};
    ledger_.Take({.reactor = reactor_, .life = life, .perhaps = {write}});
  }
  uint64_t accepted() const {
    block::PathsReport report;
    losses_.Count(report);
    return report.accepted;
  }

  nvme::host::DoubtLedger ledger_{{}};
  uint32_t reactor_ = ledger_.Joined();
  PathLosses losses_{"disks/a", ledger_};
};

TEST_F(NvmfPathLosses, TheOneThatLeftDoubtIsNamedHoweverOftenPathsBrokeSince) {
  Break(1, "reset", /*leaves=*/true);
  EXPECT_EQ(losses_.DoubtLeftBy(), "left by subsystems/a at 10.0.0.1:4420: reset");
  for (LifeId life = 2; life < 5 * PathLosses::kNamedMax; ++life) Break(life, "closed");
  EXPECT_EQ(losses_.DoubtLeftBy(), "left by subsystems/a at 10.0.0.1:4420: reset");
  Break(1000, "timed out", /*leaves=*/true);
  EXPECT_EQ(losses_.DoubtLeftBy(), "left by subsystems/a at 10.0.0.1:4420: timed out and others before");
  ASSERT_TRUE(ledger_.Proved(1000, Proof::kOperatorConfirmed).ok());
  ASSERT_TRUE(ledger_.Proved(1, Proof::kOperatorConfirmed).ok());
  EXPECT_EQ(losses_.DoubtLeftBy(), "");
}

TEST_F(NvmfPathLosses, OfMoreThanAreNamedNoneIsTakenForAnEngineBefore) {
  for (LifeId life = 1; life <= PathLosses::kNamedMax + 1; ++life) Break(life, "reset", /*leaves=*/true);
  for (LifeId life = 2; life <= PathLosses::kNamedMax + 1; ++life)
    ASSERT_TRUE(ledger_.Proved(life, Proof::kOperatorConfirmed).ok());
  EXPECT_EQ(losses_.DoubtLeftBy(), "left by paths that broke");
}

TEST_F(NvmfPathLosses, EachThatLeftSomethingIsAcceptedOnceAndSoIsAnEngineBefore) {
  Break(1, "reset", /*leaves=*/true);
  Break(2, "reset");
  losses_.LogAccepted();
  losses_.LogAccepted();
  EXPECT_EQ(accepted(), 1U);
  constexpr LifeId kBefore = 77;
  constexpr nvme::host::BlockRange kRange{.first = 0, .blocks = 8};
  ledger_.Doubt({&kBefore, 1}, {&kRange, 1});
  losses_.LogAccepted();
  losses_.LogAccepted();
  EXPECT_EQ(accepted(), 2U);
}

}  // namespace
}  // namespace cleat::modules::nvmf_path_losses_test
