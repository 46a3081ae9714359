// SPDX-License-Identifier: Apache-2.0
// What the engine says of a discovery service, against a target that is one: the texts that cleatd is given, and that nobody waits in vain.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/discovery/discover.h"
#include "engine/protocol/codec.h"
#include "engine/protocol/codec_structs.h"
#include "keys/keyring.h"
#include "nvme/fabrics/names.h"
#include "tests/unit/modules/nvmf_rig.h"
#include "tests/unit/modules/tls_front.h"
#include "tests/unit/vhost/host.h"

namespace cleat::engine::discovery_test {
namespace {

using test::NvmfRig;
using test::NvmfTarget;

// A message of cleatd's, as it comes.
std::vector<uint8_t> Write(const PbEnvelope& envelope) {
  std::vector<uint8_t> bytes(cleat__engine__v1__envelope__get_packed_size(&envelope));
  cleat__engine__v1__envelope__pack(&envelope, bytes.data());
  return bytes;
}

class EngineDiscovery : public testing::Test {
 protected:
  DiscoverySpec Spec() {
    return {.address = nvme::fabrics::TextOfAddress(rig_.subsystem.addresses[0].target),
            .host_nqn = rig_.subsystem.host.nqn,
            .host_id = nvme::fabrics::TextOfUuid(rig_.subsystem.host.id),
            .timeout_ms = 10'000,
            .secrets = {}};
  }
  explicit EngineDiscovery(const NvmfTarget::Options& options = {}) : rig_(options) {}
  Result<DiscoveryReport> Ask(DiscoverySpec spec, DiscoverySeen seen = {}) {
    return rig_.Await(Discover(std::move(spec), std::move(seen),
                               {keyring_, rig_.threads, rig_.arithmetic, rig_.rdma}, cancel_));
  }

  NvmfRig rig_;
  keys::Keyring keyring_;
  CancelToken cancel_;
};

TEST_F(EngineDiscovery, TellsWhatTheServiceHasInTexts) {
  rig_.target.faults.log_records = 5;
  const auto report = Ask(Spec());
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report->records.size(), 2U);
  const DiscoveryRecord& record = report->records[0];
  EXPECT_EQ(record.subtype, DiscoverySubtype::kNvm);
  EXPECT_EQ(record.nqn, NvmfTarget::kSubsystem);
  EXPECT_EQ(record.transport, "tcp");
  EXPECT_EQ(record.address + ":" + record.port, Spec().address);
  EXPECT_EQ(report->records[1].subtype, DiscoverySubtype::kReferral);
  EXPECT_EQ(report->skipped, 3U);
  EXPECT_NE(report->why_skipped.find("record 2 has"), std::string::npos) << report->why_skipped;
}

TEST_F(EngineDiscovery, ARecordSaysItsTransportBesideItsAddress) {
  rig_.target.faults.log_transport = static_cast<uint8_t>(nvme::fabrics::TransportType::kRdma);
  const auto report = Ask(Spec());
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->records[0].transport, "rdma");
  EXPECT_EQ(report->records[0].address + ":" + report->records[0].port, Spec().address);
}

TEST_F(EngineDiscovery, AnErrorNamesTheServiceAndHasItsOwnCode) {
  rig_.target.faults.refuse_host = true;
  const auto refused = Ask(Spec());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied);
  EXPECT_NE(refused.error().message.find("the discovery service at " + Spec().address), std::string::npos)
      << refused.error().message;
}

