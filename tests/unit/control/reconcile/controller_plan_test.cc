// SPDX-License-Identifier: Apache-2.0
// What is to be done next about a controller, without any engine.
#include "control/reconcile/controllers/controller_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "control/model/names.h"
#include "control/state/disks/memfd_keeper.h"
#include "tests/unit/control/reconcile/views.h"

namespace cleat::control::controller_plan_test {
namespace {

constexpr uint64_t kRevision = 7;
constexpr uint64_t kNow = 1000;
constexpr BackoffLimits kLimits{.min_ns = 10, .max_ns = 10};

AttachmentIntent Intent(const std::string& disk, uint32_t target) {
  AttachmentIntent intent;
  intent.row.controller = "s";
  intent.row.id = intent.disk.id = disk;
  intent.row.revision = kRevision;
  intent.row.spec.set_target(target);
  return intent;
}

engine::v1::AttachmentStatus Open(const AttachmentIntent& intent) {
  engine::v1::AttachmentStatus status;
  status.mutable_attachment()->mutable_disk()->set_name(DiskName(intent.disk.id));
  status.mutable_attachment()->set_target(intent.row.spec.target());
  status.mutable_attachment()->set_revision(intent.row.revision);
  status.set_state(engine::v1::ATTACHMENT_STATE_ACTIVE);
  return status;
}

// A SCSI controller with a null disk, which is open, and a memory disk, on an engine that does not serve it yet.
class HeldBackTest : public testing::Test {
 protected:
  HeldBackTest() {
    intent_.exists = true;
    intent_.row.id = "s";
    intent_.row.engine = engine_.info.id = "engine-0";
    intent_.row.revision = kRevision;
    intent_.attachments = {Intent("d", 0), Intent("m", 1)};
    intent_.attachments[0].disk.spec.mutable_null();
    intent_.attachments[1].disk.spec.mutable_memory();
    view_.actual.emplace();
    view_.actual->mutable_controller()->set_revision(kRevision);
    view_.actual->mutable_controller()->set_type(engine::v1::CONTROLLER_TYPE_SCSI);
    view_.actual->set_state(engine::v1::CONTROLLER_STATE_IDLE);
    view_.attachments[0] = Open(intent_.attachments[0]);
  }

  bool IsToDo(Step::Kind kind) {
    const std::vector<Step> steps = PlanSteps(intent_, engine_, view_, memory_, 0);
    return std::ranges::any_of(steps, [kind](const Step& step) { return step.kind == kind; });
  }

  ControllerIntent intent_;
  EngineView engine_;
  ControllerView view_;
  MemfdKeeper memory_;
};

// Its guest would see a SCSI bus without that disk.
TEST_F(HeldBackTest, WaitsForADiskThatOnlyWaitsItsTurn) {
  engine_.memory_requests.Begin(DiskId{"m"});  // for another controller
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController));
  engine_.memory_requests.Done(DiskId{"m"});
  engine_.memories["m"] = 4096;
  engine_.resize_requests.Begin(DiskId{"m"});
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController));
  engine_.resize_requests.Done(DiskId{"m"});
  EXPECT_TRUE(IsToDo(Step::Kind::kAttach));
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController));
  view_.attachments[1] = Open(intent_.attachments[1]);
  EXPECT_TRUE(IsToDo(Step::Kind::kServeController));
}

TEST_F(HeldBackTest, DoesNotWaitForOneThatIsLost) {
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController)) << "its content is waited for";
  intent_.attachments[1].disk_status.set_state(v1::DISK_STATE_LOST);
  EXPECT_TRUE(IsToDo(Step::Kind::kServeController));
}

// Its last owner's writes may still land, and nobody reads them any more.
TEST_F(HeldBackTest, DoesNotWaitForOneThatIsForgotten) {
  view_.unproven = {1};
  view_.targets.Fail(1, 0, {.min_ns = 10, .max_ns = 10});  // not attached again yet
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController)) << "it is tried again";
  intent_.attachments[1].row.deleting = true;
  EXPECT_TRUE(IsToDo(Step::Kind::kForgetAttachment));
  EXPECT_TRUE(IsToDo(Step::Kind::kServeController));
  view_.attachments[1] = Open(intent_.attachments[1]);
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController)) << "the engine has it after all";
}

// ---- A controller with a disk ----

using Kinds = std::vector<Step::Kind>;

struct PlanCase {
  const char* name;
  Kinds kinds;
  struct Given {
    ControllerIntent intent = views::IntentOn("e");
    EngineView engine = views::Engine("e");
    ControllerView view = views::Serving();
  };
  std::function<void(Given& given)> arrange;
};

class ControllerPlan : public testing::TestWithParam<PlanCase> {};

