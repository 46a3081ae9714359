// SPDX-License-Identifier: Apache-2.0
// A key-encryption key (KEK): wraps disks' data keys and the keys of storage clusters, so that they can be stored and sent.
// AES-256 key wrap, RFC 3394 with the default initial value (section 2.2.3.1) for data keys, RFC 5649 (with padding) for
// keys of any length. Immutable; any thread, but no I/O reactor: OpenSSL allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "keys/secret.h"

namespace cleat::keys {

inline constexpr size_t kKekBytes = 32;
inline constexpr size_t kKekIdDigits = 16;
// The integrity check value that wrapping adds.
inline constexpr size_t kWrapExtraBytes = 8;
// What may be wrapped: RFC 3394 takes two blocks of 64 bits or more.
inline constexpr size_t kWrappedBytesMin = 16 + kWrapExtraBytes;
inline constexpr size_t kWrappedBytesMax = 64 + kWrapExtraBytes;

// What RFC 5649 wraps here: other lengths than a key has are refused. The result is a multiple of 8 bytes.
inline constexpr size_t kPaddedKeyBytesMax = 256;
inline constexpr size_t kPaddedWrappedBytesMin = 16;
inline constexpr size_t kPaddedWrappedBytesMax = kPaddedKeyBytesMax + kWrapExtraBytes;

enum class Wrapping {
  kPlain,   // RFC 3394: data keys
  kPadded,  // RFC 5649: keys of any length
};

class Kek {
 public:
  // `bytes`: kKekBytes, else kInvalidArgument.
  static Result<Kek> Make(Secret bytes);
  static Kek Random();

  // Which one it is; says nothing of its bytes. 16 hex digits: the beginning of HMAC-SHA256(kek, "cleat key-encryption
  // key").
  const std::string& id() const { return id_; }

  // kPlain: a multiple of 8 bytes from 16 to 64, the result is kWrapExtraBytes longer. kPadded: 1 to kPaddedKeyBytesMax.
  // Else kInvalidArgument. The same key always gives the same.
  Result<std::vector<uint8_t>> Wrap(const Secret& key, Wrapping wrapping = Wrapping::kPlain) const;
  // kInvalidArgument: no wrapped key by its length. kDataLoss: it was wrapped under another key, or is damaged. Errors name
  // `object`.
  Result<Secret> Unwrap(std::span<const uint8_t> wrapped, std::string_view object,
                        Wrapping wrapping = Wrapping::kPlain) const;

  const Secret& bytes() const { return bytes_; }  // for the file that it is kept in

 private:
  Kek(Secret bytes, std::string id) : bytes_(std::move(bytes)), id_(std::move(id)) {}
  Secret bytes_;
  std::string id_;
};

// Whether `id` looks like one: for what comes from outside.
bool IsKekId(std::string_view id);

}  // namespace cleat::keys
