// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/queue_login.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "tests/unit/nvme/host/fake_target.h"

namespace cleat::nvme::host::queue_login_test {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kAuthenticate = uint64_t{1} << 17;  // AUTHREQ: ATR
constexpr uint64_t kSecureChannel = uint64_t{1} << 18;
constexpr uint16_t kController = 7;
constexpr auto& kSecret = auth::kTestSecrets[0];
constexpr auto& kOwnSecret = auth::kTestSecrets[3];

std::shared_ptr<const auth::ChapSecrets> SecretsOf(bool with_controllers) {
  std::optional<auth::ChapSecret> own;
  if (with_controllers) own = std::move(auth::ChapSecret::Parse(kOwnSecret.text, "it")).value();
  return std::make_shared<const auth::ChapSecrets>(auth::ChapSecrets{
      .host = std::move(auth::ChapSecret::Parse(kSecret.text, "it")).value(), .controller = std::move(own)});
}

// A login against the fake target, whose controller authenticates if it is asked to. The queue's owner, as far as it concerns a login.
class Scene final : public fabrics::QueuePairOwner {
 public:
  explicit Scene(std::shared_ptr<const auth::ChapSecrets> secrets, uint16_t queue_id = 2,
                 uint32_t kato_ms = 0)
      : login_(ConfigOf(std::move(secrets), queue_id, kato_ms)) {
    target.owner = this;
    controller.host_nqn = fabrics::HostIdentityOfUuid({1}).nqn;
    controller.subsystem_nqn = "nqn.2016-06.io.cleat:a";
    controller.host_secret = auth::RawSecret(kSecret.size_bytes);
    controller.own_secret = auth::RawSecret(kOwnSecret.size_bytes);
    controller.own_transformation = kOwnSecret.transformation;
    target.chap = &controller;
    target.connect_result = kController;
  }

  // As far as it comes by itself.
  void Begin() {
    login_.Begin(target, now_ns);
    target.Serve();
  }
  void Compute() {
    std::exchange(computing, nullptr)->Compute();
    login_.Computed(target, now_ns);
    target.Serve();
  }
  void Finish() {
    Begin();
    while (computing) Compute();
  }
  QueueLogin& login() { return login_; }
  std::string why() const { return error ? error->message : ""; }
  bool Fails(ErrorCode code, std::string_view part) const {
    return error && error->code == code && why().starts_with("q: ") && why().find(part) != std::string::npos;
  }
  std::string overdue() const {
    const auto late = login_.Overdue(now_ns);
    return late ? late->message : "";
  }

  // ---- QueuePairOwner
  void Connected() override {}
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes) override {
    ASSERT_TRUE(QueueLogin::IsOf(cookie));
    const auto taken = login_.Take(target, cookie, entry, data_bytes, now_ns);
    if (!taken) error = taken.error();
    EXPECT_EQ(taken.ok() && *taken, login_.ready());
  }
  void Unanswered(uint64_t /*cookie*/, fabrics::Reached /*reached*/) override {}
  void Ended(const Error& /*reason*/) override {}

  FakeTarget target;
  auth::TestController controller;
  uint64_t now_ns = 5;
  std::optional<Error> error;
  std::shared_ptr<auth::Authentication> computing;

 private:
  QueueLoginConfig ConfigOf(std::shared_ptr<const auth::ChapSecrets> secrets, uint16_t queue_id,
                            uint32_t kato_ms) {
    QueueLoginConfig config;
    config.who = "q";
    config.host = fabrics::HostIdentityOfUuid({1});
    config.subsystem_nqn = "nqn.2016-06.io.cleat:a";
    config.chap.secrets = std::move(secrets);
    config.chap.random = [this](std::span<uint8_t> bytes) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_.Next());
    };
    config.chap.compute = [this](const auto& authentication) { computing = authentication; };
    config.queue_id = queue_id;
    if (queue_id > 0) config.controller_id = kController;
    config.entries = 128;
    config.kato_ms = kato_ms;
    config.timeout_ns = kSecondNs;
    return config;
  }

  cleat::Random random_{3};
  QueueLogin login_;
};

