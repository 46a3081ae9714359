// SPDX-License-Identifier: Apache-2.0
// What a disk's data key has to be like. Checked when it arrives, and again before it is used. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"

namespace cleat::keys {

// As dm-crypt calls them: aes-xts-plain64 with a key of 512 and 256 bits (IEEE 1619-2018: two AES keys, one for the data
// and one for the tweak).
enum class Cipher : uint8_t { kAes256Xts, kAes128Xts };

const char* CipherName(Cipher cipher);  // "AES-256-XTS"
size_t DataKeyBytes(Cipher cipher);     // 64, 32
inline constexpr size_t kDataKeyBytesMax = 64;

// kInvalidArgument, naming `object` and nothing of the key: it has not the cipher's length, or its two halves are the same
// (IEEE 1619-2018 with NIST SP 800-38E's guidance, FIPS 140 IG A.9: the tweak would give the data key away).
Status CheckDataKey(Cipher cipher, std::span<const uint8_t> key, std::string_view object);

}  // namespace cleat::keys
