// SPDX-License-Identifier: Apache-2.0
// What is to be done next about a move, by what both engines have: a table of each phase.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "control/reconcile/moves/move.h"
#include "tests/unit/control/reconcile/views.h"

namespace cleat::control::move_plan_test {
namespace {

using Kind = MoveStep::Kind;
using Phase = Move::Phase;

constexpr PeerId kFromPeer = 1;
constexpr PeerId kToPeer = 2;
constexpr uint64_t kNow = 1000;
constexpr BackoffLimits kLimits{.min_ns = 10, .max_ns = 10};

// `from` serves the controller, `to` has it standing by, and no limit has passed.
struct Given {
  Given() {
    move.controller = "c";
    move.from = "blue";
    move.to = "green";
    move.deadline_ns = kNow + 1;
    from.controllers["c"] = views::Serving();
    to.controllers["c"] = views::StandingBy();
  }
  MoveSides sides() const {
    return {.from = from_connected ? &from : nullptr,
            .to = to_connected ? &to : nullptr,
            .from_died = from_died,
            .to_died = to_died};
  }
  ControllerView& here() { return from.controllers["c"]; }
  ControllerView& there() { return to.controllers["c"]; }
  void AskToTake() {
    move.phase = Phase::kTaking;
    move.asked = move.asked_to_take = kToPeer;
  }
  void TakeBack() {
    here() = views::StandingBy();
    move.phase = Phase::kTakingBack;
    move.asked_to_take = kToPeer;
    move.why = "it failed";
  }
  void LoseFrom(bool died = false) {
    from_connected = false;
    from_died = died;
  }
  void LoseTo(bool died = false) {
    to_connected = false;
    to_died = died;
  }

