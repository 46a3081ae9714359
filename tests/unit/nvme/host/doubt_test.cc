// SPDX-License-Identifier: Apache-2.0
// The rules of docs/nvmeof.md, "Writes in doubt", with two reactors and their mail delivered by hand.
#include <gtest/gtest.h>
#include <array>

#include <vector>

#include "nvme/host/doubt/doubt_ledger.h"
#include "nvme/host/doubt/doubt_view.h"

namespace cleat::nvme::host {
namespace {

constexpr LifeId kLife = 71;
constexpr Attempt kOld{.origin = 1, .range = {.first = 8, .blocks = 8}};
constexpr Attempt kOver{.origin = 2, .range = {.first = 15, .blocks = 4}};
constexpr Attempt kBeside{.origin = 3, .range = {.first = 16, .blocks = 4}};

class Doubt : public testing::Test {
 protected:
  // Until nothing is left to say; `under_way` is reactor 1's.
  void Publish(const std::vector<Attempt>& under_way = {}) {
    uint64_t told = 0;
    while (told != ledger_.version()) {
      told = ledger_.version();
      const DoubtAck first = view0_.Adopt(ledger_.TableFor(0), {});
      const DoubtAck second = view1_.Adopt(ledger_.TableFor(1), under_way);
      ledger_.Take(first);
      ledger_.Take(second);
    }
  }
  void KillPath(LifeId life, const std::vector<Attempt>& of_reactor_0) {
    ledger_.Over(life);
    ledger_.Take(view0_.EndLife(life, of_reactor_0));
    ledger_.Take(view1_.EndLife(life, {}));
  }

