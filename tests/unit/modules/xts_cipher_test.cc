// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/xts_cipher.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "base/random.h"
#include "modules/crypto/crypto.h"
#include "modules/crypto/openssl_xts.h"
#include "modules/crypto/xts_vectors.h"
#include "tests/unit/keys/hex.h"
#include "tests/unit/modules/crypto_rig.h"
#include "tests/unit/modules/xts_reference.h"

namespace cleat::modules::xts_cipher_test {
namespace {

using test::FromHex;

std::vector<uint8_t> Counting(size_t bytes) {
  std::vector<uint8_t> plain(bytes);
  for (size_t i = 0; i < bytes; ++i) plain[i] = static_cast<uint8_t>(i);
  return plain;
}

// Encrypts with the reference, wrongly when asked.
class Flawed final : public XtsImplementation {
 public:
  struct Flaw {
    bool counts_units = false;  // ... of 4096 bytes by one each
    bool big_endian = false;
    bool decrypts_nothing = false;
    bool ignores_later_units = false;
    bool fails = false;
  };
  explicit Flawed(Flaw flaw) : flaw_(flaw) {}
  const char* name() const override { return "flawed"; }
  Result<std::unique_ptr<XtsContext>> MakeContext(keys::Cipher, uint32_t unit_bytes,
                                                  const keys::Secret& key) const override {
    struct Context final : XtsContext {
      Context(const Flaw& f, uint32_t unit, const keys::Secret& key)
          : flaw(f), bytes(unit), reference(key.bytes(), unit) {}
      bool Run(const uint8_t* in, uint8_t* out, uint64_t sector, uint64_t units, bool encrypt) const {
        if (flaw.fails) return false;
        for (uint64_t unit = 0; unit < units; ++unit) {
          uint64_t number = sector + unit * (flaw.counts_units ? 1 : bytes / 512);
          if (flaw.big_endian) number = __builtin_bswap64(number);
          std::vector<uint8_t> done(in + unit * bytes, in + (unit + 1) * bytes);
          if (unit == 0 || !flaw.ignores_later_units) {
            done = reference.Run(done, number, encrypt);
          }
          std::copy(done.begin(), done.end(), out + unit * bytes);
        }
        return true;
      }
      bool Encrypt(const uint8_t* in, uint8_t* out, uint64_t sector, uint64_t units) override {
        return Run(in, out, sector, units, true);
      }
      bool Decrypt(const uint8_t* in, uint8_t* out, uint64_t sector, uint64_t units) override {
        return flaw.decrypts_nothing || Run(in, out, sector, units, false);
      }
      Flaw flaw;
      uint32_t bytes;
      test::XtsReference reference;
    };
    return std::unique_ptr<XtsContext>(std::make_unique<Context>(flaw_, unit_bytes, key));
  }

