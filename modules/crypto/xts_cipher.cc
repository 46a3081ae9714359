// SPDX-License-Identifier: Apache-2.0
#include "modules/crypto/xts_cipher.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "modules/crypto/openssl_xts.h"
#include "modules/crypto/xts_vectors.h"

namespace cleat::modules {
namespace {

std::vector<uint8_t> FromHex(std::string_view hex) {
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(value(hex[i]) << 4 | value(hex[i + 1])));
  }
  return bytes;
}

// The standard's answer as the beginning of the second of three data units: a unit of 4096 bytes begins like one of 512 with
// the same number, and numbers go on from unit to unit. What has no known answer has to come back from decryption.
bool Answers(const XtsImplementation& implementation, const XtsVector& vector, uint32_t unit_bytes) {
  const auto context =
      implementation.MakeContext(vector.cipher, unit_bytes, keys::Secret::Copy(FromHex(vector.key)));
  if (!context) return false;
  const std::vector<uint8_t> known = FromHex(vector.cipher_text);
  std::vector<uint8_t> plain(size_t{3} * unit_bytes);
  for (size_t i = 0; i < plain.size(); ++i) plain[i] = static_cast<uint8_t>(i);
  const uint64_t first_sector = vector.unit - unit_bytes / kSectorBytes;  // 0 wraps, as the tweak may

  std::vector<uint8_t> out(plain.size());
  if (!(*context)->Encrypt(plain.data(), out.data(), first_sector, 3)) return false;
  if (!std::equal(known.begin(), known.end(), out.begin() + unit_bytes)) return false;

  std::vector<uint8_t> single(plain.begin() + unit_bytes, plain.begin() + 2 * ptrdiff_t{unit_bytes});
  if (!(*context)->Encrypt(single.data(), single.data(), vector.unit, 1)) return false;
  if (!std::equal(single.begin(), single.end(), out.begin() + unit_bytes)) return false;

  std::vector<uint8_t> back(plain.size());
  return (*context)->Decrypt(out.data(), back.data(), first_sector, 3) && back == plain &&
         (*context)->Decrypt(out.data(), out.data(), first_sector, 3) && out == plain;
}

}  // namespace

std::span<const XtsImplementation* const> XtsImplementations() {
  static const std::array<const XtsImplementation*, 1> implementations = {&OpenSslXts()};
  return implementations;
}

Status TestXts(const XtsImplementation& implementation) {
  for (const XtsVector& vector : kXtsVectors) {
    for (const uint32_t unit_bytes : {kXtsVectorUnitBytes, kDataUnitBytesMax}) {
      if (Answers(implementation, vector, unit_bytes)) continue;
      return Error(ErrorCode::kInternal,
                   std::string(implementation.name()) + " fails its self-test: " + vector.name +
                       " of IEEE 1619, in data units of " + std::to_string(unit_bytes) + " bytes");
    }
  }
  return Ok{};
}

Result<const XtsImplementation*> ChooseXts(std::span<const XtsImplementation* const> candidates) {
  for (const XtsImplementation* candidate : candidates) {
    const Status tested = TestXts(*candidate);
    if (tested) return candidate;
    spdlog::error("crypto: implementation not used: {}; check libcrypto and this host's processor",
                  tested.error().message);
  }
  return Error(
      ErrorCode::kInternal,
      "no AES-XTS implementation passes its self-test on this machine, so no encrypted disk can be served: "
      "see the log, and check the OpenSSL library and this host's processor");
}

}  // namespace cleat::modules
