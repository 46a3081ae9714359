// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/authentication.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/nvme/auth/rig.h"

namespace cleat::nvme::auth {
namespace {

struct Choice {
  uint8_t hash;
  uint8_t group;
};
std::vector<Choice> AllChoices() {
  std::vector<Choice> choices;
  for (const uint8_t hash : {1, 2, 3}) {
    for (const uint8_t group : {0, 1}) choices.push_back({hash, group});
  }
  choices.push_back({1, 2});
  return choices;
}

TEST(Authentication, OfTheHostAloneSucceedsWithEachHashWithAndWithoutAGroup) {
  for (const auto [hash, group] : AllChoices()) {
    Rig rig({});
    rig.controller.hash = hash;
    rig.controller.group = group;
    ASSERT_TRUE(rig.Run()) << int{hash} << " " << int{group} << ": " << rig.message();
    EXPECT_TRUE(rig.controller.host_accepted);
    EXPECT_TRUE(rig.authentication.done());
    EXPECT_FALSE(rig.authentication.both_ways());
    // The last message is only for a controller that has proved itself.
    EXPECT_FALSE(rig.controller.success2);
    EXPECT_EQ(rig.controller.reply.at(8), 0);
  }
}

TEST(Authentication, InBothDirectionsSucceedsWithEachHashWithAndWithoutAGroup) {
  for (const auto [hash, group] : AllChoices()) {
    Rig rig({.controller_secret = kTestSecrets[3].text, .offer = {}});
    rig.controller.hash = hash;
    rig.controller.group = group;
    rig.controller.own_secret = RawSecret(64);
    rig.controller.own_transformation = 3;
    ASSERT_TRUE(rig.Run()) << int{hash} << " " << int{group} << ": " << rig.message();
    EXPECT_TRUE(rig.controller.host_accepted);
    EXPECT_TRUE(rig.controller.success2);
    EXPECT_TRUE(rig.authentication.both_ways());
    EXPECT_EQ(rig.controller.reply.at(8), 1);
    EXPECT_LE(rig.controller.commands, Rig::kCommandsMax);
  }
}

TEST(Authentication, SucceedsWithSecretsOfEachSizeAndTransformation) {
  for (const TestSecret& secret : kTestSecrets) {
    for (const TestSecret& own : kTestSecrets) {
      Rig rig({.host_secret = secret.text, .controller_secret = own.text, .offer = {}});
      rig.controller.hash = 2;  // need not be that of a transformation
      rig.controller.host_secret = RawSecret(secret.size_bytes);
      rig.controller.host_transformation = secret.transformation;
      rig.controller.own_secret = RawSecret(own.size_bytes);
      rig.controller.own_transformation = own.transformation;
      EXPECT_TRUE(rig.Run()) << secret.text << ", " << own.text << ": " << rig.message();
    }
  }
}

TEST(Authentication, SaysWhatWasChosen) {
  Rig rig({});
  rig.controller.hash = 2;
  rig.controller.group = 1;
  ASSERT_TRUE(rig.Run());
  EXPECT_EQ(rig.authentication.chosen(), "SHA-384, ffdhe2048");
}

TEST(Authentication, OffersWhatIsConfiguredAndNoSecureChannel) {
  Rig rig({.offer = {.hashes = {Hash::kSha384, Hash::kSha256}, .groups = {DhGroup::kFfdhe3072}}});
  rig.Run(1);
  Bytes wanted(72);
  wanted[7] = 1;   // one protocol
  wanted[8] = 1;   // DH-HMAC-CHAP
  wanted[10] = 2;  // hashes
  wanted[11] = 1;  // groups
  wanted[12] = 2;  // SHA-384
  wanted[13] = 1;  // SHA-256
  wanted[42] = 2;  // ffdhe3072
  Bytes seen = rig.controller.negotiate;
  ASSERT_EQ(seen.size(), wanted.size());
  seen[4] = seen[5] = 0;  // the transaction
  EXPECT_EQ(seen, wanted);
}

TEST(Authentication, NeverHasTheSequenceNumberThatAsksForASecureChannel) {
  Rig rig({});
  ASSERT_TRUE(rig.Run());
  const Bytes& reply = rig.controller.reply;
  EXPECT_NE(reply.at(12) | reply.at(13) | reply.at(14) | reply.at(15), 0);
}

TEST(Authentication, ChallengesTheControllerWithAnotherValueEachTime) {
  Rig first({.controller_secret = kTestSecrets[0].text, .offer = {}});
  first.Run();
  Rig second({.controller_secret = kTestSecrets[0].text, .offer = {}});
  second.random = cleat::Random(8);
  second.Run();
  const Bytes one(first.controller.reply.begin() + 48, first.controller.reply.end());
  const Bytes other(second.controller.reply.begin() + 48, second.controller.reply.end());
  EXPECT_EQ(one.size(), 32U);
  EXPECT_NE(one, other);
}

// ---- Secrets that do not fit

TEST(Authentication, WithAnotherSecretThanTheTargetsIsRefusedAndSaysWhatToCompare) {
  Rig rig({});
  rig.controller.host_secret[5] ^= 1;
  EXPECT_FALSE(rig.Run());
  ASSERT_TRUE(rig.error);
  EXPECT_EQ(rig.error->code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(
      rig.message().starts_with("subsystems/a, queue 1: the target does not accept the host's secret"))
      << rig.message();
  EXPECT_NE(rig.message().find("compare it with"), std::string::npos);
  EXPECT_FALSE(rig.controller.failure2);  // the target knows
}

TEST(Authentication, OfAnotherTransformationThanTheTargetsIsRefused) {
  Rig rig({.host_secret = kTestSecrets[1].text, .offer = {}});
  EXPECT_FALSE(rig.Run());
  EXPECT_NE(rig.message().find("does not accept the host's secret"), std::string::npos) << rig.message();
}

TEST(Authentication, RefusesATargetWithoutTheSubsystemsSecretAndTellsIt) {
  for (const uint8_t group : {0, 1}) {
    Rig rig({.controller_secret = kTestSecrets[1].text, .offer = {}});
    rig.controller.group = group;
    rig.controller.own_secret = RawSecret(32);
    rig.controller.own_secret->at(31) ^= 1;
    rig.controller.own_transformation = 1;
    EXPECT_FALSE(rig.Run());
    ASSERT_TRUE(rig.error);
    EXPECT_EQ(rig.error->code, ErrorCode::kPermissionDenied);
    EXPECT_NE(rig.message().find("does not have the secret of subsystem nqn.2016-06.io.cleat:auth"),
              std::string::npos)
        << rig.message();
    EXPECT_EQ(rig.controller.failure2, 1);
    EXPECT_FALSE(rig.controller.success2);
    EXPECT_FALSE(rig.authentication.done());
  }
}

TEST(Authentication, RefusesATargetThatLeavesItsProofOut) {
  Rig rig({.controller_secret = kTestSecrets[1].text, .offer = {}});
  EXPECT_FALSE(rig.Run());
  ASSERT_TRUE(rig.error);
  EXPECT_EQ(rig.error->code, ErrorCode::kPermissionDenied);
  EXPECT_NE(rig.message().find("does not prove that it is the subsystem"), std::string::npos)
      << rig.message();
  EXPECT_EQ(rig.controller.failure2, 1);
  EXPECT_FALSE(rig.authentication.done());
}

TEST(Authentication, RefusesATargetThatGivesTheHostsResponseBack) {
  // Both sides with one secret, and a target that has none: what it heard is no answer to what it is asked.
  Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
  rig.controller.tamper = [&rig](uint8_t id, Bytes& message) {
    if (id != 3) return;
    message.at(8) = 1;
    message.insert(message.end(), rig.controller.reply.begin() + 16, rig.controller.reply.begin() + 48);
  };
  EXPECT_FALSE(rig.Run());
  EXPECT_EQ(rig.controller.failure2, 1);
}

TEST(Authentication, DoesNotMindAProofThatNobodyAskedFor) {
  Rig rig({});
  rig.controller.tamper = [](uint8_t id, Bytes& message) {
    if (id != 3) return;
    message.at(8) = 1;
    message.resize(message.size() + 32);
  };
  EXPECT_TRUE(rig.Run()) << rig.message();
  EXPECT_FALSE(rig.authentication.both_ways());
}

// ---- Time

TEST(Authentication, IsOverdueFromItsTimeoutOnInEachStepThatWaitsForTheTarget) {
  for (uint64_t answers = 0; answers < 5; ++answers) {
    Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
    rig.controller.own_secret = RawSecret(32);
    EXPECT_FALSE(rig.authentication.Overdue(UINT64_MAX));  // nothing is sent
    EXPECT_FALSE(rig.Run(answers));
    ASSERT_FALSE(rig.error);
    EXPECT_FALSE(rig.authentication.Overdue(rig.now_ns + Rig::kTimeoutNs - 1)) << answers;
    const auto overdue = rig.authentication.Overdue(rig.now_ns + Rig::kTimeoutNs);
    ASSERT_TRUE(overdue) << answers;
    EXPECT_EQ(overdue->code, ErrorCode::kDeadlineExceeded);
    EXPECT_TRUE(rig.Run());
    EXPECT_FALSE(rig.authentication.Overdue(UINT64_MAX));
  }
}

TEST(Authentication, IsNotOverdueWhileTheHostComputes) {
  Rig rig({});
  rig.authentication.Start(rig.controller, rig.now_ns);
  for (int i = 0; i < 2; ++i) {
    const auto [entry, data_bytes] = rig.controller.Answer();
    ASSERT_TRUE(rig.authentication.Take(rig.controller, entry, data_bytes, rig.now_ns).ok());
  }
  EXPECT_FALSE(rig.authentication.Overdue(UINT64_MAX));
  EXPECT_FALSE(rig.controller.waiting());
  rig.authentication.Compute();
  rig.authentication.Continue(rig.controller, rig.now_ns + 5 * Rig::kTimeoutNs);
  EXPECT_FALSE(rig.authentication.Overdue(rig.now_ns + 6 * Rig::kTimeoutNs - 1));
  EXPECT_TRUE(rig.Run());
}

TEST(Authentication, GivesItsReasonWhereTheTargetDoesNotTakeTheFailureInTime) {
  Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
  EXPECT_FALSE(rig.Run(4));  // the one that is refused has come, AUTH_Failure2 has gone
  const auto overdue = rig.authentication.Overdue(rig.now_ns + Rig::kTimeoutNs);
  ASSERT_TRUE(overdue);
  EXPECT_NE(overdue->message.find("does not prove that it is the subsystem"), std::string::npos)
      << overdue->message;
}

}  // namespace
}  // namespace cleat::nvme::auth
