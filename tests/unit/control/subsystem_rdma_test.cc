// SPDX-License-Identifier: Apache-2.0
// Addresses of subsystems over RDMA: which may be beside which, what they don't go with, and which engines are told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "control/api/apply_host.h"
#include "control/model/reasons.h"
#include "keys_rig.h"
#include "requests.h"

namespace cleat::control::subsystem_rdma_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SubsystemRdma : public KeysRig {
 protected:
  static v1::CreateSubsystemRequest At(const std::vector<std::string>& addresses) {
    v1::CreateSubsystemRequest request = NewSubsystem("array");
    request.mutable_subsystem()->mutable_spec()->mutable_addresses()->Assign(addresses.begin(),
                                                                             addresses.end());
    return request;
  }
  static v1::CreateSubsystemRequest WithPsk(v1::CreateSubsystemRequest request) {
    request.mutable_subsystem()->mutable_spec()->mutable_tls_psk()->set_plain_key(kTlsPsk);
    return request;
  }
  static v1::CreateSubsystemRequest WithDigests(v1::CreateSubsystemRequest request, bool header, bool data) {
    request.mutable_subsystem()->mutable_spec()->set_header_digest(header);
    request.mutable_subsystem()->mutable_spec()->set_data_digest(data);
    return request;
  }
  auto Make(const v1::CreateSubsystemRequest& request) { return state_->subsystems().Create(request); }
  auto UpdateTo(const v1::CreateSubsystemRequest& wanted) {
    return state_->subsystems().Update(Update(wanted));
  }
  static void ExpectRefused(const Result<v1::Subsystem>& made, const std::string& field,
                            const std::string& says) {
    ASSERT_FALSE(made.ok()) << says;
    EXPECT_EQ(ReasonOf(made.error()), v1::REASON_INVALID_FIELD);
    EXPECT_EQ(MetadataOf(made.error(), "field"), "spec." + field);
    EXPECT_EQ(MetadataOf(made.error(), "resource"), "subsystems/array");
    EXPECT_THAT(made.error().message, HasSubstr(says));
  }
  v1::ApplyResult Apply(const v1::CreateSubsystemRequest& wanted, bool dry_run) {
    v1::ApplyHostRequest host;
    host.set_dry_run(dry_run);
    *host.add_subsystems() = Update(wanted).subsystem();
    const auto applied = ApplyHostCall(*state_, [] { return false; }).Apply(host);
    EXPECT_TRUE(applied.ok());
    return applied->results(0);
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
  }
  void AwaitAttached() { ASSERT_TRUE(WaitFor("controllers/vm/attachments/a").ok()); }
  v1::AttachmentStatus Attached() { return state_->attachments().Get(GetAttachment("vm", "a"))->status(); }
  std::string MessageOfDisk() { return state_->disks().Get(GetDisk("a"))->status().message(); }
  static engine::v1::NvmeTcpBackend ToldTo(FakeEngine& engine) {
    return engine.DiskAt("controllers/vm", 0).nvme_tcp();
  }
  // What is waited for never comes, and limits pass.
  v1::UpgradeStatus UpgradeInVain(const std::string& from, const std::string& to) {
    v1::UpgradeEngineRequest request;
    request.set_name(EngineName(from));
    request.set_to(EngineName(to));
    Await("it can begin", [&] { return state_->upgrades().Begin(request).ok(); });
    v1::UpgradeStatus status;
    Await("it has ended", [&] {
      clock_.Leap(kHourNs / 60);
      link_->Wake();
      status = state_->engines().Get(GetEngine(from))->status().upgrade();
      return status.state() != v1::UPGRADE_STATE_RUNNING;
    });
    return status;
  }
};

// ---- What the API takes

TEST_F(SubsystemRdma, AddressesAreKeptInOneFormAndToldAsTheyAreKept) {
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"rdma://10.0.0.1", "10.0.0.1", "rdma://[fd00:0::1]:4421"}));
  AwaitAttached();
  EXPECT_THAT(ToldTo(engine_).addresses(),
              ElementsAre("rdma://10.0.0.1:4420", "10.0.0.1:4420", "rdma://[fd00::1]:4421"));
  EXPECT_THAT(Attached().message() + MessageOfDisk(), Not(HasSubstr("RDMA")));
  v1::GetSubsystemRequest get;
  get.set_name("subsystems/array");
  EXPECT_THAT(state_->subsystems().Get(get)->spec().addresses(),
              ElementsAre("rdma://10.0.0.1:4420", "10.0.0.1:4420", "rdma://[fd00::1]:4421"));
}