TEST(QueueLogin, AQueueIsReadyWhenATargetThatAsksForNothingSaysSo) {
  Scene scene(nullptr);
  scene.login().Begin(scene.target, scene.now_ns);
  EXPECT_EQ(scene.target.seen[0].cdw10, 2U << 16);
  EXPECT_FALSE(scene.login().Overdue(kSecondNs).has_value());
  EXPECT_TRUE(scene.login().Overdue(kSecondNs + 5).has_value());
  scene.target.Serve();
  EXPECT_TRUE(scene.login().ready()) << scene.why();
  EXPECT_FALSE(scene.login().proved());
  EXPECT_FALSE(scene.login().Overdue(10 * kSecondNs).has_value());
  EXPECT_EQ(scene.target.seen.size(), 1U);
}

TEST(QueueLogin, AQueueOfAnotherControllerIsNotUsed) {
  Scene scene(nullptr);
  scene.target.connect_result = kController + 1;
  scene.Begin();
  EXPECT_TRUE(scene.Fails(ErrorCode::kDataLoss, "of controller 8, its association of 7")) << scene.why();
}

TEST(QueueLogin, AnAdminQueueTakesTheControllerThatItIsGiven) {
  Scene scene(nullptr, 0);
  scene.target.connect_result = 99;
  scene.Begin();
  EXPECT_TRUE(scene.login().ready());
  EXPECT_EQ(scene.login().controller_id(), 99);
}

TEST(QueueLogin, ATargetThatAsksForAuthenticationGetsIt) {
  for (const uint16_t queue : {0, 2}) {
    for (const uint8_t group : {0, 1}) {
      Scene scene(SecretsOf(false), queue);
      scene.controller.group = group;
      scene.target.connect_result |= kAuthenticate;
      scene.Begin();
      EXPECT_FALSE(scene.login().ready()) << "the arithmetic is missing";
      ASSERT_NE(scene.computing, nullptr) << scene.why();
      scene.Compute();
      EXPECT_TRUE(scene.login().ready()) << scene.why();
      EXPECT_TRUE(scene.controller.host_accepted);
      EXPECT_FALSE(scene.login().proved());
      EXPECT_EQ(scene.login().controller_id(), kController);
    }
  }
}

TEST(QueueLogin, ASubsystemWhoseSecretIsConfiguredHasToProveItWhetherItAsksOrNot) {
  for (const uint64_t asks : {uint64_t{0}, kAuthenticate}) {
    Scene scene(SecretsOf(true));
    scene.target.connect_result |= asks;
    scene.Finish();
    EXPECT_TRUE(scene.login().ready()) << scene.why();
    EXPECT_TRUE(scene.login().proved());
    EXPECT_TRUE(scene.controller.success2);
  }
}

TEST(QueueLogin, AHostsSecretAloneIsNotForcedOnATargetThatDoesNotAsk) {
  Scene scene(SecretsOf(false));
  scene.Begin();
  EXPECT_TRUE(scene.login().ready()) << scene.why();
  EXPECT_EQ(scene.target.seen.size(), 1U);
}

TEST(QueueLogin, ATargetThatKnowsNoAuthenticationIsNotUsedWhereItHasToProveItself) {
  Scene scene(SecretsOf(true));
  scene.target.chap = nullptr;
  scene.Begin();
  EXPECT_TRUE(scene.Fails(ErrorCode::kPermissionDenied, "it has not asked for authentication"))
      << scene.why();
}

TEST(QueueLogin, ATargetThatAsksWithoutASecretHereIsNotUsedAndTheRemedyIsNamed) {
  Scene scene(nullptr);
  scene.target.connect_result |= kAuthenticate;
  scene.Begin();
  EXPECT_TRUE(scene.Fails(ErrorCode::kPermissionDenied, "no secret is configured")) << scene.why();
  EXPECT_NE(scene.why().find("--dhchap-secret-file"), std::string::npos);
  EXPECT_EQ(scene.target.seen.size(), 1U);
}

