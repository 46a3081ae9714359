// SPDX-License-Identifier: Apache-2.0
#include "nvme/tls/psk.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace cleat::nvme::tls {
namespace {

constexpr const char* kHost = "nqn.psk-test-host";
constexpr const char* kSubsystem = "nqn.psk-test-subsys";
// With a date, as NQNs have.
constexpr const char* kNqnHost = "nqn.2014-08.org.example:host";
constexpr const char* kNqnSubsystem = "nqn.2014-08.org.example:array";

// Keys, names and the identities of version 1 with a transformation are the test vectors of libnvme (test/psk.c); the derived keys, and the
// identities without a transformation, were computed by a Python script of hmac and hashlib after the text of the specifications, which
// gets libnvme's identities too.
struct Vector {
  const char* text;
  Hash hash;
  const char* identities[2];  // by version
  const char* keys[2];
};
constexpr Vector kVectors[] = {
    {"NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
     Hash::kSha256,
     {"NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
      "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU="},
     {"05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
      "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca"}},
    {"NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
     Hash::kSha256,
     {"NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys",
      "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404="},
     {"ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef",
      "a45d08ee4639c7570729bb3e57e905e466a49a15ece5401af906830c4d3bdb0b"}},
    {"NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
     Hash::kSha384,
     {"NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys",
      "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys "
      "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a"},
     {"f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
      "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca"}},
    {"NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:",
     Hash::kSha384,
     {"NVMe0R02 nqn.psk-test-host nqn.psk-test-subsys",
      "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys "
      "dyoPfSR5TBRaPMI5/FXUlJv2XMDtmQ7Q9Xrj89aBKbyRYkQeT5V1wNvIpnMDRTQW"},
     {"b5dd464067a9378ba2226d71f005d7ac90ed8696e4b2142084384365597201d33ba26f8aeeb529574d4267bd294a828e",
      "1569317890995e207ab4cf148bc53470561e148030cb019b1d87fb4bc5794a791ed5ee68676c952ce5f11f3786e900d4"}},
};

std::string HexOf(const keys::Secret& key) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : key.bytes()) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string WhyNot(const std::string& text) {
  const auto psk = Psk::Parse(text, "the key");
  return psk.ok() ? "" : psk.error().message;
}

TEST(Psk, GivesTheKnownIdentitiesAndKeys) {
  for (const Vector& vector : kVectors) {
    const auto psk = Psk::Parse(vector.text, "the key");
    ASSERT_TRUE(psk.ok()) << psk.error().message;
    EXPECT_EQ(psk->hash(), vector.hash);
    for (const IdentityVersion version : {IdentityVersion::kV0, IdentityVersion::kV1}) {
      const auto key = psk->KeyFor(kHost, kSubsystem, version);
      ASSERT_TRUE(key.ok()) << key.error().message;
      const auto row = static_cast<size_t>(version);
      EXPECT_EQ(key->hash, vector.hash);
      EXPECT_EQ(key->identity, vector.identities[row]);
      EXPECT_EQ(HexOf(key->key), vector.keys[row]) << vector.text;
    }
  }
}

TEST(Psk, IsAnotherOneForAnotherHostOrSubsystem) {
  const auto psk = Psk::Parse(kVectors[0].text, "the key");
  const auto key = psk->KeyFor("nqn.a", "nqn.b", IdentityVersion::kV0);
  EXPECT_FALSE(key->key == psk->KeyFor("nqn.c", "nqn.b", IdentityVersion::kV0)->key);
  EXPECT_FALSE(key->key == psk->KeyFor("nqn.a", "nqn.c", IdentityVersion::kV0)->key);
}

TEST(Psk, ItsIdentitiesAreTakenApart) {
  for (const Vector& vector : kVectors) {
    for (const IdentityVersion version : {IdentityVersion::kV0, IdentityVersion::kV1}) {
      const std::string identity =
          Psk::Parse(vector.text, "the key")->KeyFor(kNqnHost, kNqnSubsystem, version)->identity;
      const auto parts = ParseIdentity(identity);
      ASSERT_TRUE(parts) << identity;
      EXPECT_EQ(parts->version, version);
      EXPECT_EQ(parts->hash, vector.hash);
      EXPECT_EQ(parts->host_nqn, kNqnHost);
      EXPECT_EQ(parts->subsystem_nqn, kNqnSubsystem);
    }
  }
}