TEST_F(SubsystemRdma, NoTwoOfOneTransportAreAlikeAndEightAreTheMost) {
  ExpectRefused(Make(At({"10.0.0.1", "rdma://10.0.0.1", "rdma://10.0.0.1:4420"})), "addresses[2]",
                "addresses[2] is rdma://10.0.0.1:4420, as addresses[1] is: give each once");
  std::vector<std::string> nine{"10.0.0.1"};
  while (nine.size() < 9) nine.push_back("rdma://10.0.1." + std::to_string(nine.size()));
  ExpectRefused(Make(At(nine)), "addresses", "addresses are 9: give 8 at most");
  nine.pop_back();
  EXPECT_TRUE(Make(At(nine)).ok());
}

TEST_F(SubsystemRdma, NobodysAddressAndWhatIsNoneAreRefused) {
  for (const char* const address : {"rdma://0.0.0.0", "rdma://[::]:4420"}) {
    ExpectRefused(Make(At({"10.0.0.1", address})), "addresses[1]",
                  "which is nobody's address: give that of the target's adapter");
  }
  for (const char* const address : {"rdma://", "rdma://array.example", "RDMA://10.0.0.1", "tcp://10.0.0.1"}) {
    ExpectRefused(Make(At({address})), "addresses[0]",
                  "addresses[0] is wrong: '" + std::string(address) + "' is no address of a target");
  }
  ExpectRefused(Make(At({})), "addresses", "as 10.0.0.1:4420 or rdma://10.0.0.1:4420");
}

TEST_F(SubsystemRdma, DigestsTakeAnAddressOverTcp) {
  constexpr const char* kWhy =
      "is there, and all addresses are over RDMA: digests are NVMe/TCP's, and RDMA adapters check what they "
      "carry by themselves. Leave digests out (cleatctl: --no-header-digest, --no-data-digest), or give an "
      "address over TCP as well";
  const auto rdma = At({"rdma://10.0.0.1", "rdma://10.0.0.2"});
  ExpectRefused(Make(WithDigests(rdma, true, false)), "header_digest",
                std::string("subsystems/array: header_digest ") + kWhy);
  ExpectRefused(Make(WithDigests(rdma, false, true)), "data_digest",
                std::string("subsystems/array: data_digest ") + kWhy);
  const auto both = WithDigests(At({"rdma://10.0.0.1", "10.0.0.1"}), true, true);
  ASSERT_TRUE(Make(both).ok());
  ExpectRefused(UpdateTo(WithDigests(rdma, true, true)), "header_digest", kWhy);
  EXPECT_TRUE(UpdateTo(WithDigests(rdma, false, false)).ok());

  ASSERT_TRUE(engine_.Connect());
  ASSERT_TRUE(UpdateTo(both).ok());
  ASSERT_TRUE(state_->disks().Create(NvmeDisk("a")).ok());
  ASSERT_TRUE(state_->controllers().Create(NewController("vm")).ok());
  ASSERT_TRUE(state_->attachments().Attach(Attach("a", "vm")).ok());
  AwaitAttached();
  EXPECT_TRUE(ToldTo(engine_).header_digest() && ToldTo(engine_).data_digest());
  EXPECT_EQ(ToldTo(engine_).addresses_size(), 2);
}

TEST_F(SubsystemRdma, APreSharedKeyGoesWithNoAddressOverRdma) {
  const std::string why =
      "subsystems/array: addresses[1] is rdma://10.0.0.1:4420, and the subsystem has a pre-shared key "
      "(tls_psk): "
      "NVMe/RDMA has no TLS, but takes DH-HMAC-CHAP secrets (dhchap_secret) as NVMe/TCP does. Give addresses "
      "over TCP alone, or remove the key (cleatctl subsystem update --no-tls-psk)";
  const auto mixed = At({"10.0.0.1", "rdma://10.0.0.1"});
  const auto refused = Make(WithPsk(mixed));
  ExpectRefused(refused, "addresses[1]", why);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, Not(HasSubstr(kTlsPsk)));
  ExpectRefused(Make(WithPsk(At({"rdma://10.0.0.1"}))), "addresses[0]", "NVMe/RDMA has no TLS");
  EXPECT_EQ(Apply(WithPsk(mixed), /*dry_run=*/true).action(), v1::APPLY_ACTION_FAILED);
  EXPECT_EQ(Apply(WithPsk(mixed), /*dry_run=*/false).action(), v1::APPLY_ACTION_FAILED);

  ASSERT_TRUE(Make(WithPsk(NewSubsystem("array"))).ok());
  ExpectRefused(UpdateTo(mixed), "addresses[1]", why);
  EXPECT_EQ(Apply(mixed, /*dry_run=*/true).action(), v1::APPLY_ACTION_FAILED) << "the key that is kept";
  auto without = mixed;
  without.mutable_subsystem()->mutable_spec()->mutable_tls_psk();  // there and empty: removed
  without.mutable_subsystem()->mutable_spec()->mutable_dhchap_secret()->set_plain_key(kChapSecret);
  const auto updated = UpdateTo(without);
  ASSERT_TRUE(updated.ok()) << updated.error().message;
  EXPECT_TRUE(updated->spec().has_dhchap_secret() && !updated->spec().has_tls_psk());
  ExpectRefused(UpdateTo(WithPsk(mixed)), "addresses[1]", why);
  EXPECT_TRUE(UpdateTo(WithPsk(NewSubsystem("array"))).ok()) << "with addresses over TCP alone";
}

