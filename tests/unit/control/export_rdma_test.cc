// SPDX-License-Identifier: Apache-2.0
// Addresses of exports over RDMA: which may be beside which, and which engines are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "control/model/reasons.h"
#include "moves_rig.h"
#include "requests.h"

namespace cleat::control::export_rdma_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class ExportRdma : public MovesRig {
 protected:
  static v1::CreateControllerRequest Asked(const std::vector<std::string>& addresses,
                                           const std::vector<std::string>& standby_addresses = {},
                                           const std::string& id = "db") {
    v1::CreateControllerRequest request = NewExport(id);
    v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
    spec.set_engine("engines/engine-0");
    spec.mutable_exported()->mutable_addresses()->Assign(addresses.begin(), addresses.end());
    spec.mutable_exported()->mutable_standby_addresses()->Assign(standby_addresses.begin(),
                                                                 standby_addresses.end());
    return request;
  }
  auto Make(const v1::CreateControllerRequest& request) { return state_->controllers().Create(request); }
  // "db", with a disk.
  void CreateDb(const v1::CreateControllerRequest& request) {
    const auto made = Make(request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE(state_->disks().Create(NullDisk("a")).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "db")).ok());
  }
  v1::Controller Db() { return state_->controllers().Get(GetController("db")).value(); }
  std::string Message() { return Db().status().message(); }
  static engine::v1::Export ToldTo(FakeEngine& engine) {
    return engine.ControllerAt("controllers/db").exported();
  }
  void AwaitDbStandsBy() { AwaitStandby(green_, "db"); }
};

// ---- What the API takes

TEST_F(ExportRdma, AddressesAreKeptInOneFormAndToldAsTheyAreKept) {
  ASSERT_TRUE(blue_.Connect());
  CreateDb(Asked({"rdma://10.0.0.1", "rdma://[fd00:0::1]:4421"}, {"rdma://10.0.0.1:4430"}));
  AwaitServed("db", "engine-0");
  EXPECT_THAT(Db().spec().exported().addresses(),
              ElementsAre("rdma://10.0.0.1:4420", "rdma://[fd00::1]:4421"));
  EXPECT_THAT(ToldTo(blue_).addresses(), ElementsAre("rdma://10.0.0.1:4420", "rdma://[fd00::1]:4421"));
  EXPECT_THAT(ToldTo(blue_).standby_addresses(), ElementsAre("rdma://10.0.0.1:4430"));
  EXPECT_THAT(Message(), Not(HasSubstr("RDMA")));
}

TEST_F(ExportRdma, AddressesOverlapWithinTheirTransportAlone) {
  EXPECT_TRUE(Make(Asked({"0.0.0.0", "rdma://10.0.0.1"}, {"rdma://10.0.0.2"})).ok());
  const auto twice = Make(Asked({"10.0.0.1:4421", "rdma://10.0.0.1", "rdma://10.0.0.1:4420"}, {}, "twice"));
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(MetadataOf(twice.error(), "field"), "spec.exported.addresses[2]");
  EXPECT_THAT(twice.error().message,
              HasSubstr("is rdma://10.0.0.1:4420, which is among those of exported.addresses[1], "
                        "rdma://10.0.0.1:4420: give each once"));
  const auto both = Make(Asked({"rdma://10.0.0.3"}, {"10.0.0.3", "rdma://10.0.0.3"}, "both"));
  ASSERT_FALSE(both.ok()) << "an engine that stands by would listen where another one does";
  EXPECT_EQ(MetadataOf(both.error(), "field"), "spec.exported.standby_addresses[1]");
}

TEST_F(ExportRdma, AStandbyAddressIsNoOtherExportsAddressOfItsTransport) {
  ASSERT_TRUE(Make(Asked({"rdma://10.0.0.1"}, {"rdma://10.0.0.1:4421"})).ok());
  const auto refused = Make(Asked({"rdma://10.0.0.1:4421"}, {}, "logs"));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("rdma://10.0.0.1:4421"));
  EXPECT_THAT(refused.error().message, HasSubstr("controllers/db"));
  EXPECT_TRUE(Make(Asked({"10.0.0.1:4421"}, {}, "logs")).ok());
}

TEST_F(ExportRdma, OneThatStandsForAllIsRefused) {
  for (const char* const address : {"rdma://0.0.0.0", "rdma://[::]:4420"}) {
    const auto refused = Make(Asked({"10.0.0.1", address}));
    ASSERT_FALSE(refused.ok()) << address;
    EXPECT_EQ(ReasonOf(refused.error()), v1::REASON_INVALID_FIELD);
    EXPECT_EQ(MetadataOf(refused.error(), "field"), "spec.exported.addresses[1]");
    EXPECT_THAT(refused.error().message, HasSubstr("which stands for all: over RDMA each address is one "
                                                   "adapter's: name them one by one"));
    const auto standby = Make(Asked({"10.0.0.1"}, {address}));
    ASSERT_FALSE(standby.ok()) << address;
    EXPECT_EQ(MetadataOf(standby.error(), "field"), "spec.exported.standby_addresses[0]");
  }
  for (const char* const address : {"rdma://", "rdma://target.example", "RDMA://10.0.0.1", "tcp://10.0.0.1"})
    EXPECT_FALSE(Make(Asked({address})).ok()) << address;
}