TEST(QueueLogin, ASecureChannelThatTheTargetWantsIsNotPromised) {
  Scene scene(SecretsOf(true));
  scene.target.connect_result |= kSecureChannel;
  scene.Begin();
  EXPECT_TRUE(scene.Fails(ErrorCode::kUnimplemented, "secure channel")) << scene.why();
  EXPECT_EQ(scene.target.seen.size(), 1U);
}

TEST(QueueLogin, AWrongSecretOnEitherSideIsARefusal) {
  Scene hosts(SecretsOf(false));
  hosts.target.connect_result |= kAuthenticate;
  hosts.controller.host_secret[0] ^= 1;
  hosts.Finish();
  EXPECT_TRUE(hosts.Fails(ErrorCode::kPermissionDenied, "does not accept the host's secret")) << hosts.why();
  Scene own(SecretsOf(true));
  own.target.connect_result |= kAuthenticate;
  (*own.controller.own_secret)[0] ^= 1;
  own.Finish();
  EXPECT_TRUE(own.Fails(ErrorCode::kPermissionDenied, "does not have the secret of subsystem")) << own.why();
  EXPECT_EQ(own.controller.failure2, 1);
}

// Linux closes the connection before it answers AUTH_Failure2.
TEST(QueueLogin, ATargetThatIsGoneBeforeItHearsWhyItIsRefusedIsRefusedForThat) {
  const Error closed(ErrorCode::kUnavailable, "q: the connection was closed");
  for (const uint64_t asks : {uint64_t{0}, kAuthenticate}) {
    Scene scene(SecretsOf(true));
    scene.target.connect_result |= asks;
    (*scene.controller.own_secret)[0] ^= 1;
    int sends = 0;  // of Authentication Send: negotiation, reply, failure
    scene.target.mute = [&sends](const auto& entry) { return entry.nsid == 5 && ++sends > 2; };
    scene.Begin();
    while (scene.computing) scene.Compute();
    ASSERT_FALSE(scene.error) << "the target has answered: " << scene.why();
    for (const Error& why :
         {scene.login().WhyEnded(closed), scene.login().Overdue(UINT64_MAX).value_or(closed)}) {
      EXPECT_EQ(why.code, ErrorCode::kPermissionDenied) << why.message;
      EXPECT_NE(why.message.find("does not have the secret of subsystem"), std::string::npos) << why.message;
      EXPECT_EQ(why.message.find("it has not asked for authentication") != std::string::npos, asks == 0);
    }
    const Error cancelled(ErrorCode::kCancelled, "closed here");
    EXPECT_EQ(scene.login().WhyEnded(cancelled).code, ErrorCode::kCancelled);
  }
}

TEST(QueueLogin, TheTargetHasOneTimeForAllItsAnswers) {
  Scene scene(SecretsOf(true));
  scene.target.connect_result |= kAuthenticate;
  // Each answer comes just in time for itself.
  scene.target.instead = [&scene](const fabrics::SubmissionEntry& /*entry*/) -> std::optional<FakeAnswer> {
    scene.now_ns += kSecondNs / 4;
    return std::nullopt;
  };
  scene.Begin();
  ASSERT_NE(scene.computing, nullptr);
  EXPECT_EQ(scene.overdue(), "") << "three answers in three quarters of a second";
  scene.target.mute = [](const fabrics::SubmissionEntry& entry) { return entry.nsid == 6; };
  scene.Compute();
  EXPECT_NE(scene.overdue().find("not gone on with the authentication"), std::string::npos);
}

