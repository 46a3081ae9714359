// SPDX-License-Identifier: Apache-2.0
// What is to be done next about an upgrade; who may take what a dead engine leaves behind; who has a controller after a restart; and what is
// left alone after a restore.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "control/reconcile/context/unclaimed.h"
#include "control/reconcile/engines/inventory.h"
#include "control/reconcile/moves/take_over_coordinator.h"
#include "control/reconcile/moves/upgrade_coordinator.h"
#include "control/reconcile/moves/upgrade_recovery.h"
#include "tests/unit/control/reconcile/views.h"

namespace cleat::control::upgrade_plan_test {
namespace {

// ---- Upgrades ----

struct UpgradeCase {
  const char* name;
  UpgradeStep::Kind kind;
  const char* controller;
  std::function<void(Upgrade& upgrade)> arrange;
};

class UpgradePlan : public testing::TestWithParam<UpgradeCase> {};

TEST_P(UpgradePlan, IsAsTheTableSays) {
  Upgrade upgrade;
  GetParam().arrange(upgrade);
  const UpgradeStep step = PlanUpgrade(upgrade, {.preparing_max = 2, .moving_max = 1, .held_up_max = 2});
  EXPECT_EQ(step.kind, GetParam().kind);
  EXPECT_EQ(step.controller, GetParam().controller);
}

using UpgradeKind = UpgradeStep::Kind;
const UpgradeCase kUpgradeCases[] = {
    {"AllWait", UpgradeKind::kPrepare, "a",
     [](auto& upgrade) {
       upgrade.waiting = {"a", "b", "c"};
     }},
    {"SomeArePrepared", UpgradeKind::kPrepare, "c",
     [](auto& upgrade) {
       upgrade.prepared = {"a"};
       upgrade.preparing = {"b"};
       upgrade.waiting = {"c"};
     }},
    {"AsManyAsMayBeArePreparing", UpgradeKind::kNothing, "",
     [](auto& upgrade) {
       upgrade.preparing = {"a", "b"};
       upgrade.waiting = {"c"};
     }},
    {"NoneIsMovedBeforeAllArePrepared", UpgradeKind::kNothing, "",
     [](auto& upgrade) {
       upgrade.prepared = {"a"};
       upgrade.preparing = {"b"};
     }},
    {"AllArePrepared", UpgradeKind::kMove, "a",
     [](auto& upgrade) {
       upgrade.prepared = {"a", "b"};
     }},
    {"AsManyAsMayAreMoving", UpgradeKind::kNothing, "",
     [](auto& upgrade) {
       upgrade.moving = {"a"};
       upgrade.prepared = {"b"};
     }},
    {"OneIsHeldUp", UpgradeKind::kMove, "b",
     [](auto& upgrade) {
       upgrade.held_up = {"a"};
       upgrade.prepared = {"b"};
     }},
    {"OneIsHeldUpAndOneMoves", UpgradeKind::kNothing, "",
     [](auto& upgrade) {
       upgrade.held_up = {"a"};
       upgrade.moving = {"b"};
       upgrade.prepared = {"c"};
     }},
    {"AsManyAsMayBeAreHeldUp", UpgradeKind::kNothing, "",
     [](auto& upgrade) {
       upgrade.held_up = {"a", "b"};
       upgrade.prepared = {"c"};
     }},
    {"TheLastOneIsHeldUp", UpgradeKind::kNothing, "", [](auto& upgrade) { upgrade.held_up = {"a"}; }},
    {"TheLastOneIsMoving", UpgradeKind::kNothing, "", [](auto& upgrade) { upgrade.moving = {"a"}; }},
    {"NoneIsLeft", UpgradeKind::kEnd, "", [](auto&) {}},
    {"Cancelled", UpgradeKind::kGiveUp, "",
     [](auto& upgrade) {
       upgrade.intent.cancelled = true;
       upgrade.moving = {"a"};
       upgrade.prepared = {"b"};
     }},
    {"CancelledWhileTheLastOneIsMoving", UpgradeKind::kNothing, "",
     [](auto& upgrade) {
       upgrade.intent.cancelled = true;
       upgrade.moving = {"a"};
     }},
    {"CancelledAndNoneIsLeft", UpgradeKind::kEnd, "", [](auto& upgrade) { upgrade.intent.cancelled = true; }},
};
INSTANTIATE_TEST_SUITE_P(All, UpgradePlan, testing::ValuesIn(kUpgradeCases),
                         [](const auto& test) { return std::string(test.param.name); });

// ---- Taking over ----

struct TakeOverCase {
  const char* name;
  bool may;
  std::function<void(ControllerIntent& intent, Standby& standby)> arrange;
};

class TakeOverPlan : public testing::TestWithParam<TakeOverCase> {};

TEST_P(TakeOverPlan, IsAsTheTableSays) {
  ControllerIntent intent = views::IntentOn("blue");
  intent.prepared_on = {"green"};
  Standby standby{.engine = "green", .answers = true};
  GetParam().arrange(intent, standby);
  EXPECT_EQ(MayTakeOver(intent, standby), GetParam().may);
}

const TakeOverCase kTakeOverCases[] = {
    {"StandsBy", true, [](auto&, auto&) {}},
    {"NobodyStandsBy", false,
     [](auto& intent, auto& standby) {
       standby = {};
       intent.prepared_on.clear();
     }},
    {"IsNotConnectedOrDoesNotAnswer", false, [](auto&, auto& standby) { standby.answers = false; }},
    {"DoesNotAnswerButWasAskedToTakeIt", true,
     [](auto&, auto& standby) {
       standby.answers = false;
       standby.may_serve = true;
     }},
    {"HasNotPreparedIt", false, [](auto& intent, auto&) { intent.prepared_on.clear(); }},
    {"WasToGetItByAMove", true,
     [](auto& intent, auto& standby) {
       intent.prepared_on.clear();
       standby.by_move = true;
     }},
    {"ItsGuestMigrates", false,
     [](auto& intent, auto&) { intent.attachments[0].row.spec.set_mode(v1::ATTACHMENT_MODE_INCOMING); }},
    {"ItsGuestMigratesButItWasAskedToTakeIt", true,
     [](auto& intent, auto& standby) {
       intent.attachments[0].row.spec.set_mode(v1::ATTACHMENT_MODE_INCOMING);
       standby.may_serve = true;
     }},
};
INSTANTIATE_TEST_SUITE_P(All, TakeOverPlan, testing::ValuesIn(kTakeOverCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(TakeOverPlanTest, IsStoredWhenAllHaveTakenOrTheTimeIsOver) {
  TakeOver take_over;
  take_over.deadline_ns = 100;
  take_over.waiting = {"a"};
  EXPECT_FALSE(take_over.IsDue(99));
  EXPECT_TRUE(take_over.IsDue(100));
  take_over.waiting.clear();
  EXPECT_TRUE(take_over.IsDue(0));
}

// ---- After a restart ----

TEST(UpgradeRecoveryTest, AnEngineThatServesAnothersControllerAsItShouldBeHasIt) {
  const EngineView green = views::Engine("green");
  EXPECT_TRUE(MayAdopt(views::IntentOn("blue"), green, views::Serving()));
  EXPECT_FALSE(MayAdopt(views::IntentOn("green"), green, views::Serving())) << "it has it already";
  EXPECT_FALSE(MayAdopt(views::IntentOn(""), green, views::Serving())) << "nobody's";
  EXPECT_FALSE(MayAdopt(ControllerIntent(), green, views::Serving()));
  EXPECT_FALSE(MayAdopt(views::IntentOn("blue"), green, views::StandingBy()));
  ControllerIntent intent = views::IntentOn("blue");
  intent.row.revision += 1;
  EXPECT_FALSE(MayAdopt(intent, green, views::Serving())) << "of another one of that name";
  intent = views::IntentOn("blue");
  intent.attachments.clear();
  EXPECT_FALSE(MayAdopt(intent, green, views::Serving())) << "with a disk that it should not have";
  EngineView old = views::Engine("green");
  old.info.protocol = kProtocolMoves - 1;
  EXPECT_FALSE(MayAdopt(views::IntentOn("blue"), old, views::Serving())) << "it can't give it back";
}

TEST(UpgradeRecoveryTest, AControllerMayBeServedByAnyOtherEngineThatIsKnown) {
  ConnectedEngines engines;
  const EngineView& blue = engines.Add(views::Engine("blue", 1).info);
  EngineView& green = engines.Add(views::Engine("green", 2).info);
  EXPECT_FALSE(IsServedElsewhere(engines, blue, "c"));
  green.controllers["c"] = views::StandingBy();
  EXPECT_FALSE(IsServedElsewhere(engines, blue, "c"));
  green.controllers["c"].request.Begin();
  EXPECT_TRUE(IsServedElsewhere(engines, blue, "c")) << "it may be asked to take it";
  green.controllers["c"] = views::Serving();
  EXPECT_TRUE(IsServedElsewhere(engines, blue, "c"));
  EXPECT_FALSE(IsServedElsewhere(engines, green, "c"));
  green.foreign = true;
  EXPECT_FALSE(IsServedElsewhere(engines, blue, "c"));
}

// ---- After a restore ----

const std::vector<LostRevisions> kLost = {{.first = views::kRevision, .until = views::kRevision + 10}};

TEST(UnclaimedTest, WhatWasMadeAfterTheBackupIsLeftAloneUntilSomebodySpeaksOfIt) {
  EXPECT_TRUE(IsUnclaimed(kLost, ControllerIntent(), views::Serving()));
  EXPECT_FALSE(IsUnclaimed({}, ControllerIntent(), views::Serving())) << "nothing was lost";
  EXPECT_FALSE(IsUnclaimed(kLost, ControllerIntent(), views::StandingBy())) << "no guest uses it";
  EXPECT_FALSE(IsUnclaimed(kLost, ControllerIntent(), ControllerView()));
  EXPECT_FALSE(IsUnclaimed(kLost, views::IntentOn("blue"), views::Serving())) << "just as the store has it";
  ControllerIntent older = views::IntentOn("blue");
  older.row.revision = views::kRevision - 1;
  EXPECT_TRUE(IsUnclaimed(kLost, older, views::Serving()));
  older.row.intent_revision = kLost[0].until;
  EXPECT_FALSE(IsUnclaimed(kLost, older, views::Serving())) << "it was changed since";
  ControllerIntent other_disk = views::IntentOn("blue");
  other_disk.attachments[0].row.revision = views::kRevision - 1;
  EXPECT_TRUE(IsUnclaimed(kLost, other_disk, views::Serving())) << "its disk was attached after the backup";
  other_disk.attachments[0].row.intent_revision = kLost[0].until;
  EXPECT_FALSE(IsUnclaimed(kLost, other_disk, views::Serving()));
}

TEST(InventoryTest, AnEngineWithARevisionThatWasNotGivenYetIsOfAnotherStore) {
  engine::v1::Inventory inventory;
  inventory.add_controllers()->mutable_controller()->set_revision(3);
  inventory.add_attachments()->mutable_attachment()->set_revision(4);
  inventory.add_groups()->mutable_limits()->set_revision(5);
  inventory.add_clusters()->set_revision(6);
  EXPECT_FALSE(IsForeign(inventory, {.newest_revision = 6}));
  EXPECT_TRUE(IsForeign(inventory, {.newest_revision = 5}));
  EXPECT_EQ(HeldIn(inventory).newest_revision, 6U);
}

TEST(InventoryTest, AnEngineWithADiskOfAnotherStoreIsForeignHoweverSmallItsRevisions) {
  engine::v1::Inventory inventory;
  engine::v1::Attachment& attachment = *inventory.add_attachments()->mutable_attachment();
  attachment.set_revision(4);
  EXPECT_FALSE(IsForeign(inventory, {.newest_revision = 6, .number = 7})) << "not known whose";
  attachment.mutable_disk()->set_identity(DiskIdentity::Of(7, 3).value());
  EXPECT_FALSE(IsForeign(inventory, {.newest_revision = 6, .number = 7}));
  EXPECT_TRUE(IsForeign(inventory, {.newest_revision = 6, .number = 8}));
  EXPECT_FALSE(IsForeign(inventory, {.newest_revision = 6, .number = 8, .restored = true}));
}

}  // namespace
}  // namespace cleat::control::upgrade_plan_test
