// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/algorithms.h"

#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <memory>
#include <string>

#include "base/check.h"
#include "keys/traces.h"

namespace cleat::nvme::auth {
namespace {

struct HashRow {
  size_t size_bytes;
  const char* name;
};
constexpr HashRow kHashes[] = {{32, "SHA-256"}, {48, "SHA-384"}, {64, "SHA-512"}};

struct GroupRow {
  size_t size_bytes;
  const char* name;
};
constexpr GroupRow kGroups[] = {{0, "null"},        {256, "ffdhe2048"}, {384, "ffdhe3072"},
                                {512, "ffdhe4096"}, {768, "ffdhe6144"}, {1024, "ffdhe8192"}};

const HashRow& RowOf(Hash hash) {
  const auto at = static_cast<size_t>(hash) - 1;
  CLEAT_CHECK(at < std::size(kHashes));
  return kHashes[at];
}

const GroupRow& RowOf(DhGroup group) {
  const auto at = static_cast<size_t>(group);
  CLEAT_CHECK(at < std::size(kGroups));
  return kGroups[at];
}

}  // namespace

std::optional<Hash> HashOf(uint8_t id) {
  if (id == 0 || id > std::size(kHashes)) return std::nullopt;
  return static_cast<Hash>(id);
}

std::optional<DhGroup> DhGroupOf(uint8_t id) {
  if (id >= std::size(kGroups)) return std::nullopt;
  return static_cast<DhGroup>(id);
}

size_t BytesOf(Hash hash) {
  return RowOf(hash).size_bytes;
}
size_t BytesOf(DhGroup group) {
  return RowOf(group).size_bytes;
}
const char* NameOf(Hash hash) {
  return RowOf(hash).name;
}
const char* NameOf(DhGroup group) {
  return RowOf(group).name;
}

Error NoMemoryForKeys(std::string_view what) {
  ERR_clear_error();
  return {ErrorCode::kResourceExhausted, "no memory for keys is left to OpenSSL, for " + std::string(what) +
                                             ": serve fewer encrypted disks and connections with one engine"};
}

// All that can fail here is what allocates: the hashes are OpenSSL's own, and their sizes known.
Result<keys::Secret> HmacOf(Hash hash, std::span<const uint8_t> key, Parts parts) {
  const std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr),
                                                              &EVP_MAC_free);
  if (mac == nullptr) return NoMemoryForKeys("an HMAC");
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(EVP_MAC_CTX_new(mac.get()),
                                                                          &EVP_MAC_CTX_free);
  // OpenSSL reads the name, whatever its type says.
  char* const name = const_cast<char*>(NameOf(hash));
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name, 0),
                               OSSL_PARAM_construct_end()};
  bool good = context != nullptr && EVP_MAC_init(context.get(), key.data(), key.size(), params) == 1;
  for (const auto part : parts) good = good && EVP_MAC_update(context.get(), part.data(), part.size()) == 1;
  keys::Secret result = keys::Secret::Zeroes(BytesOf(hash));
  size_t written = 0;
  good = good && EVP_MAC_final(context.get(), result.mutable_bytes().data(), &written, result.size()) == 1;
  keys::WipeTraces();
  if (!good) return NoMemoryForKeys("an HMAC");
  CLEAT_CHECK(written == result.size());
  return result;
}

Result<keys::Secret> DigestOf(Hash hash, std::span<const uint8_t> bytes) {
  keys::Secret result = keys::Secret::Zeroes(BytesOf(hash));
  size_t written = 0;
  const bool good = EVP_Q_digest(nullptr, NameOf(hash), nullptr, bytes.data(), bytes.size(),
                                 result.mutable_bytes().data(), &written) == 1;
  keys::WipeTraces();
  if (!good) return NoMemoryForKeys("a digest");
  CLEAT_CHECK(written == result.size());
  return result;
}

}  // namespace cleat::nvme::auth
