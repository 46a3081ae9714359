// SPDX-License-Identifier: Apache-2.0
// What an Authentication does with a controller that breaks the rules.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/random.h"
#include "tests/unit/nvme/auth/rig.h"

namespace cleat::nvme::auth {
namespace {

constexpr uint8_t kChallengeId = 1, kSuccess1Id = 3;

struct Breach {
  const char* what;
  uint8_t id;  // of the message that is changed
  std::function<void(Bytes&)> change;
  uint8_t told;  // the explanation that the target gets
  const char* reason;
};

const Breach kBreaches[] = {
    {"empty", kChallengeId, [](Bytes& m) { m.clear(); }, 6, "too short: 0 bytes of 16"},
    {"cut in its head", kChallengeId, [](Bytes& m) { m.resize(15); }, 6, "too short: 15 bytes of 16"},
    {"cut in its challenge", kChallengeId, [](Bytes& m) { m.resize(47); }, 6, "too short: 47 bytes of 304"},
    {"cut in its DH value", kChallengeId, [](Bytes& m) { m.pop_back(); }, 6, "too short: 303 bytes of 304"},
    {"of another type", kChallengeId, [](Bytes& m) { m[0] = 0; }, 7,
     "sends message 0/01h where challenge is due"},
    {"success at once", kChallengeId, [](Bytes& m) { m[1] = 3; }, 7,
     "sends message 1/03h where challenge is due"},
    {"of another transaction", kChallengeId, [](Bytes& m) { m[4] ^= 1; }, 6, "challenge is of transaction"},
    {"without a hash", kChallengeId, [](Bytes& m) { m[8] = 0; }, 4,
     "chooses hash 0, which the host did not offer"},
    {"with an unknown hash", kChallengeId, [](Bytes& m) { m[8] = 4; }, 4,
     "chooses hash 4, which the host did"},
    {"with an unknown group", kChallengeId, [](Bytes& m) { m[9] = 6; }, 5,
     "group 6, which the host did not offer"},
    {"with a length of another hash", kChallengeId, [](Bytes& m) { m[6] = 48; }, 6, "SHA-256 has 48 bytes"},
    {"with a length of nothing", kChallengeId, [](Bytes& m) { m[6] = 0; }, 6, "SHA-256 has 0 bytes"},
    {"with no DH value", kChallengeId, [](Bytes& m) { m[10] = m[11] = 0; }, 6,
     "of 0 bytes for group ffdhe2048"},
    {"with a DH value too long", kChallengeId, [](Bytes& m) { m[10] = 1; }, 6,
     "of 257 bytes for group ffdhe2048"},
    {"with the longest DH value", kChallengeId, [](Bytes& m) { m[10] = m[11] = 255; }, 6,
     "of 65535 bytes for group"},
    {"with a DH value and no group", kChallengeId, [](Bytes& m) { m[9] = 0; }, 6,
     "of 256 bytes for group null"},
    {"with sequence number 0", kChallengeId, [](Bytes& m) { m[12] = m[13] = m[14] = m[15] = 0; }, 6,
     "number 0"},
    {"with 1 as its DH value", kChallengeId,
     [](Bytes& m) {
       std::fill(m.begin() + 48, m.end(), uint8_t{0});
       m.back() = 1;
     },
     6, "the Diffie-Hellman value is no good one of ffdhe2048"},
    {"success cut in its head", kSuccess1Id, [](Bytes& m) { m.resize(8); }, 6, "too short: 8 bytes of 16"},
    {"success cut in its response", kSuccess1Id, [](Bytes& m) { m.pop_back(); }, 6,
     "too short: 47 bytes of 48"},
    {"success of another transaction", kSuccess1Id, [](Bytes& m) { m[5] ^= 1; }, 6, "is of transaction"},
    {"success with another length", kSuccess1Id, [](Bytes& m) { m[6] = 64; }, 6, "SHA-256 has 64 bytes"},
    {"the challenge again", kSuccess1Id, [](Bytes& m) { m[1] = 1; }, 7, "1/01h where success message is due"},
    {"the host's own reply", kSuccess1Id, [](Bytes& m) { m[1] = 2; }, 7,
     "1/02h where success message is due"},
    {"the host's own failure", kSuccess1Id, [](Bytes& m) { m[0] = 0, m[1] = 0xf0; }, 7, "0/f0h where"},
};

TEST(HostileController, IsToldAndRefusedWithAReasonThatNamesTheBreach) {
  for (const Breach& breach : kBreaches) {
    Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
    rig.controller.own_secret = RawSecret(32);
    rig.controller.group = 1;
    rig.controller.tamper = [&breach](uint8_t id, Bytes& message) {
      if (id == breach.id) breach.change(message);
    };
    EXPECT_FALSE(rig.Run()) << breach.what;
    ASSERT_TRUE(rig.error) << breach.what;
    EXPECT_EQ(rig.error->code, ErrorCode::kDataLoss) << breach.what;
    EXPECT_TRUE(rig.message().starts_with("subsystems/a, queue 1: the target")) << rig.message();
    EXPECT_NE(rig.message().find(breach.reason), std::string::npos) << breach.what << ": " << rig.message();
    EXPECT_EQ(rig.controller.failure2, breach.told) << breach.what;
    EXPECT_FALSE(rig.authentication.done());
  }
}

TEST(HostileController, CannotHaveAHashOrAGroupThatIsNotConfigured) {
  struct Row {
    uint8_t hash, group, told;
  };
  for (const auto [hash, group, told] : {Row{1, 1, 4}, Row{3, 0, 5}}) {
    Rig rig({.offer = {.hashes = {Hash::kSha512}, .groups = {DhGroup::kFfdhe2048}}});
    rig.controller.hash = hash;
    rig.controller.group = group;
    EXPECT_FALSE(rig.Run());
    EXPECT_NE(rig.message().find("which the host did not offer"), std::string::npos) << rig.message();
    EXPECT_EQ(rig.controller.failure2, told);
    EXPECT_TRUE(rig.controller.reply.empty());  // nothing that is made of the secret has been sent
  }
}

TEST(HostileController, ThatSaysFailureIsHeardInItsWords) {
  struct Row {
    uint8_t explanation;
    ErrorCode code;
    const char* reason;
  };
  const Row rows[] = {
      {1, ErrorCode::kPermissionDenied, "does not accept the host's secret"},
      {2, ErrorCode::kFailedPrecondition, "does not take DH-HMAC-CHAP"},
      {3, ErrorCode::kFailedPrecondition, "wants a secure channel"},
      {4, ErrorCode::kFailedPrecondition, "none of the hashes"},
      {5, ErrorCode::kFailedPrecondition, "none of the Diffie-Hellman groups"},
      {6, ErrorCode::kDataLoss, "incorrect payload"},
      {7, ErrorCode::kDataLoss, "did not expect"},
      {0xee, ErrorCode::kDataLoss, "for reason 0xee"},
  };
  for (const uint8_t at : {kChallengeId, kSuccess1Id}) {
    for (const Row& row : rows) {
      Rig rig({});
      rig.controller.tamper = [&row, at](uint8_t id, Bytes& message) {
        if (id == at) message = {0, 0xf1, 0, 0, message[4], message[5], 1, row.explanation};
      };
      EXPECT_FALSE(rig.Run());
      ASSERT_TRUE(rig.error);
      EXPECT_EQ(rig.error->code, row.code);
      EXPECT_NE(rig.message().find(row.reason), std::string::npos) << rig.message();
      EXPECT_FALSE(rig.controller.failure2);
    }
  }
}

TEST(HostileController, ThatRefusesACommandEndsTheAuthenticationWithItsStatus) {
  for (size_t number = 1; number <= 5; ++number) {
    Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
    rig.controller.own_secret = RawSecret(32);
    rig.controller.status = [number](size_t command) {
      return static_cast<uint16_t>(command == number ? 0x4191 : 0);
    };
    EXPECT_FALSE(rig.Run());
    ASSERT_TRUE(rig.error) << number;
    EXPECT_EQ(rig.error->code, ErrorCode::kFailedPrecondition);
    EXPECT_NE(rig.message().find("Authentication Required (1/91h)"), std::string::npos) << rig.message();
    EXPECT_EQ(rig.controller.commands, number);
  }
}

TEST(HostileController, ThatRefusesTheFailureMessageDoesNotHideTheReason) {
  Rig rig({});
  rig.controller.tamper = [](uint8_t, Bytes& message) { message[8] = 9; };
  rig.controller.status = [](size_t command) { return static_cast<uint16_t>(command == 3 ? 2 : 0); };
  EXPECT_FALSE(rig.Run());
  EXPECT_NE(rig.message().find("chooses hash 9"), std::string::npos) << rig.message();
}

// Any bit of an honest conversation in both directions that is flipped ends it: nothing that is sent is without a check.
TEST(HostileController, CannotChangeABitOfWhatCounts) {
  // Reserved fields are not looked at, as the specification says.
  const auto reserved = [](uint8_t id, size_t byte) {
    return byte == 2 || byte == 3 || byte == 7 || (id == kSuccess1Id && byte >= 9 && byte < 16);
  };
  // Any number but 0 stands for "valid".
  const auto same = [](uint8_t id, size_t byte, int bit) {
    return id == kSuccess1Id && byte == 8 && bit != 0;
  };
  for (const uint8_t at : {kChallengeId, kSuccess1Id}) {
    for (size_t byte = 0; byte < 48; ++byte) {
      for (int bit = 0; bit < 8; ++bit) {
        if (reserved(at, byte) || same(at, byte, bit)) continue;
        Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
        rig.controller.own_secret = RawSecret(32);
        rig.controller.tamper = [&](uint8_t id, Bytes& message) {
          if (id == at) message.at(byte) ^= static_cast<uint8_t>(1 << bit);
        };
        EXPECT_FALSE(rig.Run()) << int{at} << " " << byte << " " << bit;
        EXPECT_TRUE(rig.error) << int{at} << " " << byte << " " << bit;
      }
    }
  }
}

TEST(HostileController, OfRandomMessagesNeverSucceedsAndNeverLasts) {
  cleat::Random random(1);
  for (int i = 0; i < 1000; ++i) {
    Rig rig({.controller_secret = kTestSecrets[0].text, .offer = {}});
    rig.controller.tamper = [&random](uint8_t id, Bytes& message) {
      if (id == kChallengeId && random.Chance(1, 2)) return;
      const bool keeps_head = random.Chance(3, 4);
      const Bytes honest = message;
      message.resize(random.Below(5000));
      for (uint8_t& byte : message) byte = static_cast<uint8_t>(random.Next());
      if (keeps_head) std::copy_n(honest.begin(), std::min<size_t>(message.size(), 9), message.begin());
    };
    EXPECT_FALSE(rig.Run());
    EXPECT_TRUE(rig.error);
    EXPECT_LE(rig.controller.commands, Rig::kCommandsMax);
  }
}

}  // namespace
}  // namespace cleat::nvme::auth
