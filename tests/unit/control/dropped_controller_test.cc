// SPDX-License-Identifier: Apache-2.0
// An engine drops a controller without having been asked, while a request about it is on its way: cleatd believes it, and gets no
// answer wrong that comes afterwards. With engines that are played.
#include <gtest/gtest.h>

#include "moves_rig.h"
#include "restored.h"

namespace cleat::control::dropped_controller_test {
namespace {

class DroppedControllerTest : public TwoEngines {
 protected:
  // When this returns cleatd has read whatever green had said before.
  void AwaitRead(const std::string& probe) {
    auto request = NewController(probe);
    request.mutable_controller()->mutable_spec()->set_engine("engines/engine-1");
    ASSERT_TRUE(state_->controllers().Create(request).ok());
    Await(probe + " is there", [&] {
      return state_->controllers().Get(GetController(probe))->status().state() == v1::CONTROLLER_STATE_IDLE;
    });
  }
  Requests AskedOfGreenAbout(const std::string& controller) {
    Requests requests = green_.TakeRequests();
    std::erase_if(requests, [&](const std::string& request) {
      return request.find(ControllerName(controller)) == std::string::npos;
    });
    return requests;
  }
};

TEST_F(DroppedControllerTest, IsMadeAnewWithItsDisks) {
  CreateSome({"a"});
  blue_.TakeRequests();
  blue_.DropController("controllers/a");
  blue_.WaitForRequest("Attach controllers/a 0 disks/da");
  AwaitServed("a", "engine-0");
  EXPECT_EQ(blue_.TakeRequests(), (Requests{"Detach controllers/a 0", "PutController controllers/a",
                                            "Attach controllers/a 0 disks/da"}));
}

// The answer to the attach would be taken for that to the next one.
TEST_F(DroppedControllerTest, IsNotMadeAnewWhileADiskIsBeingAttachedThere) {
  CreateSome({"a"});
  green_.Hold("Attach controllers/a");
  ASSERT_TRUE(Upgrade().ok());
  green_.WaitForRequest("Attach controllers/a 0 disks/da");
  v1::CancelUpgradeRequest cancel;
  cancel.set_name("engines/engine-0");
  ASSERT_TRUE(state_->upgrades().Cancel(cancel).ok());
  EXPECT_EQ(AwaitUpgrade().state(), v1::UPGRADE_STATE_CANCELLED);
  green_.DropController("controllers/a");
  AwaitRead("probe1");
  green_.TakeRequests();
  ASSERT_TRUE(Upgrade().ok());
  AwaitRead("probe2");
  EXPECT_EQ(AskedOfGreenAbout("a"), Requests());
  green_.Release();
  const v1::UpgradeStatus status = AwaitUpgrade();
  EXPECT_EQ(status.state(), v1::UPGRADE_STATE_DONE) << status.ShortDebugString();
  AwaitServed("a", "engine-1");
}

// The end of the detach is the end of what cleatd knows of the controller there, while it still looks at that. AddressSanitizer sees it.
TEST_F(DroppedControllerTest, IsForgottenWhenItsLastDiskIsDetached) {
  green_.Disconnect();
  green_.set_stands_by_for("engine-0");
  ASSERT_TRUE(green_.Connect());
  CreateSome({"a"});
  AwaitStandby(green_, "a");
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(state_->disks().Create(NullDisk("later")).ok());
  ASSERT_TRUE(Restore(*state_, backup).ok());
  RestartCleatd();
  green_.set_stands_by_for("");
  green_.Hold("Detach controllers/a");
  green_.TakeRequests();
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  green_.WaitForRequest("Detach controllers/a 0");
  green_.DropController("controllers/a");
  green_.Release();
  AwaitRead("probe");
  EXPECT_EQ(AskedOfGreenAbout("a"), Requests{"Detach controllers/a 0"});
  AwaitServed("a", "engine-0");
}

}  // namespace
}  // namespace cleat::control::dropped_controller_test