TEST(Psk, WhatIsNoIdentityIsNotTakenApart) {
  const std::string names = std::string(kNqnHost) + " " + kNqnSubsystem;
  const std::string long_nqn = "nqn.2014-08.org.example:" + std::string(223, 'x');
  ASSERT_TRUE(ParseIdentity("NVMe0R01 " + names));
  ASSERT_TRUE(ParseIdentity("NVMe1R02 " + names + " digest"));
  const std::vector<std::string> rows = {
      "",
      "NVMe0R01",
      "NVMe0R01 ",
      "NVMe0R01  ",
      "NVMe2R01 " + names,
      "NVMe0R03 " + names,
      "NVMe0X01 " + names,
      "nvme0R01 " + names,
      "NVMe0R01" + names,
      "NVMe0R01 " + names + " more",
      "NVMe0R01 " + names + " ",
      "NVMe0R01 " + std::string(kNqnHost),
      "NVMe1R01 " + names,
      "NVMe1R01 " + std::string(kNqnHost) + " a b c",
      "NVMe0R01 host " + std::string(kNqnSubsystem),
      "NVMe0R01 " + std::string(kNqnHost) + " subsystem",
      "NVMe0R01 " + std::string(kNqnHost) + "\n " + kNqnSubsystem,
      "NVMe0R01 " + names + std::string(1, '\0'),
      "NVMe0R01 " + std::string(kNqnHost) + " " + long_nqn,
      "NVMe1R01 " + names + " " + std::string(1000, 'A'),
  };
  for (const std::string& row : rows) EXPECT_FALSE(ParseIdentity(row)) << row;
}

TEST(Psk, WithAnyCharacterOfItsBase64ChangedIsRefused) {
  for (const Vector& vector : kVectors) {
    const std::string good = vector.text;
    const size_t end = good.find_last_not_of(":=");
    for (size_t at = 16; at <= end; ++at) {
      std::string bad = good;
      bad[at] = bad[at] == 'Q' ? 'R' : 'Q';
      // The last character of what is padded may differ in bits that stand for nothing.
      const bool unused_bits = at == end && good.find('=') != std::string::npos;
      if (!unused_bits) {
        EXPECT_NE(WhyNot(bad), "") << at;
      }
    }
  }
}

TEST(Psk, IsRefusedWithTheRuleThatTheTextBreaks) {
  const std::string good = kVectors[0].text;
  const auto replaced = [&](size_t at, const char* with) {
    std::string text = good;
    return text.replace(at, std::string(with).size(), with);
  };
  const std::vector<std::pair<std::string, const char*>> rows = {
      {"", "does not begin"},
      {"NVMeTLSkey-1:01:", "does not begin"},
      {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "does not begin"},
      {replaced(11, "2"), "does not begin"},
      {replaced(15, "0"), "does not begin"},
      {good.substr(0, good.size() - 1), "end with a colon"},
      {replaced(13, "03"), "hash is not one of"},
      {replaced(13, "0 "), "hash is not one of"},
      {replaced(13, "02"), "size is not that of its hash"},
      {replaced(20, "!"), "not base64"},
      {"NVMeTLSkey-1:01:AAAA:", "32 or 48 bytes"},
      {good + ":", "not base64"},
      {good.substr(0, 60) + std::string(40, 'A') + ":", "too long"},
  };
  for (const auto& [text, why] : rows) {
    const std::string said = WhyNot(text);
    EXPECT_NE(said.find(why), std::string::npos) << text << ": " << said;
    EXPECT_EQ(said.rfind("the key is no key", 0), 0U) << said;
    EXPECT_EQ(said.find("VRLb"), std::string::npos) << said;
  }
}

TEST(Psk, HasNoIdentityOfVersion0ForNamesThatAreTooLong) {
  const auto psk = Psk::Parse(kVectors[0].text, "the key");
  const std::string host(120, 'h');
  EXPECT_TRUE(psk->KeyFor(host, std::string(125, 's'), IdentityVersion::kV0).ok());
  const auto longer = psk->KeyFor(host, std::string(126, 's'), IdentityVersion::kV0);
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(longer.error().message.find("more than 245 characters"), std::string::npos)
      << longer.error().message;
  EXPECT_TRUE(psk->KeyFor(host, std::string(223, 's'), IdentityVersion::kV1).ok());
}

TEST(Psk, SaysForWhichNamesThereIsAnIdentityOfVersion0) {
  const std::string host(120, 'h');
  EXPECT_TRUE(Psk::HasVersion0For(host, std::string(125, 's')));
  EXPECT_FALSE(Psk::HasVersion0For(host, std::string(126, 's')));
}

