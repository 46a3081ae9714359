// SPDX-License-Identifier: Apache-2.0
// The controller's side of DH-HMAC-CHAP with our own host as its counterpart, and with what hosts send that break the rules.
#include "nvme/auth/controller/controller_authentication.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/nvme/auth/host_side.h"

namespace cleat::nvme::auth::controller_authentication_test {
namespace {

constexpr const char* kSecret = kTestSecrets[0].text;  // 00 01 .. 1f, not transformed
constexpr const char* kOtherSecret = kTestSecrets[2].text;
constexpr size_t kRoom = 4096;

// ---- With a host that keeps the rules

TEST(ControllerAuthentication, BelievesAHostThatHasTheSecretWithEachHashAndGroup) {
  for (const Hash hash : {Hash::kSha256, Hash::kSha384, Hash::kSha512}) {
    for (const DhGroup group : kGroupsLiked) {
      Meeting meeting(SecretsOf(kSecret), SecretsOf(kSecret), {.hashes = {hash}, .groups = {group}});
      ASSERT_TRUE(meeting.Run()) << NameOf(hash) << " " << NameOf(group) << ": " << meeting.error;
      EXPECT_TRUE(meeting.controller.proved());
      EXPECT_EQ(meeting.due, Due::kProved);
      EXPECT_FALSE(meeting.controller.both_ways());
      EXPECT_EQ(meeting.controller.chosen(), meeting.host.chosen());
    }
  }
}

TEST(ControllerAuthentication, ProvesTheSubsystemToAHostThatAsks) {
  for (const DhGroup group : {DhGroup::kNull, DhGroup::kFfdhe2048}) {
    Meeting meeting(SecretsOf(kSecret, kOtherSecret), SecretsOf(kSecret, kOtherSecret),
                    {.hashes = {Hash::kSha384}, .groups = {group}});
    ASSERT_TRUE(meeting.Run()) << meeting.error;
    EXPECT_EQ(meeting.due, Due::kProved);  // by the host's last message
    EXPECT_TRUE(meeting.controller.both_ways());
  }
}

TEST(ControllerAuthentication, TakesSecretsOfEachTransformation) {
  for (const TestSecret& secret : kTestSecrets) {
    Meeting meeting(SecretsOf(secret.text, secret.text), SecretsOf(secret.text, secret.text),
                    {.hashes = {Hash::kSha256}, .groups = {DhGroup::kNull}});
    EXPECT_TRUE(meeting.Run()) << meeting.error;
  }
}

TEST(ControllerAuthentication, ChoosesTheStrongestHashAndTheGroupThatIsStrongEnoughAtTheLeastCost) {
  Meeting all(SecretsOf(kSecret), SecretsOf(kSecret));
  ASSERT_TRUE(all.Run());
  EXPECT_EQ(all.controller.chosen(), "SHA-512, ffdhe3072");
  Meeting some(SecretsOf(kSecret), SecretsOf(kSecret),
               {.hashes = {Hash::kSha256, Hash::kSha384}, .groups = {DhGroup::kNull, DhGroup::kFfdhe2048}});
  ASSERT_TRUE(some.Run());
  EXPECT_EQ(some.controller.chosen(), "SHA-384, ffdhe2048");
}

TEST(ControllerAuthentication, DoesNotBelieveAHostWithAnotherSecret) {
  for (const DhGroup group : {DhGroup::kNull, DhGroup::kFfdhe2048}) {
    Meeting meeting(SecretsOf(kTestSecrets[1].text), SecretsOf(kSecret), {.groups = {group}});
    EXPECT_FALSE(meeting.Run());
    EXPECT_NE(meeting.error.find("does not accept the host's secret"), std::string::npos) << meeting.error;
    EXPECT_FALSE(meeting.controller.proved());
    EXPECT_EQ(meeting.due, Due::kOver);
    EXPECT_NE(meeting.controller.refusal()->find("does not have the secret"), std::string::npos);
  }
}

TEST(ControllerAuthentication, IsNotUsableWhereTheHostDoesNotBelieveTheSubsystem) {
  Meeting meeting(SecretsOf(kSecret, kSecret), SecretsOf(kSecret, kOtherSecret));
  EXPECT_FALSE(meeting.Run());
  EXPECT_FALSE(meeting.controller.proved());
  EXPECT_EQ(meeting.due, Due::kOver);
  EXPECT_NE(meeting.controller.refusal()->find("does not believe that this is the subsystem"),
            std::string::npos);
}

TEST(ControllerAuthentication, RefusesAHostThatAsksForAProofThatItCannotGive) {
  Meeting meeting(SecretsOf(kSecret, kOtherSecret), SecretsOf(kSecret));
  EXPECT_FALSE(meeting.Run());
  EXPECT_FALSE(meeting.controller.proved());
  EXPECT_NE(meeting.controller.refusal()->find("for which no secret is configured here"), std::string::npos);
}

// Whoever is no host of ours does not learn whether there is a secret of the subsystem's.
TEST(ControllerAuthentication, LooksAtTheHostsProofBeforeItSaysWhatItCannotProve) {
  Meeting meeting(SecretsOf(kTestSecrets[1].text, kOtherSecret), SecretsOf(kSecret));
  EXPECT_FALSE(meeting.Run());
  EXPECT_NE(meeting.controller.refusal()->find("does not have the secret"), std::string::npos);
}

TEST(ControllerAuthentication, GivesAnotherChallengeEachTime) {
  const auto challenge_of = [](uint8_t seed) {
    cleat::Random random(seed);
    ControllerAuthentication controller(
        ControllerConfigOf(SecretsOf(kSecret), [&random](std::span<uint8_t> bytes) {
          for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Next());
        }));
    EXPECT_EQ(controller.Take(NegotiateBytes()), Due::kHost);
    return controller.Give(kRoom).message;
  };
  EXPECT_NE(challenge_of(1), challenge_of(2));
}

// ---- With messages of the tests' own

Bytes Hex(std::string_view text) {
  Bytes bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(std::stoul(std::string(text.substr(2 * i, 2)), nullptr, 16));
  return bytes;
}

// By the letter of base 8.13.5, made by another program: SHA-256, no group, secret 00 .. 1f, transaction 1234h.
// The host's response to the challenge 5a 5a ..., S1 5a5a5a5ah.
constexpr std::string_view kHostResponse = "ec86757ca85eddcfcab80c5c5dc8be8088fa19feda9d0469f04629af3b5bb4de";
// The controller's to the challenge 33 33 ..., S2 7.
constexpr std::string_view kControllerResponse =
    "b2bad16d1a951f7d200debde1c779cef67806720fc6d22391386fe1ed5a3db21";

class KnownValues : public testing::Test {
 protected:
  // As far as the reply is due. Its challenge and sequence number are all 5a.
  void Challenge(ControllerAuthentication& controller, uint8_t group = 0) {
    Due due = controller.Take(NegotiateBytes({{.groups = {group}}}));
    if (due == Due::kCompute) {
      controller.Compute();
      due = controller.Continue();
    }
    ASSERT_EQ(due, Due::kHost);
    challenge_ = controller.Give(kRoom).message;
    ASSERT_GE(challenge_.size(), 48U);
  }
  // What becomes of a reply: the message that the host gets.
  static Bytes Reply(ControllerAuthentication& controller, const Bytes& reply) {
    if (controller.Take(reply) == Due::kCompute) {
      controller.Compute();
      (void)controller.Continue();
    }
    return controller.Give(kRoom).message;
  }
  static RandomBytes AllOf(uint8_t byte) {
    return [byte](std::span<uint8_t> bytes) { std::ranges::fill(bytes, byte); };
  }
  ControllerAuthenticationConfig Config() const {
    return ControllerConfigOf(SecretsOf(kSecret, kSecret), AllOf(0x5a));
  }
  static Bytes Failure(uint8_t explanation) {
    Bytes message = ChapMessage(0, 0xf1, 8);
    message[6] = 1;
    message[7] = explanation;
    return message;
  }