TEST(QueueLogin, WhileThisHostComputesTheTargetLosesNoTime) {
  Scene scene(SecretsOf(false));
  scene.target.connect_result |= kAuthenticate;
  scene.Begin();
  scene.now_ns += QueueLogin::kComputeTimeoutMaxNs - 1;
  EXPECT_EQ(scene.overdue(), "");
  scene.target.mute = [](const fabrics::SubmissionEntry& /*entry*/) { return true; };
  scene.Compute();
  scene.now_ns += kSecondNs - 1;
  EXPECT_EQ(scene.overdue(), "");
  scene.now_ns += 1;
  EXPECT_NE(scene.overdue().find("not gone on with the authentication"), std::string::npos);
}

TEST(QueueLogin, AHostThatDoesNotComeToComputeGivesUp) {
  Scene scene(SecretsOf(false));
  scene.target.connect_result |= kAuthenticate;
  scene.Begin();
  scene.now_ns += QueueLogin::kComputeTimeoutMaxNs;
  EXPECT_NE(scene.overdue().find("this host has not come to compute"), std::string::npos) << scene.overdue();
}

TEST(QueueLogin, AHostComesToComputeWithinHalfOfWhatItsTargetWaitsOrGivesUp) {
  for (const uint16_t queue_id : {uint16_t{0}, uint16_t{2}}) {
    for (const auto& [kato_ms, most_ns] :
         {std::pair(uint32_t{1000}, kSecondNs / 2), {600'000, QueueLogin::kComputeTimeoutMaxNs}}) {
      Scene scene(SecretsOf(false), queue_id, kato_ms);
      uint32_t told_ms = 0;
      scene.target.mute = [&told_ms](const fabrics::SubmissionEntry& entry) {
        if (entry.nsid == 1) told_ms = entry.cdw12;  // Connect
        return false;
      };
      scene.target.connect_result |= kAuthenticate;
      scene.Begin();
      EXPECT_EQ(told_ms, queue_id == 0 ? kato_ms : 0);
      scene.now_ns += most_ns - 1;
      EXPECT_EQ(scene.overdue(), "");
      scene.now_ns += 1;
      EXPECT_NE(scene.overdue().find(std::to_string(most_ns / 1'000'000) + " ms"), std::string::npos)
          << scene.overdue();
    }
  }
}

TEST(QueueLogin, ATargetThatIsSilentAboutItsFailureIsLeftForThatFailure) {
  Scene scene(SecretsOf(true));
  scene.target.connect_result |= kAuthenticate;
  (*scene.controller.own_secret)[0] ^= 1;
  scene.Begin();
  int sends = 0;
  scene.target.mute = [&sends](const fabrics::SubmissionEntry& entry) {
    return entry.nsid == 5 && ++sends > 1;
  };
  scene.Compute();
  EXPECT_EQ(scene.why(), "");
  scene.now_ns += kSecondNs;
  EXPECT_NE(scene.overdue().find("does not have the secret of subsystem"), std::string::npos)
      << scene.overdue();
}

TEST(QueueLogin, AnAnswerThatComesWithTheQueuesEndIsNotGoneOnWith) {
  for (const bool authenticates : {false, true}) {
    Scene scene(SecretsOf(false));
    if (authenticates) scene.target.connect_result |= kAuthenticate;
    scene.target.instead = [&scene](const fabrics::SubmissionEntry& /*entry*/) -> std::optional<FakeAnswer> {
      scene.target.full = true;
      return std::nullopt;
    };
    scene.Begin();
    EXPECT_FALSE(scene.login().ready());
    EXPECT_TRUE(scene.Fails(ErrorCode::kUnavailable, "ended in the midst of its login")) << scene.why();
    EXPECT_EQ(scene.target.seen.size(), 1U);
  }
}

TEST(QueueLogin, TheArithmeticMayOutliveTheLogin) {
  std::shared_ptr<auth::Authentication> computing;
  {
    Scene scene(SecretsOf(true));
    scene.controller.group = 1;
    scene.Begin();
    computing = std::exchange(scene.computing, nullptr);
  }
  computing->Compute();
}

}  // namespace
}  // namespace cleat::nvme::host::queue_login_test
