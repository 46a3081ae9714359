// SPDX-License-Identifier: Apache-2.0
// The secret of a Ceph user, as a keyring has it: base64 of a CryptoKey (Ceph's src/auth/Crypto.h), which is little-endian
// type (2 bytes), time of creation (4 and 4), length of the secret (2), secret. Wrapped is what the base64 stands for.
// Pure functions; any thread.
#pragma once

#include <string_view>

#include "base/result.h"
#include "keys/secret.h"

namespace cleat::keys {

// kInvalidArgument when it is none; the error says nothing of what it is instead.
Result<Secret> DecodeCephKey(std::string_view base64);
// The base64 of it.
Secret EncodeCephKey(const Secret& key);

}  // namespace cleat::keys