  Bytes challenge_;
  ControllerAuthentication controller_{Config()};
};

TEST_F(KnownValues, AreThoseOfTheSpecification) {
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  Bytes wanted = ChapMessage(1, 1, 16);
  wanted[6] = 32;                                  // HL
  wanted[8] = 1;                                   // SHA-256
  for (int i = 12; i < 16; ++i) wanted[i] = 0x5a;  // S1
  wanted.resize(48, 0x5a);
  EXPECT_EQ(challenge_, wanted);
  Bytes success = ChapMessage(1, 3, 16);
  success[6] = 32;
  success[8] = 1;  // RVALID
  const Bytes response = Hex(kControllerResponse);
  success.insert(success.end(), response.begin(), response.end());
  EXPECT_EQ(Reply(controller_, ReplyBytes({.response = Hex(kHostResponse), .challenge = Bytes(32, 0x33)})),
            success);
  EXPECT_FALSE(controller_.proved());
  EXPECT_EQ(controller_.Take(Success2Bytes()), Due::kProved);
}

TEST_F(KnownValues, ProveTheHostWithItsOwnProofAlone) {
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  Bytes success = ChapMessage(1, 3, 16);
  success[6] = 32;
  EXPECT_EQ(Reply(controller_, ReplyBytes({.response = Hex(kHostResponse), .sequence = 0})), success);
  EXPECT_TRUE(controller_.proved());
}

TEST_F(KnownValues, OfAnotherTransactionOrWithABitWrongProveNothing) {
  for (const size_t bit : {0U, 100U, 255U}) {
    ControllerAuthentication controller(Config());
    ASSERT_NO_FATAL_FAILURE(Challenge(controller));
    Bytes response = Hex(kHostResponse);
    response[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    EXPECT_EQ(Reply(controller, ReplyBytes({.response = response})), Failure(1));
    EXPECT_FALSE(controller.proved());
  }
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  Bytes reply = ReplyBytes({.response = Hex(kHostResponse)});
  reply[4] ^= 1;
  EXPECT_EQ(Reply(controller_, reply), Failure(6));
}

// What the controller would answer to its own challenge is not what a host has to: the role is in it.
TEST_F(KnownValues, OfTheControllersRoleProveNothingOfTheHostThoughTheSecretIsTheSame) {
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  // A stranger has the controller answer, on another queue, what it was asked on this one.
  const auto secrets = SecretsOf(kSecret, kSecret);
  const Bytes asked(challenge_.begin() + 16, challenge_.end());
  const auto answered = ControllerResponse({.hash = Hash::kSha256,
                                            .transaction = kTestTransaction,
                                            .host_nqn = kTestHostNqn,
                                            .subsystem_nqn = kTestSubsystemNqn},
                                           *secrets->controller, {.sequence = 0x5a5a5a5a, .value = asked});
  ASSERT_TRUE(answered.ok());
  const auto bytes = answered->bytes();
  EXPECT_EQ(Reply(controller_, ReplyBytes({.response = Bytes(bytes.begin(), bytes.end())})), Failure(1));
  EXPECT_FALSE(controller_.proved());
}

TEST_F(KnownValues, DoNotHelpAHostThatGivesTheChallengeBack) {
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  const Bytes own(challenge_.begin() + 16, challenge_.end());
  EXPECT_EQ(Reply(controller_, ReplyBytes({.response = Hex(kHostResponse), .challenge = own})), Failure(1));
  EXPECT_FALSE(controller_.proved());
}

TEST_F(KnownValues, OfAnotherQueuesChallengeProveNothing) {
  ControllerAuthentication other(ControllerConfigOf(SecretsOf(kSecret), AllOf(0x5b)));
  ASSERT_NO_FATAL_FAILURE(Challenge(other));
  EXPECT_EQ(Reply(other, ReplyBytes({.response = Hex(kHostResponse)})), Failure(1));
}

TEST_F(KnownValues, WithAGroupAreRefusedWhereTheHostsValueIsNone) {
  for (const uint8_t value : {0, 1}) {
    ControllerAuthentication controller(Config());
    ASSERT_NO_FATAL_FAILURE(Challenge(controller, 1));
    EXPECT_EQ(challenge_.size(), 48U + 256);
    Bytes dh_value(256);
    dh_value.back() = value;
    EXPECT_EQ(Reply(controller, ReplyBytes({.response = Bytes(32), .dh_value = dh_value})), Failure(6));
  }
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_, 1));
  Bytes minus_one = PrimeOf(1);
  minus_one.back() -= 1;
  EXPECT_EQ(Reply(controller_, ReplyBytes({.response = Bytes(32), .dh_value = minus_one})), Failure(6));
}