 private:
  const Flaw flaw_;
};

TEST(XtsCipher, ReferenceGivesTheStandardsAnswers) {
  // IEEE 1619-2007, Annex B: vectors 1 and 2 have units of 32 bytes, which the reference takes too.
  const test::XtsReference first(std::vector<uint8_t>(32, 0), 32);
  EXPECT_EQ(first.Encrypt(std::vector<uint8_t>(32, 0), 0),
            FromHex("917cf69ebd68b2ec9b9fe9a3eadda692cd43d2f59598ed858c02c2652fbf922e"));
  for (const XtsVector& vector : kXtsVectors) {
    const test::XtsReference reference(FromHex(vector.key), kXtsVectorUnitBytes);
    EXPECT_EQ(reference.Encrypt(Counting(512), vector.unit * 512), FromHex(vector.cipher_text))
        << vector.name;
    EXPECT_EQ(reference.Decrypt(FromHex(vector.cipher_text), vector.unit * 512), Counting(512))
        << vector.name;
  }
}

TEST(XtsCipher, OpenSslGivesTheStandardsAnswers) {
  for (const XtsVector& vector : kXtsVectors) {
    auto context = OpenSslXts().MakeContext(vector.cipher, 512, keys::Secret::Copy(FromHex(vector.key)));
    ASSERT_TRUE(context.ok());
    std::vector<uint8_t> text = Counting(512);
    EXPECT_TRUE((*context)->Encrypt(text.data(), text.data(), vector.unit, 1));
    EXPECT_EQ(text, FromHex(vector.cipher_text)) << vector.name;
  }
}

TEST(XtsCipher, AgreesWithTheReferenceOnRunsOfAnyLengthAndAlignment) {
  Random random(4);
  for (const test::CryptoShape& shape : test::kCryptoShapes) {
    const std::vector<uint8_t> key = test::TestKey(shape.cipher);
    const test::XtsReference reference(key, shape.unit_bytes);
    auto context = OpenSslXts().MakeContext(shape.cipher, shape.unit_bytes, keys::Secret::Copy(key));
    ASSERT_TRUE(context.ok());
    for (int round = 0; round < 60; ++round) {
      const uint64_t units = random.Between(1, 9);
      const uint64_t bytes = units * shape.unit_bytes;
      const uint64_t from = random.Below(64);
      const uint64_t to = random.Below(64);
      const uint64_t offset = shape.unit_bytes * (random.Next() % (uint64_t{1} << random.Between(1, 51)));
      std::vector<uint8_t> in = test::RandomBytes(bytes + 64, random.Next());
      std::vector<uint8_t> out(bytes + 64);
      ASSERT_TRUE((*context)->Encrypt(in.data() + from, out.data() + to, offset / 512, units));
      const auto expected = reference.Encrypt(std::span(in).subspan(from, bytes), offset);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + static_cast<ptrdiff_t>(to)));
      ASSERT_TRUE((*context)->Decrypt(out.data() + to, out.data() + to, offset / 512, units));
      ASSERT_TRUE(std::equal(out.begin() + static_cast<ptrdiff_t>(to),
                             out.begin() + static_cast<ptrdiff_t>(to + bytes),
                             in.begin() + static_cast<ptrdiff_t>(from)));
    }
  }
}

TEST(XtsCipher, SelfTestPassesWhatIsRightAndFindsEveryFlaw) {
  EXPECT_TRUE(TestXts(OpenSslXts()).ok());
  EXPECT_TRUE(TestXts(Flawed({})).ok()) << "the reference itself";
  EXPECT_FALSE(TestXts(Flawed({.counts_units = true})).ok());
  EXPECT_FALSE(TestXts(Flawed({.big_endian = true})).ok());
  EXPECT_FALSE(TestXts(Flawed({.decrypts_nothing = true})).ok());
  EXPECT_FALSE(TestXts(Flawed({.ignores_later_units = true})).ok());
  EXPECT_FALSE(TestXts(Flawed({.fails = true})).ok());
}

TEST(XtsCipher, TheFirstThatPassesIsChosen) {
  const Flawed broken({.big_endian = true});
  const Flawed good({});
  const std::array<const XtsImplementation*, 3> candidates = {&broken, &good, &OpenSslXts()};
  EXPECT_EQ(ChooseXts(candidates).value(), &good);
  EXPECT_EQ(ChooseXts().value(), &OpenSslXts());
}

TEST(XtsCipher, WithoutAnyThatWorksNoEncryptedDiskIsOpened) {
  const Flawed broken({.fails = true});
  const std::array<const XtsImplementation*, 1> candidates = {&broken};
  const CryptoHub hub(candidates);
  ASSERT_FALSE(hub.status().ok());
  test::Storage storage(1 << 20);
  const auto made = test::CryptoRig::MakeCrypto(storage, test::kCryptoShapes[0], hub);
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("disks/c: no AES-XTS implementation passes its self-test"),
            std::string::npos)
      << made.error().message;
}

}  // namespace
}  // namespace cleat::modules::xts_cipher_test
