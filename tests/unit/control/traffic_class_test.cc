// SPDX-License-Identifier: Apache-2.0
// The DSCP of subsystems and exports, and where paths to a subsystem begin: what is taken, what engines are told, and which know nothing of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "control/model/reasons.h"
#include "keys_rig.h"
#include "requests.h"

namespace cleat::control::traffic_class_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class TrafficClass : public KeysRig {
 protected:
  static v1::CreateSubsystemRequest At(const std::vector<std::string>& addresses, uint32_t dscp = 0) {
    v1::CreateSubsystemRequest request = NewSubsystem("array");
    v1::SubsystemSpec& spec = *request.mutable_subsystem()->mutable_spec();
    spec.mutable_addresses()->Assign(addresses.begin(), addresses.end());
    spec.set_dscp(dscp);
    return request;
  }
  static v1::CreateControllerRequest Export(const std::vector<std::string>& addresses, uint32_t dscp) {
    v1::CreateControllerRequest request = NewExport("db");
    v1::ControllerSpec& spec = *request.mutable_controller()->mutable_spec();
    spec.set_engine("engines/engine-0");
    spec.mutable_exported()->mutable_addresses()->Assign(addresses.begin(), addresses.end());
    spec.mutable_exported()->set_dscp(dscp);
    return request;
  }
  auto Make(const v1::CreateSubsystemRequest& request) { return state_->subsystems().Create(request); }
  auto Make(const v1::CreateControllerRequest& request) { return state_->controllers().Create(request); }
  auto UpdateTo(const v1::CreateSubsystemRequest& wanted) {
    return state_->subsystems().Update(Update(wanted));
  }
  template <typename Resource>
  static void ExpectRefused(const Result<Resource>& made, const std::string& field, const std::string& says) {
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(ReasonOf(made.error()), v1::REASON_INVALID_FIELD);
    EXPECT_EQ(MetadataOf(made.error(), "field"), "spec." + field);
    EXPECT_THAT(made.error().message, HasSubstr(says));
  }

  // A disk of that subsystem, for engine-0.
  void AttachOne(const v1::CreateSubsystemRequest& request) {
    const auto made = Make(request);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
    v1::CreateControllerRequest vm = NewController("vm");
    vm.mutable_controller()->mutable_spec()->set_engine("engines/engine-0");
    ASSERT_TRUE(state_->controllers().Create(vm).ok());
    ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
    AwaitAttached();
  }
  void AwaitAttached() { ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok()); }
  std::string MessageOfAttachment() {
    return state_->attachments().Get(GetAttachment("vm", "a"))->status().message();
  }
  std::string MessageOfDisk() { return state_->disks().Get(GetDisk("a"))->status().message(); }
  std::string MessageOfExport() { return state_->controllers().Get(GetController("db"))->status().message(); }
  static engine::v1::NvmeTcpBackend ToldTo(FakeEngine& engine) {
    return engine.DiskAt("controllers/vm", 0).nvme_tcp();
  }
};

constexpr const char* kUpgrade =
    "takes protocol 15, and engines/engine-0 (version 0.0.1) speaks protocol 14: upgrade the engine "
    "(cleatctl "
    "engine upgrade), or stop it and start the new one under the same name (--name engine-0)";

// ---- Sources of a subsystem's paths

TEST_F(TrafficClass, SourcesAreKeptInOneFormAndToldAsTheyAreKept) {
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At(
      {"10.0.0.1,from=10.0.0.9", "rdma://[fd00:0::1],from=fd00:0::9", "10.0.0.1,from=10.0.0.8", "10.0.0.1"}));
  const auto kept = ElementsAre("10.0.0.1:4420,from=10.0.0.9", "rdma://[fd00::1]:4420,from=fd00::9",
                                "10.0.0.1:4420,from=10.0.0.8", "10.0.0.1:4420");
  EXPECT_THAT(ToldTo(engine_).addresses(), kept);
  v1::GetSubsystemRequest get;
  get.set_name("subsystems/array");
  EXPECT_THAT(state_->subsystems().Get(get)->spec().addresses(), kept);
  EXPECT_THAT(MessageOfAttachment() + MessageOfDisk(), Not(HasSubstr("protocol")));
}

TEST_F(TrafficClass, ASourceOfAnotherFamilyOrThatIsNoneIsRefusedByName) {
  ExpectRefused(Make(At({"10.0.0.1", "10.0.0.2,from=fd00::9"})), "addresses[1]",
                "subsystems/array: addresses[1] is wrong: 'fd00::9' is an IPv6 address, and no connection to "
                "10.0.0.2:4420, which is IPv4, comes from one");
  ExpectRefused(Make(At({"rdma://[fd00::1],from=10.0.0.9"})), "addresses[0]",
                "'10.0.0.9' is an IPv4 address");
  ExpectRefused(Make(At({"10.0.0.1,from=eth0"})), "addresses[0]",
                "'eth0' is no address of this host to come from: 10.0.0.9, without a port");
  ExpectRefused(Make(At({"10.0.0.1,from=0.0.0.0"})), "addresses[0]",
                "'0.0.0.0' stands for all of this host's addresses");
  ExpectRefused(Make(At({"rdma://0.0.0.0,from=10.0.0.9"})), "addresses[0]", "which is nobody's address");
}

TEST_F(TrafficClass, OnePathIsOneTargetFromOneSource) {
  ExpectRefused(Make(At({"10.0.0.1,from=10.0.0.9", "10.0.0.1", "10.0.0.1:4420,from=10.0.0.9"})),
                "addresses[2]",
                "addresses[2] is 10.0.0.1:4420,from=10.0.0.9, as addresses[0] is: give each once");
  ExpectRefused(Make(Export({"10.0.0.1,from=10.0.0.9"}, 0)), "exported.addresses[0]", "is wrong");
}

