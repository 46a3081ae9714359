// SPDX-License-Identifier: Apache-2.0
// An association whose host and subsystem prove to each other who they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "nvme/host/association.h"
#include "tests/unit/nvme/auth/controller.h"
#include "tests/unit/nvme/host/association_scene.h"

namespace cleat::nvme::host::association_with_secrets_test {
namespace {

using fabrics::SubmissionEntry;

// A target that asks for it, and a host that has the secrets for both directions.
struct ChapScene {
  ChapScene() : scene(ConfigOf(*this)) {
    controller.host_nqn = fabrics::HostIdentityOfUuid(fabrics::kTestUuid).nqn;
    controller.subsystem_nqn = fabrics::kTestSubsystem;
    controller.host_secret = controller.own_secret.emplace(auth::RawSecret(32));
    scene.target.chap = &controller;
    scene.target.connect_result |= 1U << 17;
  }
  static AssociationConfig ConfigOf(ChapScene& self) {
    const auto secret = [] {
      return std::move(auth::ChapSecret::Parse(auth::kTestSecrets[0].text, "it")).value();
    };
    AssociationConfig config = Config();
    config.chap.secrets = std::make_shared<const auth::ChapSecrets>(
        auth::ChapSecrets{.host = secret(), .controller = secret()});
    config.chap.random = [](std::span<uint8_t> bytes) { std::ranges::fill(bytes, uint8_t{0x33}); };
    config.chap.compute = [&self](const auto& authentication) { self.computing = authentication; };
    return config;
  }
  void Compute() {
    computing->Compute();
    scene.association.Computed();
    scene.target.Serve();
  }

  auth::TestController controller;
  std::shared_ptr<auth::Authentication> computing;
  Scene scene;
};

TEST(AssociationWithSecrets, SendsNothingElseBeforeBothSidesHaveProvedThemselves) {
  ChapScene chap;
  Scene& scene = chap.scene;
  scene.Begin();
  scene.Pass(2 * kSecondNs);  // this host takes its time to compute
  ASSERT_NE(chap.computing, nullptr) << scene.lost();
  EXPECT_FALSE(scene.news.info || scene.news.lost);
  EXPECT_EQ(scene.target.Count(kFabrics), scene.target.seen.size());
  EXPECT_EQ(scene.target.seen.size(), 3U);
  chap.Compute();
  scene.Pass(kSecondNs);
  ASSERT_TRUE(scene.news.info) << scene.lost();
  EXPECT_TRUE(chap.controller.host_accepted && chap.controller.success2);
  EXPECT_EQ(scene.news.info->controller_id, 7);
}

TEST(AssociationWithSecrets, OfASubsystemThatDoesNotProveItselfDoesNotComeToBe) {
  ChapScene chap;
  chap.controller.own_secret.reset();
  chap.scene.Begin();
  chap.Compute();
  EXPECT_TRUE(chap.scene.LostFor("does not prove that it is the subsystem")) << chap.scene.lost();
  EXPECT_EQ(chap.scene.news.lost->code, ErrorCode::kPermissionDenied);
  EXPECT_FALSE(chap.scene.news.info);
}

TEST(AssociationWithSecrets, OfATargetThatClosesOnHearingWhyItIsRefusedEndsForThatReason) {
  ChapScene chap;
  (*chap.controller.own_secret)[0] ^= 1;
  int sends = 0;
  chap.scene.target.mute = [&sends](const SubmissionEntry& entry) { return entry.nsid == 5 && ++sends > 2; };
  chap.scene.Begin();
  chap.Compute();
  EXPECT_EQ(sends, 3);
  chap.scene.target.Abort({ErrorCode::kUnavailable, "connection lost"});
  EXPECT_TRUE(chap.scene.LostFor("does not have the secret of subsystem")) << chap.scene.lost();
  EXPECT_EQ(chap.scene.news.lost->code, ErrorCode::kPermissionDenied);
}

TEST(AssociationWithSecrets, OfATargetThatStopsInTheMidstOfAuthenticationEnds) {
  ChapScene chap;
  chap.scene.Begin();
  chap.scene.target.mute = [](const SubmissionEntry&) { return true; };
  chap.Compute();
  chap.scene.Pass(11 * kSecondNs);
  EXPECT_TRUE(chap.scene.LostFor("not gone on with the authentication in 10000 ms")) << chap.scene.lost();
}

TEST(AssociationWithSecrets, ThatEndsWhileItsAnswerIsComputedSendsNoneAnyMore) {
  ChapScene ended;
  ended.scene.Begin();
  ended.scene.association.End(true);
  EXPECT_TRUE(ended.scene.news.gone && !ended.scene.news.lost);
  ChapScene broken;
  broken.scene.Begin();
  broken.scene.association.Break({ErrorCode::kUnavailable, "cut"});
  EXPECT_TRUE(broken.scene.news.gone && broken.scene.news.lost);
  for (ChapScene* chap : {&ended, &broken}) {
    const size_t seen = chap->scene.target.seen.size();
    chap->Compute();
    EXPECT_EQ(chap->scene.target.seen.size(), seen);
  }
}

}  // namespace
}  // namespace cleat::nvme::host::association_with_secrets_test
