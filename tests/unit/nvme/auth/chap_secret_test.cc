// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/chap_secret.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/nvme/auth/controller.h"

namespace cleat::nvme::auth {
namespace {

// What `nvme gen-dhchap-key` 2.3 (--hmac=0 to 3, --secret=000102..., --nqn) made of the secrets in kTestSecrets: that command prints the
// secret as it is after its transformation.
constexpr const char* kTransformedByNvmeCli[] = {
    "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
    "DHHC-1:01:bHuByyp0b3RFSx1xQPMVO1HKmUWfzveoahfydpW4fNgSLMVm:",
    "DHHC-1:02:yRbznXvUOKyUzpjxLyIgLGvEOxsb9/CBo2/XbRG0sXMHJv918yV2tXSc+gbRp7T1eXmwtA==:",
    "DHHC-1:03:XaedOIjF3axQewl4QMTIr4xwmePzL78hYgnSQQP1S88iKE5wNLtXmomXR19QrsC/88ytGEVjd56B9IxAUHG5cMGgMCQ=:",
};

// The same bytes without a transformation.
std::string Untransformed(std::string text) {
  text[8] = '0';
  return text;
}

TEST(ChapSecret, BecomesTheKeyThatNvmeCliMakesOfTheSame) {
  for (size_t i = 0; i < std::size(kTestSecrets); ++i) {
    const auto ours = ChapSecret::Parse(kTestSecrets[i].text, "it");
    const auto theirs = ChapSecret::Parse(Untransformed(kTransformedByNvmeCli[i]), "it");
    ASSERT_TRUE(ours.ok()) << ours.error().message;
    ASSERT_TRUE(theirs.ok()) << theirs.error().message;
    EXPECT_TRUE(ours->KeyFor(kTestHostNqn).value() == theirs->KeyFor(kTestHostNqn).value()) << i;
    EXPECT_EQ(ours->KeyFor(kTestHostNqn).value().size(), kTestSecrets[i].size_bytes);
  }
}

TEST(ChapSecret, DiffersFromNameToNameWhereThereIsATransformation) {
  const auto plain = ChapSecret::Parse(kTestSecrets[0].text, "it");
  const auto transformed = ChapSecret::Parse(kTestSecrets[1].text, "it");
  EXPECT_TRUE(plain->KeyFor("nqn.a").value() == plain->KeyFor("nqn.b").value());
  EXPECT_FALSE(transformed->KeyFor("nqn.a").value() == transformed->KeyFor("nqn.b").value());
}

TEST(ChapSecret, WithAnyCharacterOfItsBase64ChangedIsRefused) {
  for (const TestSecret& secret : kTestSecrets) {
    const std::string good = secret.text;
    const size_t end = good.find_last_not_of(":=");
    for (size_t at = 10; at <= end; ++at) {
      std::string bad = good;
      bad[at] = bad[at] == 'Q' ? 'R' : 'Q';
      // The last character of what is padded may differ in bits that stand for nothing.
      const bool unused_bits = at == end && good.find('=') != std::string::npos;
      if (!unused_bits) {
        EXPECT_FALSE(ChapSecret::Parse(bad, "it").ok()) << at;
      }
    }
  }
}

TEST(ChapSecret, CutShortAnywhereIsRefused) {
  const std::string good = kTestSecrets[2].text;
  for (size_t length = 0; length < good.size(); ++length)
    EXPECT_FALSE(ChapSecret::Parse(good.substr(0, length), "it").ok()) << length;
}

struct BadText {
  const char* text;
  const char* why;
};
constexpr BadText kBadTexts[] = {
    {"", "does not begin with"},
    {"DHHC-1:00:", "does not begin with"},
    {"DHHC-1:00::", "not base64"},
    {"DHHC-1:00:!!!!:", "not base64"},
    {"DHHC-1:00:====:", "not base64"},
    {"DHHC-1:00:AAEC:", "not of 32, 48 or 64 bytes"},
    {"DHHC-1:04:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "transformation is not one of"},
    {"DHHC-1:1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "does not begin with"},
    {"DHHC-1:0/:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "transformation is not one of"},
    {"DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "size is not that of"},
    {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaS:", "checksum is wrong"},
    {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR", "does not end with a colon"},
    {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n", "does not end with a colon"},
    {"NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "does not begin with"},
};

TEST(ChapSecret, ThatIsNoneIsRefusedWithTheReasonAndTheNextStepAndNothingOfIt) {
  for (const BadText& bad : kBadTexts) {
    const auto secret = ChapSecret::Parse(bad.text, "the host's secret");
    ASSERT_FALSE(secret.ok()) << bad.text;
    const std::string& message = secret.error().message;
    EXPECT_EQ(secret.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(message.starts_with("the host's secret is no DH-HMAC-CHAP secret: ")) << message;
    EXPECT_NE(message.find(bad.why), std::string::npos) << bad.text << ": " << message;
    EXPECT_NE(message.find("nvme gen-dhchap-key"), std::string::npos);
    EXPECT_EQ(message.find("AAEC"), std::string::npos);
  }
}

TEST(ChapSecret, ThatIsLongerThanAnyIsRefusedBeforeItIsLookedAt) {
  const auto secret = ChapSecret::Parse("DHHC-1:00:" + std::string(1 << 20, 'A') + ":", "it");
  ASSERT_FALSE(secret.ok());
  EXPECT_NE(secret.error().message.find("too long"), std::string::npos);
  EXPECT_EQ(std::string(kTestSecrets[3].text).size(), kSecretTextBytesMax);
}

}  // namespace
}  // namespace cleat::nvme::auth