TEST_F(KnownValues, AreGivenOnlyWhereThereIsRoomForThem) {
  ASSERT_EQ(controller_.Take(NegotiateBytes()), Due::kHost);
  EXPECT_TRUE(controller_.Give(47).message.empty());
  EXPECT_EQ(controller_.Give(48).message.size(), 48U);
}

// ---- Hosts that break the rules

TEST_F(KnownValues, ANegotiationThatDoesNotFitIsRefusedWithItsReason) {
  const auto answer_to = [this](const Bytes& negotiate) {
    ControllerAuthentication controller(Config());
    EXPECT_EQ(controller.Take(negotiate), Due::kHost);
    const auto given = controller.Give(kRoom);
    EXPECT_EQ(given.due, Due::kOver);
    EXPECT_FALSE(controller.proved());
    EXPECT_TRUE(controller.refusal());
    return given.message;
  };
  EXPECT_EQ(answer_to(NegotiateBytes({{}}, 1)), Failure(3));                   // a secure channel
  EXPECT_EQ(answer_to(NegotiateBytes({})), Failure(6));                        // no protocol
  EXPECT_EQ(answer_to(NegotiateBytes({{.protocol = 2}})), Failure(2));         // another one
  EXPECT_EQ(answer_to(NegotiateBytes({{.hashes = {0, 4, 99}}})), Failure(4));  // no hash of ours
  EXPECT_EQ(answer_to(NegotiateBytes({{.hashes = {}}})), Failure(4));          // none
  EXPECT_EQ(answer_to(NegotiateBytes({{.groups = {6, 99}}})), Failure(5));     // no group of ours
  EXPECT_EQ(answer_to(NegotiateBytes({{.groups = {}}})), Failure(5));          // none
  EXPECT_EQ(answer_to(NegotiateBytes({{.hash_count = 31}})), Failure(6));      // more than there is room for
  EXPECT_EQ(answer_to(NegotiateBytes({{.group_count = 255}})), Failure(6));    // likewise
  Bytes lying = NegotiateBytes();
  lying[7] = 2;
  EXPECT_EQ(answer_to(lying), Failure(6));  // a descriptor that did not come
  lying[7] = 255;
  EXPECT_EQ(answer_to(lying), Failure(6));
}

