// SPDX-License-Identifier: Apache-2.0
// One side of a Diffie-Hellman exchange in a group of RFC 7919: a key of its own for each exchange, from OpenSSL's random numbers.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.5; RFC 7919, 5.1 (which values of a peer are good); NIST SP 800-56A revision 3,
// 5.7.1.1 (the result keeps its leading zeros). Any thread, but no I/O reactor: from a millisecond (ffdhe2048) to a tenth of a second
// (ffdhe8192) of one processor.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"

namespace cleat::nvme::auth {

// The key of a side that has to give its value before it knows the peer's. For one exchange. Move-only; it takes some KiB of the arena for
// keys (keys/secret_arena.h), and is wiped when it goes.
class DhKey {
 public:
  // Not of kNull. kInternal: OpenSSL cannot do it.
  static Result<DhKey> Make(DhGroup group);

  const std::vector<uint8_t>& value() const { return value_; }  // for the peer: BytesOf(group)
  // What only the two sides can know: BytesOf(group). `peer`: the value of the other side, big-endian. kInvalidArgument: it is no good value
  // of the group. kInternal: OpenSSL cannot do it.
  Result<keys::Secret> Derive(std::span<const uint8_t> peer) const;

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const;
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  DhKey(DhGroup group, Key key, std::vector<uint8_t> value)
      : group_(group), key_(std::move(key)), value_(std::move(value)) {}
  DhGroup group_;
  Key key_;
  std::vector<uint8_t> value_;
};

struct DhExchange {
  std::vector<uint8_t> value;  // ours, for the peer: BytesOf(group)
  keys::Secret shared;         // what only the two sides can know: BytesOf(group)
};

// Both in one. Errors as those of DhKey.
Result<DhExchange> ExchangeDh(DhGroup group, std::span<const uint8_t> peer);

}  // namespace cleat::nvme::auth
