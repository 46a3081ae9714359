// SPDX-License-Identifier: Apache-2.0
// One side of a Diffie-Hellman exchange in a group of RFC 7919: a key of its own for each exchange, from OpenSSL's random numbers.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.5; RFC 7919, 5.1 (which values of a peer are good); NIST SP 800-56A revision 3,
// 5.7.1.1 (the result keeps its leading zeros). Any thread, but no I/O reactor: from a millisecond (ffdhe2048) to a tenth of a second
// (ffdhe8192) of one processor.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::auth {

struct DhExchange {
  std::vector<uint8_t> value;  // ours, for the peer: BytesOf(group)
  keys::Secret shared;         // what only the two sides can know: BytesOf(group)
};

// `peer`: the value of the other side, big-endian. kInvalidArgument: it is no good value of the group. kInternal: OpenSSL cannot do it.
Result<DhExchange> ExchangeDh(DhGroup group, std::span<const uint8_t> peer);

}  // namespace cleat::nvme::auth
