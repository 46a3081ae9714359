// SPDX-License-Identifier: Apache-2.0
#include "keys/ceph_key.h"

#include <algorithm>
#include <string>

#include "keys/base64.h"
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
  if (base64.size() > kBase64BytesMax) return NoKey();
  Secret bytes = DecodeBase64(base64);
  if (bytes.size() <= kHeaderBytes) return NoKey();
  const auto header = bytes.bytes().first(kHeaderBytes);
  const size_t length = header[kHeaderBytes - 2] | size_t{header[kHeaderBytes - 1]} << 8;
  if (bytes.size() != kHeaderBytes + length) return NoKey();
  return bytes;
}

Secret EncodeCephKey(const Secret& key) {
  return EncodeBase64(key);
}

}  // namespace cleat::keys
