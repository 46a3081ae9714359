// SPDX-License-Identifier: Apache-2.0
#include "nvme/auth/responses.h"

#include "base/check.h"

namespace cleat::nvme::auth {
namespace {

// The roles say who proves what to whom: they differ, so that a response of one direction is never one of the other.
struct Side {
  std::string_view role;
  std::string_view nqn;
  std::string_view peer_nqn;
};

Result<keys::Secret> ResponseOf(const Terms& terms, const Side& side, const ChapSecret& secret,
                                const Nonce& challenge) {
  CLEAT_CHECK(challenge.value.size() == BytesOf(terms.hash));
  keys::Secret value;
  if (terms.shared == nullptr) {
    value = keys::Secret::Copy(challenge.value);
  } else {
    CLEAT_ASSIGN(const keys::Secret session_key, DigestOf(terms.hash, terms.shared->bytes()));
    CLEAT_ASSIGN(value, HmacOf(terms.hash, session_key.bytes(), {challenge.value}));
  }
  const uint8_t numbers[] = {static_cast<uint8_t>(challenge.sequence),
                             static_cast<uint8_t>(challenge.sequence >> 8),
                             static_cast<uint8_t>(challenge.sequence >> 16),
                             static_cast<uint8_t>(challenge.sequence >> 24),
                             static_cast<uint8_t>(terms.transaction),
                             static_cast<uint8_t>(terms.transaction >> 8),
                             0};  // SC_C: no secure channel
  const uint8_t zero[] = {0};
  CLEAT_ASSIGN(const keys::Secret key, secret.KeyFor(side.nqn));
  return HmacOf(
      terms.hash, key.bytes(),
      {value.bytes(), numbers, AsBytes(side.role), AsBytes(side.nqn), zero, AsBytes(side.peer_nqn)});
}

}  // namespace

Result<keys::Secret> HostResponse(const Terms& terms, const ChapSecret& secret, const Nonce& challenge) {
  return ResponseOf(terms, {.role = "HostHost", .nqn = terms.host_nqn, .peer_nqn = terms.subsystem_nqn},
                    secret, challenge);
}

Result<keys::Secret> ControllerResponse(const Terms& terms, const ChapSecret& secret,
                                        const Nonce& challenge) {
  return ResponseOf(terms, {.role = "Controller", .nqn = terms.subsystem_nqn, .peer_nqn = terms.host_nqn},
                    secret, challenge);
}

}  // namespace cleat::nvme::auth
