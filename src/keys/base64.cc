// SPDX-License-Identifier: Apache-2.0
#include "keys/base64.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace cleat::keys {

Secret DecodeBase64(std::string_view text) {
  if (text.empty() || text.size() % 4 != 0 || text.size() / 4 * 3 > kSecretBytesMax) return {};
  const size_t padding = text.size() - (text.find_last_not_of('=') + 1);
  if (padding > 2) return {};
  Secret room = Secret::Zeroes(text.size() / 4 * 3);
  const auto* const from = reinterpret_cast<const unsigned char*>(text.data());
  const int decoded = EVP_DecodeBlock(room.mutable_bytes().data(), from, static_cast<int>(text.size()));
  if (decoded != static_cast<int>(room.size())) return {};
  return Secret::Copy(room.bytes().first(room.size() - padding));
}

Secret EncodeBase64(const Secret& bytes) {
  const size_t length = (bytes.size() + 2) / 3 * 4;
  Secret room = Secret::Zeroes(length + 1);  // and a zero byte
  const int encoded =
      EVP_EncodeBlock(room.mutable_bytes().data(), bytes.bytes().data(), static_cast<int>(bytes.size()));
  CLEAT_CHECK(encoded == static_cast<int>(length));
  return Secret::Copy(room.bytes().first(length));
}

}  // namespace cleat::keys