// What holds for addresses over RDMA does so with a source as well.
TEST_F(TrafficClass, AnAddressOverRdmaIsOneWithASourceToo) {
  v1::CreateSubsystemRequest digests = At({"rdma://10.0.0.1,from=10.0.0.9"});
  digests.mutable_subsystem()->mutable_spec()->set_data_digest(true);
  ExpectRefused(Make(digests), "data_digest", "all addresses are over RDMA");
  v1::CreateSubsystemRequest psk = At({"rdma://10.0.0.1,from=10.0.0.9"});
  psk.mutable_subsystem()->mutable_spec()->mutable_tls_psk()->set_plain_key(kTlsPsk);
  ExpectRefused(Make(psk), "addresses[0]", "NVMe/RDMA has no TLS");
}

// ---- DSCP

TEST_F(TrafficClass, ADscpIsToldAndChangesLikeAnAddress) {
  ExpectRefused(Make(At({"10.0.0.1"}, 64)), "dscp", "subsystems/array: dscp is 64: it must be 0 to 63");
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"10.0.0.1"}, 63));
  EXPECT_EQ(ToldTo(engine_).dscp(), 63U);
  const auto attached = UpdateTo(At({"10.0.0.1"}, 8));
  ASSERT_FALSE(attached.ok());
  EXPECT_EQ(ReasonOf(attached.error()), v1::REASON_SUBSYSTEM_IN_USE);
  EXPECT_THAT(attached.error().message, HasSubstr("its addresses, DSCP, reservations and secrets stay"));
  ASSERT_TRUE(state_->attachments().Detach(Detach("vm", "a")).ok());
  Await("it can change", [&] { return UpdateTo(At({"10.0.0.1"}, 8)).ok(); });
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  AwaitAttached();
  EXPECT_EQ(ToldTo(engine_).dscp(), 8U);
  EXPECT_THAT(MessageOfAttachment() + MessageOfDisk(), Not(HasSubstr("DSCP")));
}

TEST_F(TrafficClass, AnExportHasADscpWhereItHasAnAddressOverTcp) {
  ExpectRefused(Make(Export({"10.0.0.1"}, 64)), "exported.dscp", "is 64: it must be 0 to 63");
  ExpectRefused(
      Make(Export({"rdma://10.0.0.1"}, 8)), "exported.dscp",
      "controllers/db: exported.dscp is 8, and all addresses are over RDMA, where the DSCP that a host "
      "asks for holds for both ways: leave it out, and set it at the hosts");
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Make(Export({"rdma://10.0.0.1", "10.0.0.1"}, 46)).ok());
  Await("it is there",
        [&] { return engine_.StateOf("controllers/db") != engine::v1::CONTROLLER_STATE_UNSPECIFIED; });
  EXPECT_EQ(engine_.ControllerAt("controllers/db").exported().dscp(), 46U);
  EXPECT_THAT(MessageOfExport(), Not(HasSubstr("DSCP")));
}

// ---- Engines of before

TEST_F(TrafficClass, AnEngineOfBeforeIsToldEachTargetOnceAndTheStatusSaysWhatIsMissing) {
  engine_.set_protocol(kProtocolPaths - 1);
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"10.0.0.1,from=10.0.0.9", "rdma://10.0.0.1,from=10.0.0.9", "10.0.0.1,from=10.0.0.8"}, 26));
  EXPECT_THAT(ToldTo(engine_).addresses(), ElementsAre("10.0.0.1:4420", "rdma://10.0.0.1:4420"));
  EXPECT_FALSE(ToldTo(engine_).has_dscp());
  const std::string why = std::string(
                              "packets to subsystems/array carry no DSCP (26 is asked for), and connections "
                              "to 3 of 3 addresses of "
                              "subsystems/array come from where its host's routes say: what is asked for ") +
                          kUpgrade;
  EXPECT_THAT(MessageOfAttachment(), HasSubstr(why));
  EXPECT_THAT(MessageOfDisk(), HasSubstr(why));
  // The new one under the same name.
  engine_.Die();
  engine_.set_protocol(kProtocolPaths);
  ASSERT_TRUE(engine_.Connect());
  Await("it knows all",
        [&] { return engine_.Has("controllers/vm", 0) && ToldTo(engine_).addresses_size() == 3; });
  AwaitAttached();
  EXPECT_EQ(ToldTo(engine_).dscp(), 26U);
  EXPECT_THAT(MessageOfAttachment() + MessageOfDisk(), Not(HasSubstr("protocol")));
}

TEST_F(TrafficClass, OfWhatIsNotAskedForNothingIsSaid) {
  engine_.set_protocol(kProtocolPaths - 1);
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"10.0.0.1", "10.0.0.2,from=10.0.0.9"}));
  EXPECT_THAT(MessageOfDisk(), HasSubstr("connections to 1 of 2 addresses of subsystems/array come from"));
  EXPECT_THAT(MessageOfDisk(), Not(HasSubstr("DSCP")));
}

TEST_F(TrafficClass, AnExportOnAnEngineOfBeforeIsServedAndTheStatusSaysWhatIsMissing) {
  engine_.set_protocol(kProtocolPaths - 1);
  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(Make(Export({"10.0.0.1"}, 46)).ok());
  Await("it is there",
        [&] { return engine_.StateOf("controllers/db") != engine::v1::CONTROLLER_STATE_UNSPECIFIED; });
  EXPECT_FALSE(engine_.ControllerAt("controllers/db").exported().has_dscp());
  EXPECT_THAT(MessageOfExport(),
              HasSubstr(std::string("packets to hosts carry no DSCP (46 is asked for): that ") + kUpgrade));
}

}  // namespace
}  // namespace cleat::control::traffic_class_test