  Move move;
  EngineView from = views::Engine("blue", kFromPeer);
  EngineView to = views::Engine("green", kToPeer);
  bool from_connected = true;
  bool to_connected = true;
  bool from_died = false;
  bool to_died = false;
  ControllerIntent intent = views::IntentOn("blue");
  std::string excluded;
  MoveTimes times{.now_ns = kNow, .read_until_ns = kNow, .prepare_ns = 100, .take_ns = 100};
};

MoveStep Plan(const Given& given) {
  const Move& move = given.move;
  switch (move.phase) {
    case Phase::kPreparing:
    case Phase::kPrepared:
    case Phase::kSettling:
      return move.crash ? PlanTakeOver(move, given.sides(), given.intent, given.times)
                        : PlanPreparing(move, given.sides(), given.intent, given.excluded, given.times);
    case Phase::kYielding:
      return PlanYielding(move, given.sides());
    case Phase::kTaking:
      return PlanTaking(move, given.sides(), given.times);
    case Phase::kCommitting:
      return PlanCommitting(move, given.sides());
    case Phase::kTakingBack:
      return PlanTakingBack(move, given.sides());
  }
  return {};
}

struct Case {
  const char* name;
  Kind kind;
  std::function<void(Given& given)> arrange;
};

class MovePlan : public testing::TestWithParam<Case> {};

TEST_P(MovePlan, IsAsTheTableSays) {
  Given given;
  GetParam().arrange(given);
  const MoveStep step = Plan(given);
  EXPECT_EQ(step.kind, GetParam().kind) << step.why.message;
}

const Case kPreparingCases[] = {
    {"Prepared", Kind::kReportPrepared, [](Given&) {}},
    {"PreparedAlready", Kind::kNothing, [](Given& given) { given.move.phase = Phase::kPrepared; }},
    {"ItsTurn", Kind::kYield, [](Given& given) { given.move.phase = Phase::kSettling; }},
    {"ItsTurnButNotQuiet", Kind::kWait,
     [](Given& given) {
       given.move.phase = Phase::kSettling;
       given.here().request.Begin();
     }},
    {"ItsTurnWhileADiskIsResized", Kind::kWait,
     [](Given& given) {
       given.move.phase = Phase::kSettling;
       given.to.resize_requests.Begin(DiskId{"d"});
     }},
    {"ItsTurnAndNeverQuiet", Kind::kEnd,
     [](Given& given) {
       given.move.phase = Phase::kSettling;
       given.here().request.Begin();
       given.move.deadline_ns = kNow;
     }},
    {"ADiskIsStillOpening", Kind::kWait,
     [](Given& given) { given.there().attachments[0].set_state(engine::v1::ATTACHMENT_STATE_OPENING); }},
    {"StillOpeningTooLong", Kind::kEnd,
     [](Given& given) {
       given.there().attachments[0].set_state(engine::v1::ATTACHMENT_STATE_OPENING);
       given.move.deadline_ns = kNow;
     }},
    {"SlowButGettingSomewhere", Kind::kWait,
     [](Given& given) {
       given.there().attachments.clear();
       given.move.deadline_ns = kNow;
       given.to.progress_ns = kNow - 50;
     }},
    {"OfAnotherRevision", Kind::kWait, [](Given& given) { given.intent.row.revision += 1; }},
    {"Gone", Kind::kEnd, [](Given& given) { given.intent.exists = false; }},
    {"BeingDeleted", Kind::kEnd, [](Given& given) { given.intent.row.deleting = true; }},
    {"ElsewhereByNow", Kind::kEnd, [](Given& given) { given.intent.row.engine = "red"; }},
    {"ToIsLost", Kind::kEnd, [](Given& given) { given.LoseTo(); }},
    {"FromIsLost", Kind::kWait, [](Given& given) { given.LoseFrom(); }},
    {"ToExcludesItsPaths", Kind::kEnd, [](Given& given) { given.excluded = "file '/srv/a'"; }},
    {"Unclaimed", Kind::kEnd, [](Given& given) { given.from.unclaimed = {"c"}; }},
    {"Fenced", Kind::kEnd,
     [](Given& given) { given.here().attachments[0].set_state(engine::v1::ATTACHMENT_STATE_FENCED); }},
};
INSTANTIATE_TEST_SUITE_P(Preparing, MovePlan, testing::ValuesIn(kPreparingCases),
                         [](const auto& test) { return std::string(test.param.name); });

const Case kTakeOverCases[] = {
    {"Prepared", Kind::kTake, [](Given&) {}},
    {"ADiskIsStillOpening", Kind::kNothing, [](Given& given) { given.there().attachments.clear(); }},
    {"ADiskCanNotBeOpened", Kind::kTake,
     [](Given& given) {
       given.there().attachments.clear();
       given.there().targets.Fail(0, 0, kLimits);
     }},
    {"BackedOff", Kind::kNothing, [](Given& given) { given.there().request.Fail(kNow, kLimits); }},
    {"TriedAgain", Kind::kTake, [](Given& given) { given.there().request.Fail(kNow - 10, kLimits); }},
    {"Busy", Kind::kNothing, [](Given& given) { given.there().request.Begin(); }},
    {"ServedThere", Kind::kTakenOver, [](Given& given) { given.there() = views::Serving(); }},
    {"Gone", Kind::kTakenOver, [](Given& given) { given.intent.exists = false; }},
    {"ToIsLost", Kind::kNotTakenOver, [](Given& given) { given.LoseTo(); }},
    {"ToDoesNotAnswer", Kind::kNotTakenOver, [](Given& given) { given.to.not_answering = "no answer"; }},
    {"ServedThereAndToDoesNotAnswer", Kind::kTakenOver,
     [](Given& given) {
       given.there() = views::Serving();
       given.to.not_answering = "no answer";
     }},
};
INSTANTIATE_TEST_SUITE_P(TakeOver, MovePlan, testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (Case one : kTakeOverCases) {
                             one.arrange = [arrange = one.arrange](Given& given) {
                               given.move.crash = true;
                               given.LoseFrom(true);
                               arrange(given);
                             };
                             cases.push_back(one);
                           }
                           return cases;
                         }()),
                         [](const auto& test) { return std::string(test.param.name); });

