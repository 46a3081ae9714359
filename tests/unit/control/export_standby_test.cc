// SPDX-License-Identifier: Apache-2.0
// Standby addresses of exports, at which an engine listens that stands by: what is kept of them, and which engines are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "control/api/apply_host.h"
#include "moves_rig.h"
#include "requests.h"
#include "restored.h"

namespace cleat::control::export_standby_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ExportStandby : public MovesRig {
 protected:
  // As a caller asks for it.
  static v1::CreateControllerRequest Asked() {
    v1::CreateControllerRequest request = NewExport("db");
    v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
    spec.set_engine("engines/engine-0");
    spec.mutable_exported()->add_standby_addresses("10.0.1.1");
    return request;
  }
  void CreateDb() {
    const auto made = state_->controllers().Create(Asked());
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "db")).ok());
  }
  v1::Controller Db() { return state_->controllers().Get(GetController("db")).value(); }
  static auto ToldTo(FakeEngine& engine) {
    return engine.ControllerAt("controllers/db").exported().standby_addresses();
  }
  void AwaitStandby() {
    Await("it stands by",
          [&] { return green_.StateOf("controllers/db", 0) == engine::v1::ATTACHMENT_STATE_STANDBY; });
  }
};

TEST_F(ExportStandby, AddressesAreKeptAndToldToBothEngines) {
  green_.set_stands_by_for("engine-0");
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  CreateDb();
  AwaitStandby();
  EXPECT_THAT(Db().spec().exported().standby_addresses(), ElementsAre("10.0.1.1:4420"));
  EXPECT_THAT(Db().status().message(), Not(HasSubstr("standby addresses")));
  EXPECT_THAT(ToldTo(green_), ElementsAre("10.0.1.1:4420"));
  EXPECT_THAT(ToldTo(blue_), ElementsAre("10.0.1.1:4420")) << "it may stand by next";
  EXPECT_EQ(state_->controllers().Create(Asked())->etag(), Db().etag()) << "the same again";
  v1::CreateControllerRequest other = Asked();
  other.mutable_controller()->mutable_spec()->mutable_exported()->clear_standby_addresses();
  EXPECT_EQ(state_->controllers().Create(other).error().code, ErrorCode::kAlreadyExists);
  RestartCleatd();
  EXPECT_THAT(Db().spec().exported().standby_addresses(), ElementsAre("10.0.1.1:4420"));
}

TEST_F(ExportStandby, AnEngineThatIsTooOldIsToldOfNoneAndTheStatusSaysSo) {
  green_.set_stands_by_for("engine-0");
  green_.set_protocol(kProtocolHandOver - 1);
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  CreateDb();
  AwaitStandby();
  EXPECT_THAT(ToldTo(green_), ElementsAre());
  EXPECT_THAT(ToldTo(blue_), ElementsAre("10.0.1.1:4420"));
  EXPECT_THAT(
      Db().status().message(),
      HasSubstr("nobody listens at the standby addresses: that takes protocol 12, and engines/engine-1 "
                "(version 0.0.1) speaks protocol 11: stop it and start the new one"));
  // The new one under the same name.
  green_.Die();
  green_.set_protocol(kProtocolHandOver);
  ASSERT_TRUE(green_.Connect());
  AwaitStandby();
  EXPECT_THAT(ToldTo(green_), ElementsAre("10.0.1.1:4420"));
  EXPECT_THAT(Db().status().message(), Not(HasSubstr("standby addresses")));
}

TEST_F(ExportStandby, AddressesAreDeclaredAsTheRestOfAHostIs) {
  v1::ApplyHostRequest declared;
  v1::Controller& db = *declared.add_controllers();
  db = Asked().controller();
  db.set_name("controllers/db");
  const auto apply = [&] { return ApplyHostCall(*state_, [] { return false; }).Apply(declared); };
  ASSERT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_CREATED);
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_UNCHANGED);
  db.mutable_spec()->mutable_exported()->set_standby_addresses(0, "10.0.1.2");
  EXPECT_EQ(apply()->results(0).action(), v1::APPLY_ACTION_FAILED) << "they are what it is";
  EXPECT_THAT(Db().spec().exported().standby_addresses(), ElementsAre("10.0.1.1:4420"));
}

TEST_F(ExportStandby, ABackupHasTheAddresses) {
  ASSERT_TRUE(blue_.Connect());
  CreateDb();
  const std::string backup = BytesOfBackup(*state_);
  ASSERT_TRUE(Restore(*state_, backup).ok());
  RestartCleatd();
  EXPECT_THAT(Db().spec().exported().standby_addresses(), ElementsAre("10.0.1.1:4420"));
}

}  // namespace
}  // namespace cleat::control::export_standby_test
