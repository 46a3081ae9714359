// SPDX-License-Identifier: Apache-2.0
// What is to be done next about a controller, without any engine.
#include "control/reconcile/engine_view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "control/memory_keeper.h"
#include "control/names.h"

namespace cleat::control::engine_view_test {
namespace {

constexpr uint64_t kRevision = 7;

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
  MemoryKeeper memory_;
};

// Its guest would see a SCSI bus without that disk.
TEST_F(HeldBackTest, WaitsForADiskThatOnlyWaitsItsTurn) {
  engine_.memory_busy = {"m"};  // for another controller
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController));
  engine_.memory_busy.clear();
  engine_.memories["m"] = 4096;
  engine_.resize_busy = {"m"};
  EXPECT_FALSE(IsToDo(Step::Kind::kServeController));
  engine_.resize_busy.clear();
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

}  // namespace
}  // namespace cleat::control::engine_view_test