  DoubtLedger ledger_{{.controller_reset = true}};
  DoubtView view0_{ledger_.Joined()};
  DoubtView view1_{ledger_.Joined()};
};

TEST_F(Doubt, AViewWithoutATableHoldsEveryWrite) {
  EXPECT_FALSE(view0_.MaySend(kOld));
  EXPECT_FALSE(view0_.MayRetry(kOld));
  EXPECT_FALSE(view0_.MayFail(kOld));
  Publish();
  EXPECT_TRUE(view0_.MaySend(kOld));
}

TEST_F(Doubt, AReactorThatJoinsLaterHoldsUpNothingAndIsHeldItself) {
  KillPath(kLife, {kOld});
  Publish();
  DoubtView late(ledger_.Joined());
  Publish();
  EXPECT_TRUE(view0_.MayRetry(kOld));
  late.Adopt(ledger_.TableFor(2), {});
  EXPECT_FALSE(late.MaySend(kOver));
  EXPECT_TRUE(late.MaySend(kBeside));
}

TEST_F(Doubt, AReactorThatJoinsAfterALifesEndDoesNotReportIt) {
  ledger_.Over(kLife);
  ledger_.Joined();
  ledger_.Take(view0_.EndLife(kLife, {kOld}));
  EXPECT_FALSE(ledger_.IsReported(kLife));
  ledger_.Take(view1_.EndLife(kLife, {}));
  EXPECT_TRUE(ledger_.IsReported(kLife));
}

// Reactor 1 leaves after it has reported a life that nobody knows to be over yet; another one takes its number, and was on that life too.
TEST_F(Doubt, AReactorThatLeavesIsNeitherAwaitedNorTakenForTheNextOne) {
  ledger_.Take(view1_.EndLife(kLife, {kOver}));
  ledger_.Left(1);
  ASSERT_EQ(ledger_.Joined(), 1U);
  DoubtView next(1);
  ledger_.Over(kLife);
  ledger_.Take(view0_.EndLife(kLife, {kOld}));
  EXPECT_FALSE(ledger_.IsReported(kLife));
  ledger_.Take(next.EndLife(kLife, {}));
  EXPECT_TRUE(ledger_.IsReported(kLife));
  EXPECT_EQ(ledger_.lives(), std::vector<LifeId>{kLife});
  ledger_.Over(kLife + 1);
  ledger_.Take(view0_.EndLife(kLife + 1, {}));
  ledger_.Left(1);
  EXPECT_TRUE(ledger_.IsReported(kLife + 1));
}

TEST_F(Doubt, TheBarriersOfAReactorThatLeftHoldNobody) {
  KillPath(kLife, {kOld});
  Publish({kOver});
  EXPECT_FALSE(view0_.MayRetry(kOld));
  ledger_.Left(1);
  view0_.Adopt(ledger_.TableFor(0), {});
  EXPECT_TRUE(view0_.MayRetry(kOld));
}

TEST_F(Doubt, ANewWriteWaitsWhileAnothersGhostOverlapsOnEveryReactor) {
  KillPath(kLife, {kOld});
  Publish();
  EXPECT_FALSE(view0_.MaySend(kOver));
  EXPECT_FALSE(view1_.MaySend(kOver));
  EXPECT_TRUE(view1_.MaySend(kBeside));
}

TEST_F(Doubt, ARetryIsNotStoppedByItsOwnGhostOnceAllReactorsKnowIt) {
  const LifeReport report = view0_.EndLife(kLife, {kOld});
  EXPECT_FALSE(view0_.MayRetry(kOld));
  ledger_.Take(report);
  ledger_.Take(view0_.Adopt(ledger_.TableFor(0), {}));
  EXPECT_FALSE(view0_.MayRetry(kOld));
  ledger_.Take(view1_.Adopt(ledger_.TableFor(1), {}));
  view0_.Adopt(ledger_.TableFor(0), {});
  EXPECT_TRUE(view0_.MayRetry(kOld));
}

TEST_F(Doubt, ARetryWaitsForAnOverlappingWriteThatWasSentBeforeTheGhostWasKnown) {
  KillPath(kLife, {kOld});
  Publish({kOver});
  EXPECT_FALSE(view0_.MayRetry(kOld));
  ASSERT_TRUE(view1_.EndAttempt(kOver.origin));
  ledger_.Take(BarrierEnded{.reactor = 1, .origin = kOver.origin});
  Publish();
  EXPECT_TRUE(view0_.MayRetry(kOld));
}

TEST_F(Doubt, ABarrierThatBecomesAGhostItselfStillHoldsTheRetry) {
  KillPath(kLife, {kOld});
  Publish({kOver});
  ledger_.Over(kLife + 1);
  ledger_.Take(view1_.EndLife(kLife + 1, {kOver}));
  ASSERT_TRUE(view1_.EndAttempt(kOver.origin));
  ledger_.Take(BarrierEnded{.reactor = 1, .origin = kOver.origin});
  ledger_.Take(view0_.EndLife(kLife + 1, {}));
  Publish();
  EXPECT_FALSE(view0_.MayRetry(kOld));
  ASSERT_TRUE(ledger_.Proved(kLife + 1, Proof::kControllerReset).ok());
  Publish();
  EXPECT_TRUE(view0_.MayRetry(kOld));
}

TEST_F(Doubt, OnlyAProofOfExactlyItsLifeEndsAGhost) {
  KillPath(kLife, {kOld});
  KillPath(kLife + 1, {kOld});
  ASSERT_TRUE(ledger_.Proved(kLife + 1, Proof::kControllerReset).ok());
  Publish();
  EXPECT_FALSE(view1_.MaySend(kOver));
  ASSERT_TRUE(ledger_.Proved(kLife, Proof::kControllerReset).ok());
  Publish();
  EXPECT_TRUE(view1_.MaySend(kOver));
}

TEST_F(Doubt, AProofThatTheTargetDoesNotPromiseIsRefusedAndAPersonsWordIsNot) {
  KillPath(kLife, {kOld});
  EXPECT_FALSE(ledger_.Proved(kLife, Proof::kTimeElapsed).ok());
  EXPECT_EQ(ledger_.ghosts(), 1U);
  EXPECT_TRUE(ledger_.Proved(kLife, Proof::kOperatorConfirmed).ok());
  EXPECT_EQ(ledger_.ghosts(), 0U);
}

TEST_F(Doubt, ALifeIsNotProvedWhileAReactorsSocketMayStillSend) {
  ledger_.Over(kLife);
  ledger_.Take(view0_.EndLife(kLife, {kOld}));
  EXPECT_FALSE(ledger_.Proved(kLife, Proof::kControllerReset).ok());
  ledger_.Take(view1_.EndLife(kLife, {}));
  EXPECT_TRUE(ledger_.Proved(kLife, Proof::kControllerReset).ok());
}

TEST_F(Doubt, ARequestInDoubtIsNotFailedBeforeEveryReactorObeysItsGhost) {
  KillPath(kLife, {kOld});
  ledger_.Take(view0_.Adopt(ledger_.TableFor(0), {}));
  EXPECT_FALSE(view0_.MayFail(kOld));
  Publish({kOver});
  EXPECT_TRUE(view0_.MayFail(kOld));
  EXPECT_FALSE(view0_.MayRetry(kOld));
}

TEST_F(Doubt, AGhostThatNobodyWillRetryHoldsEverybody) {
  KillPath(kLife, {kOld});
  ledger_.Disown(kOld.origin);
  Publish();
  EXPECT_FALSE(view0_.MayRetry(kOld));
  EXPECT_FALSE(view1_.MaySend(kOver));
}

TEST_F(Doubt, WithoutALogTheWholeDiskIsInDoubt) {
  ledger_.Doubt(std::array{kLife}, std::vector{BlockRange{.first = 0, .blocks = 1000}});
  Publish();
  EXPECT_FALSE(view0_.MaySend({.origin = 9, .range = {.first = 999, .blocks = 1}}));
}

TEST_F(Doubt, WhatAnEngineBeforeLeftIsInDoubtUntilEachOfItsLivesIsProved) {
  ledger_.Doubt(std::array{kLife, kLife + 1}, std::array{kOver.range});
  Publish();
  ASSERT_TRUE(ledger_.Proved(kLife, Proof::kControllerReset).ok());
  Publish();
  EXPECT_FALSE(view0_.MaySend(kOver));
  ASSERT_TRUE(ledger_.Proved(kLife + 1, Proof::kControllerReset).ok());
  Publish();
  EXPECT_TRUE(view0_.MaySend(kOver));
}

TEST_F(Doubt, ALifeThatLeavesNothingInDoubtNeedsNoProof) {
  KillPath(kLife, {});
  EXPECT_EQ(ledger_.Proved(kLife, Proof::kControllerReset).error().code, ErrorCode::kNotFound);
}

TEST_F(Doubt, ARequestIsNotRetriedOnEverMorePathsAndAProofOpensItAgain) {
  for (uint64_t i = 0; i < kLivesOfGhostMax; ++i) {
    KillPath(kLife + i, {kOld});
    Publish();
    EXPECT_EQ(view0_.MayRetry(kOld), i + 1 < kLivesOfGhostMax);
  }
  ASSERT_TRUE(ledger_.Proved(kLife, Proof::kControllerReset).ok());
  Publish();
  EXPECT_TRUE(view0_.MayRetry(kOld));
  EXPECT_FALSE(view1_.MaySend(kOver));
}

TEST_F(Doubt, BeyondItsLimitTheLedgerHoldsMoreAndNeverLess) {
  std::vector<Attempt> many;
  for (uint64_t i = 0; i < kGhostsMax + 10; ++i) {
    many.push_back({.origin = 100 + i, .range = {.first = 4 * i, .blocks = 2}});
  }
  KillPath(kLife, many);
  Publish();
  EXPECT_EQ(ledger_.ghosts(), kGhostsMax);
  for (const Attempt& attempt : many) {
    EXPECT_FALSE(view1_.MaySend({.origin = 1, .range = attempt.range}));
  }
}

TEST_F(Doubt, WhatWasMergedIsOverOnceAllOfItsLivesAre) {
  std::vector<Attempt> many;
  for (uint64_t i = 0; i < kGhostsMax; ++i) many.push_back({.origin = 100 + i, .range = {4 * i, 2}});
  KillPath(kLife, many);
  KillPath(kLife + 1, {{.origin = 1, .range = {2, 1}}, {.origin = 2, .range = {6, 1}}});
  EXPECT_EQ(ledger_.ghosts(), kGhostsMax);
  ASSERT_TRUE(ledger_.Proved(kLife, Proof::kControllerReset).ok());
  EXPECT_TRUE(ledger_.HasGhost(kLife + 1));
  EXPECT_FALSE(ledger_.HasGhost(kLife));
  ASSERT_TRUE(ledger_.Proved(kLife + 1, Proof::kControllerReset).ok());
  EXPECT_EQ(ledger_.ghosts(), 0U);
  EXPECT_TRUE(ledger_.lives().empty());
}

// As where one write is tried on a path that breaks each time, for days.
TEST_F(Doubt, BeyondSoManyLivesTheOldestBecomeOneThatOnlyAPersonProves) {
  for (LifeId life = 1; life <= 4 * kLivesMax; ++life) KillPath(life, {kOld});
  const std::vector<LifeId> lives = ledger_.lives();
  EXPECT_LE(lives.size(), kLivesMax);
  EXPECT_TRUE(ledger_.HasGhost(kManyLives));
  EXPECT_FALSE(ledger_.HasGhost(1)) << "nobody knows it by itself any more";
  EXPECT_TRUE(ledger_.HasGhost(4 * kLivesMax));
  for (const LifeId life : lives) {
    if (life == kManyLives) continue;
    EXPECT_TRUE(ledger_.Proved(life, Proof::kControllerReset).ok());
  }
  EXPECT_EQ(ledger_.ghosts(), 1U);
  EXPECT_FALSE(ledger_.Proved(kManyLives, Proof::kControllerReset).ok()) << "it is no controller's";
  EXPECT_EQ(ledger_.ghosts(), 1U);
  EXPECT_TRUE(ledger_.Proved(kManyLives, Proof::kOperatorConfirmed).ok());
  EXPECT_EQ(ledger_.ghosts(), 0U);
  EXPECT_TRUE(ledger_.lives().empty());
}

TEST_F(Doubt, ALongGhostIsFoundBehindManyShortOnes) {
  KillPath(kLife, {{.origin = 1, .range = {.first = 0, .blocks = 1000}},
                   {.origin = 1, .range = {.first = 10, .blocks = 1}}});
  Publish();
  EXPECT_FALSE(view1_.MaySend({.origin = 2, .range = {.first = 900, .blocks = 1}}));
  EXPECT_TRUE(view1_.MaySend({.origin = 2, .range = {.first = 1000, .blocks = 1}}));
}

}  // namespace
}  // namespace cleat::nvme::host
