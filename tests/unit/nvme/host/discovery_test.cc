// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/discovery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/unit/nvme/auth/controller.h"
#include "tests/unit/nvme/host/discovery_scene.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::discovery_test {
namespace {

using discovery_scene::kFabrics;
using discovery_scene::kGetLogPage;
using discovery_scene::kSecondNs;
using discovery_scene::LogOf;
using discovery_scene::Scene;
using fabrics::SubmissionEntry;

TEST(Discovery, TheLogIsReadAndTheControllerToldThatTheHostLeaves) {
  Scene scene;
  scene.Run();
  ASSERT_TRUE(scene.result && *scene.result) << scene.text();
  EXPECT_EQ((*scene.result)->records.size(), 2U);
  const SubmissionEntry& connect = scene.target.seen.front();
  EXPECT_EQ(connect.nsid, 1U);
  EXPECT_EQ(connect.cdw12, 0U) << "no keep alive";
  const SubmissionEntry& last = scene.target.seen.back();
  EXPECT_EQ(last.opcode, kFabrics);
  EXPECT_EQ(last.cdw12 & 0xc000, 0x4000U) << "a normal shutdown";
  EXPECT_EQ(scene.target.Count(0x06), 0U) << "nothing beside is asked";
  EXPECT_EQ(scene.target.event_requests.size(), 0U);
}

TEST(Discovery, ALogOfAsManyRecordsAsAreReadComesInPieces) {
  Scene scene;
  scene.log = LogOf(1, fabrics::kDiscoveryRecordsMax);
  scene.Run();
  ASSERT_TRUE(scene.result && *scene.result) << scene.text();
  EXPECT_EQ((*scene.result)->records.size(), fabrics::kDiscoveryRecordsMax);
}

TEST(Discovery, OneRecordMoreIsRefused) {
  Scene scene;
  scene.log = LogOf(1, fabrics::kDiscoveryRecordsMax + 1);
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kResourceExhausted, "1025 records")) << scene.text();
}

TEST(Discovery, ALogThatNeverStandsStillIsGivenUp) {
  Scene scene;
  uint64_t generation = 0;
  scene.before_piece = [&] { scene.log = LogOf(++generation, 9); };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kAborted, "in each of 5 tries")) << scene.text();
}

TEST(Discovery, AShortPieceIsNoLog) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != kGetLogPage) return std::nullopt;
    return FakeAnswer{.data = std::vector<uint8_t>(512)};
  };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kDataLoss, "512 bytes")) << scene.text();
}

TEST(Discovery, WhoseHostIsNotLetInReadsNothing) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.nsid != 1) return std::nullopt;
    return FakeAnswer{.type = 1, .code = 0x84, .data = {}};
  };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kPermissionDenied, "does not let host")) << scene.text();
  EXPECT_EQ(scene.target.seen.size(), 1U);
}

TEST(Discovery, ASubsystemThatHasNoSuchLogSaysSo) {
  Scene scene;
  scene.target.instead = [](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
    if (entry.opcode != kGetLogPage) return std::nullopt;
    return FakeAnswer{.type = 1, .code = 0x09, .do_not_retry = true, .data = {}};
  };
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kFailedPrecondition, "Get Log Page (Discovery)")) << scene.text();
}

TEST(Discovery, AControllerThatIsNotReadyYetIsAskedAgain) {
  Scene scene;
  scene.target.csts = 0;
  scene.Run();
  EXPECT_FALSE(scene.result);
  scene.target.csts = 1;
  scene.Pass(Discovery::kTickNs);
  EXPECT_TRUE(scene.result && *scene.result) << scene.text();
}

TEST(Discovery, AControllerThatNeverGetsReadyIsGivenUp) {
  Scene scene;
  scene.target.csts = 0;
  scene.Run();
  for (int tick = 0; tick < 9; ++tick) scene.Pass(Discovery::kTickNs);
  EXPECT_FALSE(scene.result);
  scene.Pass(Discovery::kTickNs);
  EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "CSTS")) << scene.text();
}

TEST(Discovery, AFatalStatusEndsIt) {
  Scene scene;
  scene.target.csts = 2;
  scene.Run();
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnavailable, "CSTS.CFS")) << scene.text();
}

