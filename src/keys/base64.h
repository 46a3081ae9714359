// SPDX-License-Identifier: Apache-2.0
// Base64 (RFC 4648, section 4) of keys, in memory for keys. Any thread.
#pragma once

#include <string_view>

#include "keys/secret.h"

namespace cleat::keys {

// What the text stands for, without its padding. Empty: the text is empty, is no base64, or stands for more than a Secret may have.
// Characters that are none of the alphabet's are refused; the unused bits of the last one are not looked at.
Secret DecodeBase64(std::string_view text);

// The text has padding. At most 3,000 bytes.
Secret EncodeBase64(const Secret& bytes);

}  // namespace cleat::keys
