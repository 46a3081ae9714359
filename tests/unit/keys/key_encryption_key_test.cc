// SPDX-License-Identifier: Apache-2.0
#include "keys/key_encryption_key.h"

#include <gtest/gtest.h>

#include "keys/ceph_key.h"
#include "tests/unit/keys/hex.h"

namespace cleat::keys::key_encryption_key_test {
namespace {

using test::FromHex;

Kek Standards() {
  return Kek::Make(Secret::Copy(FromHex("000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F")))
      .value();
}

struct Vector {
  const char* section;
  const char* key_data;
  const char* wrapped;
};
// RFC 3394, section 4: those with a 256-bit KEK.
constexpr Vector kVectors[] = {
    {"4.3", "00112233445566778899AABBCCDDEEFF", "64E8C3F9CE0F5BA263E9777905818A2A93C8191E7D6E8AE7"},
    {"4.5", "00112233445566778899AABBCCDDEEFF0001020304050607",
     "A8F9BC1612C68B3FF6E6F4FBE30E71E4769C8B80A32CB8958CD5D17D6B254DA1"},
    {"4.6", "00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F",
     "28C9F404C4B810F4CBCCB35CFB87F8263F5786E2D80ED326CBC7F0E71A99F43BFB988B9B7A02DD21"},
};

TEST(KeyEncryptionKey, WrapsAsTheStandardDoes) {
  const Kek kek = Standards();
  for (const Vector& vector : kVectors) {
    const auto wrapped = kek.Wrap(Secret::Copy(FromHex(vector.key_data)));
    ASSERT_TRUE(wrapped.ok()) << vector.section << ": " << wrapped.error().message;
    EXPECT_EQ(*wrapped, FromHex(vector.wrapped)) << vector.section;
    const auto unwrapped = kek.Unwrap(*wrapped, "disks/a");
    ASSERT_TRUE(unwrapped.ok()) << vector.section << ": " << unwrapped.error().message;
    EXPECT_TRUE(*unwrapped == Secret::Copy(FromHex(vector.key_data))) << vector.section;
  }
}

TEST(KeyEncryptionKey, SaysNothingButThatItIsDamaged) {
  const Kek kek = Standards();
  const Secret key = Secret::Copy(std::vector<uint8_t>(64, 3));
  const std::vector<uint8_t> wrapped = kek.Wrap(key).value();
  ASSERT_EQ(wrapped.size(), 72U);
  for (size_t i = 0; i < wrapped.size(); ++i) {
    std::vector<uint8_t> damaged = wrapped;
    damaged[i] ^= 0x10;
    const auto unwrapped = kek.Unwrap(damaged, "disks/a");
    ASSERT_FALSE(unwrapped.ok()) << i;
    EXPECT_EQ(unwrapped.error().code, ErrorCode::kDataLoss);
    EXPECT_EQ(unwrapped.error().message, "disks/a: its data key can't be unwrapped with key-encryption key " +
                                             kek.id() + ": it was wrapped under another key or is damaged");
  }
  EXPECT_EQ(Kek::Random().Unwrap(wrapped, "disks/a").error().code, ErrorCode::kDataLoss);
  EXPECT_TRUE(kek.Unwrap(wrapped, "disks/a").ok()) << "an error leaves nothing behind";
}

TEST(KeyEncryptionKey, RefusesWhatIsNoWrappedKeyByItsLength) {
  const Kek kek = Standards();
  for (const size_t bytes : {0, 8, 16, 23, 71, 73, 80, 4096}) {
    EXPECT_EQ(kek.Unwrap(std::vector<uint8_t>(bytes, 1), "disks/a").error().code, ErrorCode::kInvalidArgument)
        << bytes;
  }
  for (const size_t bytes : {0, 8, 17, 72, 4096}) {
    EXPECT_EQ(kek.Wrap(Secret::Zeroes(bytes)).error().code, ErrorCode::kInvalidArgument) << bytes;
  }
}

// A Ceph key of 28 bytes and one of three, as python3-cryptography wraps them (RFC 5649).
TEST(KeyEncryptionKey, WrapsKeysOfAnyLengthAsTheStandardWithPaddingDoes) {
  const Kek kek = Standards();
  const struct {
    const char* key;
    const char* wrapped;
  } vectors[] = {
      {"01000001020304050607"
       "1000"
       "404142434445464748494A4B4C4D4E4F",
       "228934C9C85A4FB3AAA2657B75A05ACD09E0DB37BB957F85B653BC44034DDBA31851C301DC8A32EE"},
      {"616263", "085C8A5AEB8872B60539C4314C7CDAFC"},
  };
  for (const auto& vector : vectors) {
    const Secret key = Secret::Copy(FromHex(vector.key));
    const auto wrapped = kek.Wrap(key, Wrapping::kPadded);
    ASSERT_TRUE(wrapped.ok()) << wrapped.error().message;
    EXPECT_EQ(*wrapped, FromHex(vector.wrapped));
    const auto unwrapped = kek.Unwrap(*wrapped, "clusters/a", Wrapping::kPadded);
    ASSERT_TRUE(unwrapped.ok()) << unwrapped.error().message;
    EXPECT_TRUE(*unwrapped == key);
    for (size_t i = 0; i < wrapped->size(); ++i) {
      std::vector<uint8_t> damaged = *wrapped;
      damaged[i] ^= 1;
      EXPECT_EQ(kek.Unwrap(damaged, "clusters/a", Wrapping::kPadded).error().code, ErrorCode::kDataLoss) << i;
    }
    EXPECT_FALSE(kek.Unwrap(*wrapped, "clusters/a").ok()) << "not as RFC 3394 wraps";
  }
  EXPECT_FALSE(kek.Wrap(Secret(), Wrapping::kPadded).ok());
  EXPECT_FALSE(kek.Wrap(Secret::Zeroes(kPaddedKeyBytesMax + 1), Wrapping::kPadded).ok());
}

TEST(CephKey, IsReadWrittenAndRefused) {
  constexpr std::string_view kText = "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==";
  const auto key = DecodeCephKey(kText);
  ASSERT_TRUE(key.ok()) << key.error().message;
  EXPECT_EQ(key->size(), 28U);
  const Secret text = EncodeCephKey(*key);
  EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(text.bytes().data()), text.size()), kText);
  for (const std::string_view no :
       {"", "AQAA", "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw=", "AQAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==\n",
        "AQAAAQIDBAUGBxEAQEFCQ0RFRkdISUpLTE1OTw==", "!QAAAQIDBAUGBxAAQEFCQ0RFRkdISUpLTE1OTw==", "===="}) {
    const auto refused = DecodeCephKey(no);
    ASSERT_FALSE(refused.ok()) << no;
    EXPECT_EQ(refused.error().message.find("QEFC"), std::string::npos) << "nothing of what it was";
  }
}

TEST(KeyEncryptionKey, HasAnIdOfItsOwn) {
  EXPECT_TRUE(IsKekId(Standards().id())) << Standards().id();
  // HMAC-SHA256 over the purpose, computed with: openssl dgst -sha256 -mac hmac -macopt hexkey:...
  EXPECT_EQ(Standards().id(), "076469d62af38c33");
  EXPECT_NE(Kek::Random().id(), Kek::Random().id());
  for (const char* no : {"", "0123456789abcde", "0123456789abcdeg", "0123456789ABCDEF", "0123456789abcdef0"})
    EXPECT_FALSE(IsKekId(no)) << no;
  EXPECT_EQ(Kek::Make(Secret::Zeroes(16)).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cleat::keys::key_encryption_key_test