TEST(Discovery, ATargetThatFallsSilentIsGivenUpWhereverItStands) {
  for (const int answered : {0, 1, 2, 3, 4}) {
    Scene scene;
    int commands = 0;
    scene.target.mute = [&](const SubmissionEntry&) { return commands++ >= answered; };
    scene.Run();
    EXPECT_FALSE(scene.result);
    scene.Pass(kSecondNs - 1);
    EXPECT_FALSE(scene.result);
    scene.Pass(1);
    EXPECT_TRUE(scene.Fails(ErrorCode::kDeadlineExceeded, "1000 ms")) << answered << ": " << scene.text();
  }
}

TEST(Discovery, ATargetThatDoesNotAnswerTheLeaveTakingHasGivenItsLog) {
  Scene scene;
  scene.target.mute = [](const SubmissionEntry& entry) {
    return entry.opcode == kFabrics && (entry.cdw12 & 0xc000) != 0;
  };
  scene.Run();
  EXPECT_FALSE(scene.result);
  scene.Pass(Discovery::kShutdownTimeoutNs);
  EXPECT_TRUE(scene.result && *scene.result) << scene.text();
}

TEST(Discovery, AConnectionThatBreaksIsTheReason) {
  Scene scene;
  scene.target.mute = [](const SubmissionEntry& entry) { return entry.opcode == kGetLogPage; };
  scene.Run();
  scene.target.Abort({ErrorCode::kUnavailable, "the service: closed"});
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnavailable, "closed")) << scene.text();
}

TEST(Discovery, AnyAnswersEndInALogOrAReason) {
  cleat::Random random(11);
  uint64_t logs = 0;
  for (int run = 0; run < 3000; ++run) {
    Scene scene;
    const auto usual = scene.target.instead;
    scene.target.instead = [&](const SubmissionEntry& entry) -> std::optional<FakeAnswer> {
      auto answer = usual(entry);
      if (!random.Chance(1, 8)) return answer;
      if (!answer) answer = FakeAnswer{.result = random.Next(), .data = {}};
      if (random.Chance(1, 3)) answer->code = static_cast<uint8_t>(random.Next());
      if (random.Chance(1, 3)) answer->data.resize(random.Below(answer->data.size() + 1));
      for (uint64_t i = random.Below(3); i > 0 && !answer->data.empty(); --i)
        answer->data[random.Below(answer->data.size())] ^= static_cast<uint8_t>(random.Next());
      return answer;
    };
    scene.Run();
    for (int tick = 0; tick < 25 && !scene.result; ++tick) scene.Pass(Discovery::kTickNs);
    ASSERT_TRUE(scene.result) << "run " << run;
    logs += *scene.result ? 1 : 0;
  }
  EXPECT_GT(logs, 500U);
  EXPECT_LT(logs, 3000U);
}

// ---- With secrets

TEST(Discovery, HostAndServiceProveThemselvesBeforeTheLogIsRead) {
  for (const bool is_impostor : {false, true}) {
    DiscoveryConfig config = Scene::ConfigOf();
    auth::TestController controller;
    controller.host_nqn = config.host.nqn;
    controller.subsystem_nqn = std::string(fabrics::kDiscoveryNqn);
    controller.host_secret = auth::RawSecret(32);
    if (!is_impostor) controller.own_secret = auth::RawSecret(32);
    const auto secret = [] {
      return std::move(auth::ChapSecret::Parse(auth::kTestSecrets[0].text, "it")).value();
    };
    std::shared_ptr<auth::Authentication> computing;
    config.chap.secrets = std::make_shared<const auth::ChapSecrets>(
        auth::ChapSecrets{.host = secret(), .controller = secret()});
    config.chap.random = [](std::span<uint8_t> bytes) { std::ranges::fill(bytes, uint8_t{0x33}); };
    config.chap.compute = [&](const auto& authentication) { computing = authentication; };
    Scene scene(config);
    scene.target.chap = &controller;
    scene.target.connect_result |= 1U << 17;
    scene.Run();
    ASSERT_NE(computing, nullptr) << scene.text();
    EXPECT_EQ(scene.target.Count(kGetLogPage), 0U);
    computing->Compute();
    scene.discovery.Computed();
    scene.target.Serve();
    ASSERT_TRUE(scene.result);
    EXPECT_EQ(scene.result->ok(), !is_impostor) << scene.text();
    EXPECT_EQ(scene.target.Count(kGetLogPage) != 0, !is_impostor);
    EXPECT_TRUE(!is_impostor || scene.Fails(ErrorCode::kPermissionDenied, "")) << scene.text();
  }
}

}  // namespace
}  // namespace cleat::nvme::host::discovery_test