TEST_F(KnownValues, TheDescriptorOfTheProtocolIsFoundAmongOthers) {
  EXPECT_EQ(controller_.Take(NegotiateBytes({{.protocol = 77}, {.protocol = 1}})), Due::kHost);
  EXPECT_EQ(controller_.Give(kRoom).message.at(1), 1);
}

TEST_F(KnownValues, MessagesOfEveryLengthAreSafe) {
  for (size_t bytes = 0; bytes < 72; ++bytes) {
    Bytes cut = NegotiateBytes();
    cut.resize(bytes);
    ControllerAuthentication controller(Config());
    EXPECT_EQ(controller.Take(cut), Due::kHost) << bytes;
    EXPECT_EQ(controller.Give(kRoom).message.at(1), 0xf1) << bytes;
  }
  const Bytes whole = ReplyBytes({.response = Hex(kHostResponse)});
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    ControllerAuthentication controller(Config());
    ASSERT_NO_FATAL_FAILURE(Challenge(controller));
    EXPECT_EQ(Reply(controller, Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(bytes))),
              Failure(6))
        << bytes;
    EXPECT_FALSE(controller.proved());
  }
}

TEST_F(KnownValues, AReplyWhoseSizesDoNotFitWhatWasChosenIsRefused) {
  const auto answer_to = [this](uint8_t group, const ReplyFields& fields) {
    ControllerAuthentication controller(Config());
    Challenge(controller, group);
    return Reply(controller, ReplyBytes(fields));
  };
  EXPECT_EQ(answer_to(0, {.response = Bytes(48)}), Failure(6));
  EXPECT_EQ(answer_to(0, {.response = Bytes(0)}), Failure(6));
  EXPECT_EQ(answer_to(0, {.response = Hex(kHostResponse), .dh_value = Bytes(1)}), Failure(6));
  EXPECT_EQ(answer_to(1, {.response = Hex(kHostResponse)}), Failure(6));  // without the exchange
  EXPECT_EQ(answer_to(1, {.response = Hex(kHostResponse), .dh_value = Bytes(257, 1)}), Failure(6));
  EXPECT_EQ(answer_to(0, {.response = Hex(kHostResponse), .challenge = Bytes(32, 1), .sequence = 0}),
            Failure(6));
}