const Case kLaterCases[] = {
    {"YieldNotAnswered", Kind::kWaitOrReport,
     [](Given& given) {
       given.move.phase = Phase::kYielding;
       given.move.asked = kFromPeer;
     }},
    {"YieldAndFromCameBackStandingBy", Kind::kTakeBack,
     [](Given& given) {
       given.move.phase = Phase::kYielding;
       given.move.asked = kFromPeer + 10;
       given.here() = views::StandingBy();
     }},
    {"YieldAndFromCameBackServing", Kind::kEnd,
     [](Given& given) {
       given.move.phase = Phase::kYielding;
       given.move.asked = kFromPeer + 10;
     }},
    {"YieldAndFromIsLost", Kind::kWaitOrReport,
     [](Given& given) {
       given.move.phase = Phase::kYielding;
       given.move.asked = kFromPeer;
       given.LoseFrom();
     }},
    {"TakeNotAnswered", Kind::kWait, [](Given& given) { given.AskToTake(); }},
    {"TakeNotAnsweredInTime", Kind::kTakeBack,
     [](Given& given) {
       given.AskToTake();
       given.move.deadline_ns = kNow;
     }},
    {"TakeAndToIsLost", Kind::kWait,
     [](Given& given) {
       given.AskToTake();
       given.LoseTo();
     }},
    {"TakeAndToHasDied", Kind::kTakeBack,
     [](Given& given) {
       given.AskToTake();
       given.LoseTo(true);
     }},
    {"TakeAndToCameBackServing", Kind::kCommit,
     [](Given& given) {
       given.AskToTake();
       given.to.info.peer += 10;
       given.there() = views::Serving();
     }},
    {"TakeAndToCameBackWithoutIt", Kind::kTakeBack,
     [](Given& given) {
       given.AskToTake();
       given.to.info.peer += 10;
     }},
    {"TakeFromADeadOneNotAnsweredInTime", Kind::kNothing,
     [](Given& given) {
       given.AskToTake();
       given.move.crash = true;
       given.move.deadline_ns = kNow;
     }},
    {"TakeFromADeadOneAndToCameBackWithoutIt", Kind::kPrepareAgain,
     [](Given& given) {
       given.AskToTake();
       given.move.crash = true;
       given.to.info.peer += 10;
     }},
    {"Committing", Kind::kStore, [](Given& given) { given.move.phase = Phase::kCommitting; }},
    {"CommittingAndToHasDied", Kind::kTakeBack,
     [](Given& given) {
       given.move.phase = Phase::kCommitting;
       given.LoseTo(true);
     }},
    {"CommittingOfADeadOne", Kind::kTakenOver,
     [](Given& given) {
       given.move.phase = Phase::kCommitting;
       given.move.crash = true;
     }},
    {"CommittingOfADeadOneAndToHasDied", Kind::kNotTakenOver,
     [](Given& given) {
       given.move.phase = Phase::kCommitting;
       given.move.crash = true;
       given.LoseTo(true);
     }},
    {"TakingBack", Kind::kAskTakeBack, [](Given& given) { given.TakeBack(); }},
    {"TakingBackWhileBusy", Kind::kNothing,
     [](Given& given) {
       given.TakeBack();
       given.here().request.Begin();
     }},
    {"TakingBackWasAsked", Kind::kWaitOrReport,
     [](Given& given) {
       given.TakeBack();
       given.move.asked = kFromPeer;
     }},
    {"TakingBackAndToServesAfterAll", Kind::kCommit,
     [](Given& given) {
       given.TakeBack();
       given.there() = views::Serving();
     }},
    {"TakingBackAndFromIsLost", Kind::kWaitOrReport,
     [](Given& given) {
       given.TakeBack();
       given.LoseFrom();
     }},
    {"TakingBackAndBothHaveDied", Kind::kEnd,
     [](Given& given) {
       given.TakeBack();
       given.LoseFrom(true);
       given.LoseTo(true);
     }},
    {"TakingBackAndFromHasDiedWhileToMayServe", Kind::kWaitOrReport,
     [](Given& given) {
       given.TakeBack();
       given.LoseFrom(true);
       given.LoseTo();
     }},
    {"TakingBackAndFromServes", Kind::kEnd,
     [](Given& given) {
       given.TakeBack();
       given.here() = views::Serving();
     }},
    {"TakingBackAndFromWasStartedAnewWhileToMayServe", Kind::kWaitOrReport,
     [](Given& given) {
       given.TakeBack();
       given.from.controllers.clear();
     }},
    {"TakingBackAndFromWasStartedAnew", Kind::kEnd,
     [](Given& given) {
       given.TakeBack();
       given.from.controllers.clear();
       given.move.asked_to_take = 0;
     }},
};
INSTANTIATE_TEST_SUITE_P(Later, MovePlan, testing::ValuesIn(kLaterCases),
                         [](const auto& test) { return std::string(test.param.name); });

// Nothing is asked of the engine that gave a controller away before it is known that the other one has not got it.
TEST(MayStillServeTest, UntilItHasSaidNoDiedOrComeBackWithoutIt) {
  Given given;
  EXPECT_FALSE(MayStillServe(given.move, given.sides())) << "it was not asked";
  given.AskToTake();
  EXPECT_TRUE(MayStillServe(given.move, given.sides()));
  given.LoseTo();
  EXPECT_TRUE(MayStillServe(given.move, given.sides())) << "the end of a connection proves nothing";
  given.LoseTo(true);
  EXPECT_FALSE(MayStillServe(given.move, given.sides()));
  given.to_connected = true;
  given.to.info.peer += 10;
  EXPECT_FALSE(MayStillServe(given.move, given.sides()));
  given.there() = views::Serving();
  EXPECT_TRUE(MayStillServe(given.move, given.sides()));
}

TEST(MovePlanTest, TellsWhyAControllerIsNotPreparedInTime) {
  Given given;
  given.move.deadline_ns = kNow;
  given.there().attachments.clear();
  EXPECT_NE(Plan(given).why.message.find("disks/d is still being opened there"), std::string::npos);
  given.there().last_error = "no such image";
  EXPECT_NE(Plan(given).why.message.find("no such image"), std::string::npos);
}

}  // namespace
}  // namespace cleat::control::move_plan_test
