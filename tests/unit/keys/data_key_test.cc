// SPDX-License-Identifier: Apache-2.0
#include "keys/data_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace cleat::keys::data_key_test {
namespace {

std::vector<uint8_t> Counting(size_t bytes) {
  std::vector<uint8_t> key(bytes);
  std::iota(key.begin(), key.end(), uint8_t{0});
  return key;
}

TEST(DataKey, HasTheLengthOfItsCipher) {
  for (const Cipher cipher : {Cipher::kAes256Xts, Cipher::kAes128Xts}) {
    EXPECT_TRUE(CheckDataKey(cipher, Counting(DataKeyBytes(cipher)), "disks/a").ok());
    for (const size_t wrong : {size_t{0}, size_t{16}, DataKeyBytes(cipher) - 1, DataKeyBytes(cipher) + 1}) {
      const Status refused = CheckDataKey(cipher, Counting(wrong), "disks/a");
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      EXPECT_NE(refused.error().message.find("disks/a: its data key has " + std::to_string(wrong) + " bytes"),
                std::string::npos);
      EXPECT_NE(refused.error().message.find(CipherName(cipher)), std::string::npos);
    }
  }
}

TEST(DataKey, HasTwoDifferentHalves) {
  std::vector<uint8_t> key = Counting(32);
  key.insert(key.end(), key.begin(), key.begin() + 32);
  const Status refused = CheckDataKey(Cipher::kAes256Xts, key, "disks/a");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("two halves"), std::string::npos);
  key.back() ^= 1;
  EXPECT_TRUE(CheckDataKey(Cipher::kAes256Xts, key, "disks/a").ok());
}

}  // namespace
}  // namespace cleat::keys::data_key_test
