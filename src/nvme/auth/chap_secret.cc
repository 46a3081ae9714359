// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/chap_secret.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "keys/base64.h"

namespace cleat::nvme::auth {
namespace {

constexpr std::string_view kPrefix = "DHHC-1:";
constexpr size_t kBase64At = 10;  // behind the two digits and their colon
constexpr size_t kCrcBytes = 4;

Error NoSecret(std::string_view what, std::string_view why) {
  return {ErrorCode::kInvalidArgument, std::string(what) + " is no DH-HMAC-CHAP secret: " + std::string(why) +
                                           "; give what 'nvme gen-dhchap-key' prints, DHHC-1:HH:BASE64:"};
}

// The two digits. nullopt within: no transformation.
Result<std::optional<Hash>> TransformationOf(std::string_view digits, std::string_view what) {
  if (digits == "00") return std::optional<Hash>();
  if (digits[0] == '0' && digits[1] >= '1') {
    const std::optional<Hash> hash = HashOf(static_cast<uint8_t>(digits[1] - '0'));
    if (hash) return hash;
  }
  return NoSecret(what, "its transformation is not one of 00, 01, 02 and 03");
}

}  // namespace

Result<ChapSecret> ChapSecret::Parse(std::string_view text, std::string_view what) {
  if (text.size() > kSecretTextBytesMax) return NoSecret(what, "it is too long");
  if (!text.starts_with(kPrefix) || text.size() <= kBase64At || text[kBase64At - 1] != ':')
    return NoSecret(what, "it does not begin with DHHC-1:HH:");
  if (!text.ends_with(':')) return NoSecret(what, "it does not end with a colon");
  CLEAT_ASSIGN(const std::optional<Hash> transformation,
               TransformationOf(text.substr(kPrefix.size(), 2), what));
  text.remove_suffix(1);
  const keys::Secret room = keys::DecodeBase64(text.substr(kBase64At));
  if (room.empty()) return NoSecret(what, "what is behind the second colon is not base64");
  const size_t size_bytes = room.size() - std::min(kCrcBytes, room.size());
  if (size_bytes != BytesOf(Hash::kSha256) && size_bytes != BytesOf(Hash::kSha384) &&
      size_bytes != BytesOf(Hash::kSha512)) {
    return NoSecret(what, "it is not of 32, 48 or 64 bytes");
  }
  if (transformation && size_bytes != BytesOf(*transformation))
    return NoSecret(what, "its size is not that of its transformation's hash");
  uint32_t crc = 0;
  std::memcpy(&crc, room.bytes().data() + size_bytes, sizeof(crc));
  if (crc != ::crc32(0, room.bytes().data(), static_cast<uInt>(size_bytes)))
    return NoSecret(what, "its checksum is wrong, so that a part of it was lost or changed");
  return ChapSecret(keys::Secret::Copy(room.bytes().first(size_bytes)), transformation);
}

bool ChapSecret::operator==(const ChapSecret& other) const {
  return transformation_ == other.transformation_ && bytes_.size() == other.bytes_.size() &&
         keys::EqualInConstantTime(bytes_.bytes(), other.bytes_.bytes());
}

Result<keys::Secret> ChapSecret::KeyFor(std::string_view nqn) const {
  if (!transformation_) return bytes_.Copy();
  return HmacOf(*transformation_, bytes_.bytes(), {AsBytes(nqn), AsBytes("NVMe-over-Fabrics")});
}

}  // namespace cleat::nvme::auth