TEST_F(KnownValues, WhatComesOutOfTurnIsRefusedInEachState) {
  // Each queue is taken so many steps far.
  const auto at = [this](int steps) {
    auto controller = std::make_unique<ControllerAuthentication>(Config());
    if (steps > 0) (void)controller->Take(NegotiateBytes());
    if (steps > 1) (void)controller->Give(kRoom);
    if (steps > 2) {
      (void)controller->Take(ReplyBytes({.response = Hex(kHostResponse), .challenge = Bytes(32, 0x33)}));
      controller->Compute();
      (void)controller->Continue();
    }
    if (steps > 3) (void)controller->Give(kRoom);
    if (steps > 4) {
      EXPECT_EQ(controller->Take(Success2Bytes()), Due::kProved);
    }
    return controller;
  };
  const Bytes reply = ReplyBytes({.response = Hex(kHostResponse)});
  const std::vector<std::pair<int, Bytes>> sent = {{0, reply},
                                                   {0, Success2Bytes()},
                                                   {1, NegotiateBytes()},
                                                   {1, reply},
                                                   {2, NegotiateBytes()},
                                                   {2, Success2Bytes()},
                                                   {3, Success2Bytes()},
                                                   {3, reply},
                                                   {4, reply},
                                                   {4, NegotiateBytes()},
                                                   {5, NegotiateBytes()},
                                                   {5, reply}};
  for (const auto& [steps, message] : sent) {
    const auto controller = at(steps);
    EXPECT_EQ(controller->Take(message), Due::kHost) << steps;
    EXPECT_FALSE(controller->proved()) << steps;
    EXPECT_EQ(controller->Give(kRoom).message.at(7), 7) << steps;
  }
  // Asked where it is the host's turn.
  for (const int steps : {0, 2, 4, 5}) {
    const auto controller = at(steps);
    const auto given = controller->Give(kRoom);
    EXPECT_EQ(given.message.at(1), 0xf1) << steps;
    EXPECT_EQ(given.due, Due::kOver) << steps;
    EXPECT_FALSE(controller->proved()) << steps;
  }
}

TEST_F(KnownValues, AfterARefusalNothingIsTakenAnyMore) {
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  EXPECT_EQ(controller_.Take(NegotiateBytes()), Due::kHost);
  EXPECT_EQ(controller_.Take(ReplyBytes({.response = Hex(kHostResponse)})), Due::kOver);
  EXPECT_FALSE(controller_.proved());
}

TEST_F(KnownValues, TheHostsFailureIsTheEndInEachStateThatWaitsForIt) {
  ASSERT_NO_FATAL_FAILURE(Challenge(controller_));
  EXPECT_EQ(controller_.Take(Failure2Bytes(6)), Due::kOver);
  ControllerAuthentication other(Config());
  ASSERT_NO_FATAL_FAILURE(Challenge(other));
  (void)Reply(other, ReplyBytes({.response = Hex(kHostResponse), .challenge = Bytes(32, 0x33)}));
  EXPECT_EQ(other.Take(Failure2Bytes(1)), Due::kOver);
  EXPECT_FALSE(other.proved());
}

}  // namespace
}  // namespace cleat::nvme::auth::controller_authentication_test