TEST_F(EngineDiscovery, WhatCannotBeAskedIsRefused) {
  DiscoverySpec spec = Spec();
  spec.address = "nowhere";
  EXPECT_EQ(Ask(spec).error().code, ErrorCode::kInvalidArgument);
  spec = Spec();
  spec.host_id = "nobody";
  EXPECT_EQ(Ask(spec).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(EngineDiscovery, OverRdmaNeitherNobodysAddressIsAskedNorOneWithAPreSharedKey) {
  DiscoverySpec spec = Spec();
  for (const char* const address : {"rdma://0.0.0.0:8009", "rdma://[::]"}) {
    spec.address = address;
    const auto refused = Ask(spec);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find(":8009: that is nobody's address"), std::string::npos)
        << refused.error().message;
  }
  spec.address = "rdma://127.0.0.1";
  spec.secrets.tls_psk = {"0123456789abcdef", {1, 2, 3}};
  const auto refused = Ask(spec);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("rdma://127.0.0.1:8009: there is a pre-shared key, and no TLS"),
            std::string::npos)
      << refused.error().message;
  EXPECT_EQ(rig_.target.counts.accepted, 0U);
}

TEST_F(EngineDiscovery, AnEngineThatEndsWaitsForNoService) {
  rig_.target.faults.mute_log = true;
  DiscoverySpec spec = Spec();
  spec.timeout_ms = kDiscoveryTimeoutMsMax;
  rig_.control->PostCall([&] {
    const auto end = [](CancelToken& cancel, NvmfRig& rig) -> Task<void> {
      while (rig.target.counts.discoveries == 0) co_await rig.control->SleepFor(kNsPerMs);
      cancel.Cancel();
    };
    Spawn(end(cancel_, rig_));
  });
  const auto ended = Ask(spec);
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled) << ended.error().message;
}

TEST_F(EngineDiscovery, AServiceThatIsWatchedIsToldAtEachChange) {
  DiscoverySpec spec = Spec();
  spec.watch = true;
  std::vector<size_t> told;
  const auto ended = Ask(spec, [&](const DiscoveryReport& report) {
    told.push_back(report.records.size());
    if (told.size() == 1) rig_.target.ChangeLog(1);
    if (told.size() == 2) cancel_.Cancel();
  });
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, ErrorCode::kCancelled) << ended.error().message;
  EXPECT_EQ(told, (std::vector<size_t>{2, 1}));
}

// ---- Secrets

class EngineDiscoveryWithSecrets : public EngineDiscovery {
 protected:
  EngineDiscoveryWithSecrets() : EngineDiscovery(WithChap()) {
    rig_.target.faults.asks_on_admin = true;
    const std::string kek = folder_.path() + "/kek";
    std::ofstream(kek) << std::string(64, '1') << "\n";
    std::filesystem::permissions(kek, std::filesystem::perms::owner_read);
    CLEAT_CHECK(keyring_.SetFiles({kek}).ok());
  }
  static NvmfTarget::Options WithChap() {
    NvmfTarget::Options options;
    options.chap = true;
    return options;
  }
  WrappedSecret Wrapped(const char* text) {
    std::string copy = text;
    const auto wrapped = keyring_.Wrap(keys::Secret::TakeFrom(copy), keys::Wrapping::kPadded).value();
    return {wrapped.kek_id, {wrapped.bytes.begin(), wrapped.bytes.end()}};
  }

  vhost::test::TemporaryDirectory folder_;
};

TEST_F(EngineDiscoveryWithSecrets, HostAndServiceProveThemselves) {
  DiscoverySpec spec = Spec();
  EXPECT_EQ(Ask(spec).error().code, ErrorCode::kPermissionDenied) << "without";
  spec.secrets.dhchap_secret = Wrapped(NvmfTarget::kHostSecret);
  spec.secrets.dhchap_ctrl_secret = Wrapped(NvmfTarget::kOwnSecret);
  const auto report = Ask(spec);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(rig_.target.counts.proofs, 1U);
}

TEST_F(EngineDiscoveryWithSecrets, AServiceIsAskedOverTlsWithThePreSharedKey) {
  const test::TlsFront front({.psk = test::kTlsKeys[0],
                              .host_nqn = rig_.subsystem.host.nqn,
                              .subsystem_nqn = NvmfTarget::kDiscovery},
                             rig_.target.port());
  DiscoverySpec spec = Spec();
  spec.address = "127.0.0.1:" + std::to_string(front.port());
  spec.secrets.dhchap_secret = Wrapped(NvmfTarget::kHostSecret);
  spec.secrets.tls_psk = Wrapped(test::kTlsKeys[0]);
  const auto report = Ask(spec);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(front.counts.established, 1U);
}