// ---- Engines of before

TEST_F(ExportRdma, AnEngineOfBeforeIsToldTheOthersAndTheStatusSaysSo) {
  blue_.set_protocol(kProtocolRdma - 1);
  ASSERT_TRUE(blue_.Connect());
  CreateDb(
      Asked({"rdma://10.0.0.1", "10.0.0.1", "rdma://10.0.0.2"}, {"10.0.0.1:4430", "rdma://10.0.0.1:4430"}));
  AwaitServed("db", "engine-0");
  EXPECT_THAT(ToldTo(blue_).addresses(), ElementsAre("10.0.0.1:4420"));
  EXPECT_THAT(ToldTo(blue_).standby_addresses(), ElementsAre("10.0.0.1:4430"));
  EXPECT_THAT(
      Message(),
      HasSubstr("nobody listens at 2 of 3 addresses: they are over RDMA, which takes protocol 13, and "
                "engines/engine-0 (version 0.0.1) speaks protocol 12: upgrade the engine"));
  // The new one under the same name.
  blue_.Die();
  blue_.set_protocol(kProtocolRdma);
  ASSERT_TRUE(blue_.Connect());
  Await("it knows all", [&] { return ToldTo(blue_).addresses_size() == 3; });
  AwaitServed("db", "engine-0");
  EXPECT_EQ(ToldTo(blue_).standby_addresses_size(), 2);
  EXPECT_THAT(Message(), Not(HasSubstr("RDMA")));
}

TEST_F(ExportRdma, AnEngineOfBeforeIsNotGivenWhatIsReachedOverRdmaAlone) {
  blue_.set_protocol(kProtocolRdma - 1);
  ASSERT_TRUE(blue_.Connect());
  CreateDb(Asked({"rdma://10.0.0.1"}));
  Await("it has failed", [&] { return Db().status().state() == v1::CONTROLLER_STATE_FAILED; });
  EXPECT_THAT(Message(),
              HasSubstr("engines/engine-0 (version 0.0.1, protocol 12) can listen at no address of this "
                        "export: all are over RDMA, which takes protocol 13: upgrade the engine"));
  EXPECT_THAT(Message(), Not(HasSubstr("nobody listens"))) << "it is said once";
  EXPECT_FALSE(blue_.Has("controllers/db", 0));
  blue_.set_protocol(kProtocolRdma);
  blue_.Restart();
  AwaitServed("db", "engine-0");
}

TEST_F(ExportRdma, AnEngineOfBeforeThatStandsByIsToldTheOtherStandbyAddressesAndTheStatusSaysSo) {
  green_.set_stands_by_for("engine-0");
  green_.set_protocol(kProtocolRdma - 1);
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  CreateDb(Asked({"10.0.0.1"}, {"10.0.0.1:4430", "rdma://10.0.0.1:4430"}));
  AwaitDbStandsBy();
  EXPECT_THAT(ToldTo(green_).standby_addresses(), ElementsAre("10.0.0.1:4430"));
  EXPECT_THAT(ToldTo(blue_).standby_addresses(), ElementsAre("10.0.0.1:4430", "rdma://10.0.0.1:4430"));
  EXPECT_THAT(
      Message(),
      HasSubstr("nobody listens at 1 of 2 standby addresses: they are over RDMA, which takes protocol "
                "13, and engines/engine-1 (version 0.0.1) speaks protocol 12: stop it and start the new "
                "one under the same name (--name engine-1)"));
}

TEST_F(ExportRdma, AnEngineThatKnowsNoStandbyAddressesIsToldNoneWhateverTheyAre) {
  green_.set_stands_by_for("engine-0");
  green_.set_protocol(kProtocolHandOver - 1);
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  CreateDb(Asked({"10.0.0.1"}, {"rdma://10.0.0.1:4430"}));
  AwaitDbStandsBy();
  EXPECT_THAT(ToldTo(green_).standby_addresses(), ElementsAre());
  EXPECT_THAT(Message(), HasSubstr("nobody listens at the standby addresses: that takes protocol 13"));
}

TEST_F(ExportRdma, WhatIsReachedOverRdmaAloneStaysWhereItIsWhenTheNextEngineIsOfBefore) {
  green_.set_protocol(kProtocolRdma - 1);
  ASSERT_TRUE(blue_.Connect());
  ASSERT_TRUE(green_.Connect());
  AwaitEngines();
  CreateDb(Asked({"rdma://10.0.0.1"}));
  AwaitServed("db", "engine-0");
  ASSERT_TRUE(Upgrade().ok());
  const v1::UpgradeStatus status = AwaitUpgradePassingLimits();
  ASSERT_EQ(status.failed_size(), 1);
  EXPECT_THAT(status.failed(0).reason(), HasSubstr("all are over RDMA, which takes protocol 13"));
  AwaitServed("db", "engine-0");
  EXPECT_THAT(ToldTo(blue_).addresses(), ElementsAre("rdma://10.0.0.1:4420"));
}

}  // namespace
}  // namespace cleat::control::export_rdma_test
