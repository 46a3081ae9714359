// SPDX-License-Identifier: Apache-2.0
#include "keys/ceph_key.h"

#include <openssl/evp.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "keys/key_encryption_key.h"

namespace cleat::keys {
namespace {

constexpr size_t kHeaderBytes = 12;
constexpr size_t kBase64BytesMax = (kPaddedKeyBytesMax + 2) / 3 * 4;

Error NoKey() {
  return {ErrorCode::kInvalidArgument,
          "it is no key of a Ceph user: give what 'ceph auth get-key client.NAME' prints, base64 and nothing "
          "else"};
}

}  // namespace

Result<Secret> DecodeCephKey(std::string_view base64) {
  if (base64.empty() || base64.size() % 4 != 0 || base64.size() > kBase64BytesMax) return NoKey();
  const size_t padding = base64.size() - (base64.find_last_not_of('=') + 1);
  if (padding > 2) return NoKey();
  Secret room = Secret::Zeroes(base64.size() / 4 * 3);
  const auto* text = reinterpret_cast<const unsigned char*>(base64.data());
  const int decoded = EVP_DecodeBlock(room.mutable_bytes().data(), text, static_cast<int>(base64.size()));
  if (decoded != static_cast<int>(room.size())) return NoKey();
  const auto bytes = room.bytes().first(room.size() - padding);
  if (bytes.size() <= kHeaderBytes) return NoKey();
  const size_t length = bytes[kHeaderBytes - 2] | size_t{bytes[kHeaderBytes - 1]} << 8;
  if (bytes.size() != kHeaderBytes + length) return NoKey();
  return Secret::Copy(bytes);
}

Secret EncodeCephKey(const Secret& key) {
  const size_t length = (key.size() + 2) / 3 * 4;
  Secret room = Secret::Zeroes(length + 1);  // and a zero byte
  const int encoded =
      EVP_EncodeBlock(room.mutable_bytes().data(), key.bytes().data(), static_cast<int>(key.size()));
  CLEAT_CHECK(encoded == static_cast<int>(length));
  return Secret::Copy(room.bytes().first(length));
}

}  // namespace cleat::keys