TEST_F(EngineDiscoveryWithSecrets, WithoutTheirKeyNothingIsAsked) {
  DiscoverySpec spec = Spec();
  spec.secrets.dhchap_secret = Wrapped(NvmfTarget::kHostSecret);
  spec.secrets.dhchap_secret.key_encryption_key.front() ^= 1;
  const auto refused = Ask(spec);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("dhchap_secret"), std::string::npos) << refused.error().message;
  EXPECT_EQ(rig_.target.counts.accepted, 0U);
}

// ---- As cleatd asks

TEST(EngineDiscoveryMessage, WithoutAHostOrAnEndItIsRefusedByName) {
  std::string text = "10.0.0.1:8009";
  Cleat__Engine__V1__Discover discover = CLEAT__ENGINE__V1__DISCOVER__INIT;
  PbEnvelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_DISCOVER;
  envelope.discover = &discover;
  const auto refused = [&](const char* field) {
    const auto incoming = Decode(Write(envelope));
    ASSERT_FALSE(incoming.ok()) << field;
    EXPECT_NE(incoming.error().message.find(field), std::string::npos) << incoming.error().message;
  };
  refused("discover.address");
  discover.address = text.data();
  refused("discover.host_nqn");
  discover.host_nqn = text.data();
  refused("discover.host_id");
  discover.host_id = text.data();
  refused("discover.timeout_ms");
  discover.has_timeout_ms = 1;
  discover.timeout_ms = kDiscoveryTimeoutMsMax + 1;
  refused("discover.timeout_ms");
  discover.timeout_ms = kDiscoveryTimeoutMsMax;
  EXPECT_TRUE(Decode(Write(envelope)).ok());
}

TEST(EngineDiscoveryMessage, HasItsSecretsAndWhetherItWatches) {
  std::string text = "10.0.0.1:8009";
  std::string kek(keys::kKekIdDigits, 'a');
  std::vector<uint8_t> data(keys::kPaddedWrappedBytesMin, 7);
  Cleat__Engine__V1__WrappedSecret secret = CLEAT__ENGINE__V1__WRAPPED_SECRET__INIT;
  secret.key_encryption_key = kek.data();
  secret.has_data = 1;
  secret.data = {.len = data.size(), .data = data.data()};
  Cleat__Engine__V1__Discover discover = CLEAT__ENGINE__V1__DISCOVER__INIT;
  discover.address = discover.host_nqn = discover.host_id = text.data();
  CLEAT_PB_SET(discover, timeout_ms, 1000);
  CLEAT_PB_SET(discover, watch, 1);
  discover.dhchap_ctrl_secret = &secret;
  PbEnvelope envelope = CLEAT__ENGINE__V1__ENVELOPE__INIT;
  envelope.body_case = CLEAT__ENGINE__V1__ENVELOPE__BODY_DISCOVER;
  envelope.discover = &discover;
  EXPECT_NE(Decode(Write(envelope)).error().message.find("without dhchap_secret"), std::string::npos);
  discover.dhchap_secret = &secret;
  discover.tls_psk = &secret;
  const auto incoming = Decode(Write(envelope));
  ASSERT_TRUE(incoming.ok()) << incoming.error().message;
  const DiscoverySpec& spec = std::get<DiscoverMessage>(incoming->body).discovery;
  EXPECT_TRUE(spec.watch && spec.secrets.tls_psk.there() && spec.secrets.dhchap_ctrl_secret.there());
  EXPECT_EQ(spec.secrets.dhchap_secret.data, data);
  data.pop_back();
  secret.data.len = data.size();
  EXPECT_NE(Decode(Write(envelope)).error().message.find("discover.dhchap_secret"), std::string::npos);
}

}  // namespace
}  // namespace cleat::engine::discovery_test
