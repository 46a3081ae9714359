// SPDX-License-Identifier: Apache-2.0
// The responses of DH-HMAC-CHAP: what only a side can know that has the secret, of a challenge that was made for this one transaction.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.13.5. Pure; any thread, but no I/O reactor: OpenSSL allocates.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "keys/secret.h"
#include "nvme/auth/algorithms.h"
#include "nvme/auth/chap_secret.h"

namespace cleat::nvme::auth {

// What both responses of one transaction have in common.
struct Terms {
  Hash hash = Hash::kSha256;
  uint16_t transaction = 0;  // T_ID
  std::string_view host_nqn;
  std::string_view subsystem_nqn;
  const keys::Secret* shared = nullptr;  // what the DH exchange gave; nullptr: there was none
};

struct Nonce {
  uint32_t sequence = 0;           // S1, S2
  std::span<const uint8_t> value;  // C1, C2: BytesOf(hash)
};

// The host's, to the controller's challenge. kResourceExhausted: no memory for keys.
Result<keys::Secret> HostResponse(const Terms& terms, const ChapSecret& secret, const Nonce& challenge);
// The controller's, to the host's.
Result<keys::Secret> ControllerResponse(const Terms& terms, const ChapSecret& secret, const Nonce& challenge);

}  // namespace cleat::nvme::auth
