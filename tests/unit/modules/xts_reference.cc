// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/modules/xts_reference.h"

#include <openssl/evp.h>

#include <memory>
#include <utility>

#include "base/check.h"

namespace cleat::test {
namespace {

// Electronic codebook: each block by itself.
std::vector<uint8_t> Aes(const std::vector<uint8_t>& key, std::vector<uint8_t> blocks, bool encrypt) {
  const std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context(EVP_CIPHER_CTX_new(),
                                                                                &EVP_CIPHER_CTX_free);
  const EVP_CIPHER* cipher = key.size() == 32 ? EVP_aes_256_ecb() : EVP_aes_128_ecb();
  int written = 0;
  CLEAT_CHECK(EVP_CipherInit_ex(context.get(), cipher, nullptr, key.data(), nullptr, encrypt ? 1 : 0) == 1);
  CLEAT_CHECK(EVP_CIPHER_CTX_set_padding(context.get(), 0) == 1);
  CLEAT_CHECK(EVP_CipherUpdate(context.get(), blocks.data(), &written, blocks.data(),
                               static_cast<int>(blocks.size())) == 1);
  return blocks;
}

// Times x in GF(2^128), with x^128 + x^7 + x^2 + x + 1.
void Double(uint8_t* tweak) {
  uint8_t carry = 0;
  for (int i = 0; i < 16; ++i) {
    const uint8_t next = tweak[i] >> 7;
    tweak[i] = static_cast<uint8_t>(tweak[i] << 1 | carry);
    carry = next;
  }
  if (carry != 0) tweak[0] ^= 0x87;
}

}  // namespace

XtsReference::XtsReference(std::span<const uint8_t> key, uint32_t unit_bytes)
    : data_(key.begin(), key.begin() + static_cast<ptrdiff_t>(key.size() / 2)),
      tweak_(key.begin() + static_cast<ptrdiff_t>(key.size() / 2), key.end()),
      unit_bytes_(unit_bytes) {}

std::vector<uint8_t> XtsReference::Run(std::span<const uint8_t> bytes, uint64_t first_sector,
                                       bool encrypt) const {
  CLEAT_CHECK(bytes.size() % unit_bytes_ == 0);
  std::vector<uint8_t> tweaks;
  for (uint64_t unit = 0; unit < bytes.size() / unit_bytes_; ++unit) {
    std::vector<uint8_t> tweak(16, 0);
    const uint64_t sector = first_sector + unit * unit_bytes_ / 512;
    for (int i = 0; i < 8; ++i) tweak[static_cast<size_t>(i)] = static_cast<uint8_t>(sector >> 8 * i);
    tweak = Aes(tweak_, tweak, true);
    for (uint32_t block = 0; block < unit_bytes_ / 16; ++block) {
      tweaks.insert(tweaks.end(), tweak.begin(), tweak.end());
      Double(tweak.data());
    }
  }
  std::vector<uint8_t> out(bytes.begin(), bytes.end());
  for (size_t i = 0; i < out.size(); ++i) out[i] ^= tweaks[i];
  out = Aes(data_, std::move(out), encrypt);
  for (size_t i = 0; i < out.size(); ++i) out[i] ^= tweaks[i];
  return out;
}

}  // namespace cleat::test