TEST_P(ControllerPlan, IsAsTheTableSays) {
  PlanCase::Given given;
  given.intent.attachments[0].disk.spec.mutable_null();
  GetParam().arrange(given);
  const MemfdKeeper memory;
  Kinds kinds;
  for (const Step& step : PlanSteps(given.intent, given.engine, given.view, memory, kNow))
    kinds.push_back(step.kind);
  EXPECT_EQ(kinds, GetParam().kinds);
}

using Kind = Step::Kind;
const PlanCase kPlanCases[] = {
    {"AsItShouldBe", {}, [](auto&) {}},
    {"Missing", {Kind::kPutController}, [](auto& given) { given.view = {}; }},
    {"MissingAndBackedOff",
     {},
     [](auto& given) {
       given.view = {};
       given.view.request.Fail(kNow, kLimits);
     }},
    {"MissingAndItsGroupAsWell",
     {Kind::kWaitForGroup},
     [](auto& given) {
       given.view = {};
       given.intent.row.spec.set_group(GroupName("g"));
     }},
    {"WithoutItsDisk", {Kind::kAttach}, [](auto& given) { given.view.attachments.clear(); }},
    {"WithoutItsDiskWhichIsAskedFor",
     {},
     [](auto& given) {
       given.view.attachments.clear();
       given.view.targets.Begin(0);
     }},
    {"WithoutItsDiskWhichBackedOff",
     {},
     [](auto& given) {
       given.view.attachments.clear();
       given.view.targets.Fail(0, kNow, kLimits);
     }},
    {"WithoutItsDiskWhoseClusterIsNotKnown",
     {Kind::kWaitForCluster},
     [](auto& given) {
       given.view.attachments.clear();
       given.intent.attachments[0].disk.spec.mutable_rbd()->set_cluster(ClusterName("k"));
     }},
    {"WithoutItsMemoryDisk",
     {Kind::kWaitForDisk},
     [](auto& given) {
       given.view.attachments.clear();
       given.intent.attachments[0].disk.spec.mutable_memory();
     }},
    {"WithAFailedDisk",
     {Kind::kDetach},
     [](auto& given) { given.view.attachments[0].set_state(engine::v1::ATTACHMENT_STATE_FAILED); }},
    {"WithAnEarlierAttachmentOfItsDisk",
     {Kind::kDetach},
     [](auto& given) { given.intent.attachments[0].row.revision += 1; }},
    {"DiskIsBeingDetached",
     {Kind::kDetach},
     [](auto& given) { given.intent.attachments[0].row.deleting = true; }},
    {"DiskIsDetached",
     {Kind::kForgetAttachment},
     [](auto& given) {
       given.intent.attachments[0].row.deleting = true;
       given.view.attachments.clear();
     }},
    {"OfAnotherRevision", {Kind::kDetach}, [](auto& given) { given.intent.row.revision += 1; }},
    {"OfAnotherRevisionWithoutDisks",
     {Kind::kDeleteController},
     [](auto& given) {
       given.intent.row.revision += 1;
       given.view.attachments.clear();
     }},
    {"Unknown", {Kind::kDetach}, [](auto& given) { given.intent = {}; }},
    {"AnotherEngines", {Kind::kDetach}, [](auto& given) { given.intent.row.engine = "other"; }},
    {"ItIsGone",
     {Kind::kForgetController},
     [](auto& given) {
       given.intent.row.deleting = true;
       given.intent.attachments.clear();
       given.view = {};
     }},
    {"ToStandBy",
     {Kind::kPutController},
     [](auto& given) {
       given.intent.row.engine = "other";
       given.intent.prepared_on = {"e"};
       given.view = {};
     }},
    {"StandsByAsItShould",
     {},
     [](auto& given) {
       given.intent.row.engine = "other";
       given.intent.prepared_on = {"e"};
       given.view = views::StandingBy();
     }},
    {"StandsByAndIsToServeWithoutADiskThatIsDetached",
     {Kind::kForgetAttachment, Kind::kTakeController},
     [](auto& given) {
       given.view = views::StandingBy();
       given.intent.attachments.push_back(views::Attached("gone", 1));
       given.intent.attachments.back().row.deleting = true;
     }},
    {"StandsByAndIsToServe", {Kind::kTakeController}, [](auto& given) { given.view = views::StandingBy(); }},
    {"StandsByAndIsToServeButCanNotForLong",
     {Kind::kDetach},
     [](auto& given) {
       given.view = views::StandingBy();
       given.view.take_given_up = true;
     }},
    {"KnowsAnotherLastDisk",
     {Kind::kPutController},
     [](auto& given) { given.view.actual->mutable_controller()->set_last_disk(9); }},
};
INSTANTIATE_TEST_SUITE_P(All, ControllerPlan, testing::ValuesIn(kPlanCases),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace cleat::control::controller_plan_test
