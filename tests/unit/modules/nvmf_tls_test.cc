// SPDX-License-Identifier: Apache-2.0
// A disk whose subsystem has a pre-shared key: its admin and I/O queues all go through TLS (tls_front.h stands before the target). Costs
// about two seconds, most of it pauses between tries to connect.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/unit/modules/nvmf_rig.h"
#include "tests/unit/modules/tls_front.h"

namespace cleat::modules::nvmf_tls_test {
namespace {

using test::NvmfRig;
using test::NvmfTarget;
using test::RandomLoad;
using test::TlsFront;

constexpr uint32_t kBlock = NvmfTarget::kBlockBytes;

// A rig whose target is reached through the front alone.
struct TlsRig {
  explicit TlsRig(const char* front_key = test::kTlsKeys[0],
                  nvme::tls::IdentityVersion identity = nvme::tls::IdentityVersion::kV0)
      : front({.psk = front_key,
               .host_nqn = rig.subsystem.host.nqn,
               .subsystem_nqn = NvmfTarget::kSubsystem,
               .identity = identity},
              rig.target.port()) {
    rig.subsystem.psk = std::make_shared<const nvme::tls::Psk>(
        nvme::tls::Psk::Parse(test::kTlsKeys[0], "the pre-shared key").value());
    rig.subsystem.addresses = {
        {nvme::fabrics::ParseTransportAddress("127.0.0.1:" + std::to_string(front.port())).value()}};
  }

  NvmfRig rig;
  TlsFront front;
};

TEST(NvmfTls, ADiskAgreesWithTheReference) {
  TlsRig tls;
  tls.rig.subsystem.header_digest = tls.rig.subsystem.data_digest = true;
  tls.rig.Open();
  auto disk = tls.rig.Channel();
  RandomLoad load(*disk, 12, 64 * kBlock, 3 << 20);
  load.Run(200);
  EXPECT_EQ(tls.rig.target.Read(64 * kBlock, load.reference().size()), load.reference());
  EXPECT_EQ(tls.front.counts.established, 2U) << "an admin queue and an I/O queue";
  disk.reset();
  tls.rig.Close();
}

TEST(NvmfTls, ADiskOfATargetWithIdentitiesOfVersion1IsOpened) {
  TlsRig tls(test::kTlsKeys[0], nvme::tls::IdentityVersion::kV1);
  tls.rig.Open();
  auto disk = tls.rig.Channel();
  RandomLoad load(*disk, 13, 0, 1 << 20);
  load.Run(20);
  EXPECT_EQ(tls.front.counts.refused, 1U);
  disk.reset();
  tls.rig.Close();
}

TEST(NvmfTls, ADiskWithAnotherKeyIsRefused) {
  TlsRig tls(test::kOtherTlsKey);
  const auto opened = tls.rig.TryOpen(tls.rig.Options());
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code, ErrorCode::kPermissionDenied) << opened.error().message;
  EXPECT_NE(opened.error().message.find("pre-shared key"), std::string::npos) << opened.error().message;
  EXPECT_EQ(tls.rig.target.counts.ic_requests, 0U);
}

// Nothing is served without it, and nothing of the host's is wrong: the path is tried again with its pauses, by the identity that the
// target knows.
TEST(NvmfTls, ADiskIsBackOnceItsTargetHasEndedHandshakesForAWhile) {
  TlsRig tls;
  tls.rig.Open();
  auto disk = tls.rig.Channel();
  RandomLoad load(*disk, 15, 0, 1 << 20);
  load.Run(20);
  tls.front.faults.alert = 80;  // internal_error
  tls.rig.target.CutAll();
  tls.rig.UntilBroken();
  tls.rig.Until([&] { return tls.front.counts.alerts > 0; });
  tls.front.faults.alert = 0;
  tls.rig.UntilConnected();
  load.Run(20);
  EXPECT_EQ(tls.front.counts.refused, 0U) << "by an identity that it does not know";
  disk.reset();
  tls.rig.Close();
}

TEST(NvmfTls, ADiskGoesOnAfterItsConnectionsHaveBroken) {
  TlsRig tls;
  tls.rig.Open();
  auto disk = tls.rig.Channel();
  RandomLoad load(*disk, 14, 0, 1 << 20);
  load.Run(20);
  tls.rig.target.CutAll();
  tls.rig.UntilBroken();
  tls.rig.UntilConnected();
  load.Run(20);
  EXPECT_EQ(tls.rig.target.Read(0, load.reference().size()), load.reference());
  disk.reset();
  tls.rig.Close();
}

}  // namespace
}  // namespace cleat::modules::nvmf_tls_test