// ---- Engines of before

TEST_F(SubsystemRdma, AnEngineOfBeforeIsToldTheOthersAndTheStatusSaysSo) {
  engine_.set_protocol(kProtocolRdmaDisks - 1);
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"rdma://10.0.0.1", "10.0.0.1", "rdma://10.0.0.2"}));
  AwaitAttached();
  EXPECT_THAT(ToldTo(engine_).addresses(), ElementsAre("10.0.0.1:4420"));
  const std::string why =
      "no path goes by 2 of 3 addresses of subsystems/array: they are over RDMA, which takes protocol 14, "
      "and "
      "engines/engine-0 (version 0.0.1) speaks protocol 13: upgrade the engine (cleatctl engine upgrade), or "
      "stop it and start the new one under the same name (--name engine-0)";
  EXPECT_THAT(Attached().message(), HasSubstr(why));
  EXPECT_THAT(MessageOfDisk(), HasSubstr(why));
  // The new one under the same name.
  engine_.Die();
  engine_.set_protocol(kProtocolRdmaDisks);
  ASSERT_TRUE(engine_.Connect());
  Await("it knows all",
        [&] { return engine_.Has("controllers/vm", 0) && ToldTo(engine_).addresses_size() == 3; });
  AwaitAttached();
  EXPECT_THAT(Attached().message() + MessageOfDisk(), Not(HasSubstr("RDMA")));
}

TEST_F(SubsystemRdma, AnEngineOfBeforeIsGivenNoDiskThatIsReachedOverRdmaAlone) {
  engine_.set_protocol(kProtocolRdmaDisks - 1);
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"rdma://10.0.0.1", "rdma://10.0.0.2"}));
  Await("it has failed", [&] { return Attached().state() == v1::ATTACHMENT_STATE_FAILED; });
  EXPECT_THAT(
      Attached().message(),
      HasSubstr("engines/engine-0 (version 0.0.1, protocol 13) can't attach a disk of "
                "subsystems/array, all of whose addresses are over RDMA, which takes protocol 14: "
                "upgrade the engine (cleatctl engine upgrade), or stop it and start the new one under "
                "the same name (--name engine-0)"));
  EXPECT_THAT(Attached().message(), Not(HasSubstr("no path goes by"))) << "it is said once";
  EXPECT_FALSE(engine_.Has("controllers/vm", 0));
  for (const std::string& asked : engine_.TakeRequests()) EXPECT_THAT(asked, Not(HasSubstr("Attach ")));
  engine_.Die();
  engine_.set_protocol(kProtocolRdmaDisks);
  ASSERT_TRUE(engine_.Connect());
  AwaitAttached();
  EXPECT_EQ(ToldTo(engine_).addresses_size(), 2);
}

TEST_F(SubsystemRdma, ADiskThatIsReachedOverRdmaAloneStaysWhereItIsWhenTheNextEngineIsOfBefore) {
  FakeEngine older(socket_, "engine-1");
  older.set_protocol(kProtocolRdmaDisks - 1);
  ASSERT_TRUE(engine_.Connect());
  AttachOne(At({"rdma://10.0.0.1"}));
  AwaitAttached();
  ASSERT_TRUE(older.Connect());
  const v1::UpgradeStatus status = UpgradeInVain("engine-0", "engine-1");
  ASSERT_EQ(status.failed_size(), 1) << status.ShortDebugString();
  EXPECT_THAT(status.failed(0).reason(), HasSubstr("all of whose addresses are over RDMA, which takes"));
  EXPECT_TRUE(engine_.Has("controllers/vm", 0));
  EXPECT_FALSE(older.Has("controllers/vm", 0));
  EXPECT_TRUE(WaitFor("controllers/vm/attachments/a").ok()) << "it is served as before";
}

}  // namespace
}  // namespace cleat::control::subsystem_rdma_test