TEST(Psk, HasAChoiceOfItsOwnForEachAddress) {
  const auto psk = Psk::Parse(kVectors[0].text, "the key");
  psk->choice("10.0.0.1:4420").Accepted(IdentityVersion::kV1);
  EXPECT_EQ(psk->choice("10.0.0.1:4420").next(), IdentityVersion::kV1);
  EXPECT_EQ(psk->choice("10.0.1.1:4420").next(), IdentityVersion::kV0);
}

TEST(IdentityChoice, TriesTheOtherIdentityWhenOneIsRefusedInWhateverWay) {
  for (const auto refusal :
       {IdentityRefusal::kSilent, IdentityRefusal::kPerhaps, IdentityRefusal::kUnknown}) {
    IdentityChoice choice;
    EXPECT_EQ(choice.next(), IdentityVersion::kV0);
    EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, refusal));
    EXPECT_EQ(choice.next(), IdentityVersion::kV1);
    // Another connection that was on its way with the first one.
    EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, refusal));
    EXPECT_EQ(choice.next(), IdentityVersion::kV1);
  }
}

TEST(IdentityChoice, StaysWithTheIdentityThatWasTaken) {
  IdentityChoice choice;
  EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kUnknown));
  choice.Accepted(IdentityVersion::kV1);
  EXPECT_EQ(choice.next(), IdentityVersion::kV1);
  // Another connection that was on its way with the first one.
  EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kUnknown));
  EXPECT_EQ(choice.next(), IdentityVersion::kV1);
  choice.Accepted(IdentityVersion::kV0);
  EXPECT_EQ(choice.next(), IdentityVersion::kV0);
}

// The target may have been stopped in the midst of the handshake, or be short of memory.
TEST(IdentityChoice, DoesNotTurnFromWhatWasTakenBecauseATargetIsInTrouble) {
  IdentityChoice choice;
  choice.Accepted(IdentityVersion::kV0);
  for (int turn = 0; turn < 10; ++turn)
    EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kSilent));
  EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kPerhaps));
  EXPECT_EQ(choice.next(), IdentityVersion::kV0);
  // A connection since then has it count anew.
  choice.Accepted(IdentityVersion::kV0);
  for (uint32_t turn = 1; turn < IdentityChoice::kRefusalsOfTakenMax; ++turn) {
    EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kPerhaps));
    EXPECT_EQ(choice.next(), IdentityVersion::kV0);
  }
}

TEST(IdentityChoice, TurnsFromWhatWasTakenWhenTheTargetDoesNotKnowItAnyMore) {
  IdentityChoice choice;
  choice.Accepted(IdentityVersion::kV0);
  EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kUnknown));
  EXPECT_EQ(choice.next(), IdentityVersion::kV1);
  EXPECT_FALSE(choice.Refused(IdentityVersion::kV1, IdentityRefusal::kSilent));
  EXPECT_EQ(choice.next(), IdentityVersion::kV0);
}

// Linux' target closes without a word.
TEST(IdentityChoice, TurnsFromWhatWasTakenWhenTheTargetHasNothingElseToSayForLong) {
  IdentityChoice choice;
  choice.Accepted(IdentityVersion::kV0);
  for (uint32_t turn = 0; turn < IdentityChoice::kSilencesOfTakenMax; ++turn) {
    EXPECT_EQ(choice.next(), IdentityVersion::kV0);
    EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kSilent));
  }
  EXPECT_EQ(choice.next(), IdentityVersion::kV1);
}

// OpenSSL's server does not say that it knows no such identity.
TEST(IdentityChoice, TurnsFromWhatWasTakenWhenItIsRefusedTimeAfterTime) {
  IdentityChoice choice;
  choice.Accepted(IdentityVersion::kV0);
  for (uint32_t turn = 0; turn < IdentityChoice::kRefusalsOfTakenMax; ++turn) {
    EXPECT_EQ(choice.next(), IdentityVersion::kV0);
    EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kPerhaps));
  }
  EXPECT_EQ(choice.next(), IdentityVersion::kV1);
}

TEST(IdentityChoice, TakesTurnsOnceBothWereRefused) {
  IdentityChoice choice;
  EXPECT_TRUE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kPerhaps));
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(choice.next(), IdentityVersion::kV1);
    EXPECT_FALSE(choice.Refused(IdentityVersion::kV1, IdentityRefusal::kPerhaps));
    EXPECT_EQ(choice.next(), IdentityVersion::kV0);
    EXPECT_FALSE(choice.Refused(IdentityVersion::kV0, IdentityRefusal::kPerhaps));
  }
}

}  // namespace
}  // namespace cleat::nvme::tls
