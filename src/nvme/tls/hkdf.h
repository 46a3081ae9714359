// SPDX-License-Identifier: Apache-2.0
// Keys of keys, as TLS 1.3 makes them. Any thread; OpenSSL allocates, for some microseconds. What is left of
// keys on the stack is wiped (HmacOf). kResourceExhausted: no memory for keys.
//
// Source: RFC 5869 (HKDF), RFC 8446, 7.1 (its labels).
#pragma once

#include <cstddef>
#include <string_view>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::tls {

using auth::Hash;

// The context of a label has its length in one byte.
inline constexpr size_t kContextBytesMax = 255;

// HKDF-Extract without a salt.
Result<keys::Secret> Extract(Hash hash, const keys::Secret& key);
// HKDF-Expand-Label to `size_bytes`, at most as many as the hash has. context: at most kContextBytesMax.
Result<keys::Secret> ExpandLabel(Hash hash, const keys::Secret& key, std::string_view label,
                                 std::string_view context, size_t size_bytes);

}  // namespace cleat::nvme::tls
