// SPDX-License-Identifier: Apache-2.0
// The hashes and Diffie-Hellman groups of DH-HMAC-CHAP by their numbers, and the two functions that all of its values are made with.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.5; the groups: RFC 7919, appendix A. Pure; any thread, but no I/O reactor
// for what calls OpenSSL (HmacOf, DigestOf): it allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "base/result.h"
#include "keys/secret.h"

namespace cleat::nvme::auth {

enum class Hash : uint8_t { kSha256 = 1, kSha384 = 2, kSha512 = 3 };

enum class DhGroup : uint8_t {
  kNull = 0,  // no exchange: who listens can try secrets against what was heard
  kFfdhe2048 = 1,
  kFfdhe3072 = 2,
  kFfdhe4096 = 3,
  kFfdhe6144 = 4,
  kFfdhe8192 = 5,
};

// Fills the span with random bytes that nobody can predict.
using RandomBytes = std::function<void(std::span<uint8_t>)>;

inline constexpr size_t kHashBytesMax = 64;
inline constexpr size_t kDhBytesMax = 1024;

// nullopt: there is none of that number.
std::optional<Hash> HashOf(uint8_t id);
std::optional<DhGroup> DhGroupOf(uint8_t id);

size_t BytesOf(Hash hash);
size_t BytesOf(DhGroup group);  // of a value of the group; kNull: 0

const char* NameOf(Hash hash);      // "SHA-256", as OpenSSL knows it too
const char* NameOf(DhGroup group);  // "ffdhe2048", as OpenSSL knows it too; "null"

inline std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The HMAC or digest of all parts one after the other. The results are Secrets since most of them are, or are made of one; what OpenSSL
// leaves of them on the stack is wiped.
//   kResourceExhausted  OpenSSL has no memory for it (keys/secret_arena.h)
using Parts = std::initializer_list<std::span<const uint8_t>>;
Result<keys::Secret> HmacOf(Hash hash, std::span<const uint8_t> key, Parts parts);
Result<keys::Secret> DigestOf(Hash hash, std::span<const uint8_t> bytes);

// The error of what could not be made for want of memory for keys. The thread's queue of OpenSSL's errors is emptied.
Error NoMemoryForKeys(std::string_view what);

}  // namespace cleat::nvme::auth
