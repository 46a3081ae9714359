// SPDX-License-Identifier: Apache-2.0
// A host that a subsystem lets in, and what has to be proved before it is believed to be that host. Values; the secrets are shared by all
// connections of the host and never changed.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "nvme/auth/chap_secret.h"
#include "nvme/tls/psk.h"

namespace cleat::nvme::target {

struct HostAccess {
  // A host that is believed to be the one that it says it is.
  static HostAccess Named(std::string_view nqn) { return {.nqn = std::string(nqn), .chap = {}, .psk = {}}; }

  std::string nqn;
  // DH-HMAC-CHAP: `host` is what the host has to prove that it has, on each of its queues; `controller` is what the subsystem proves itself
  // with, to a host that asks. nullptr: the NQN is believed.
  std::shared_ptr<const auth::ChapSecrets> chap;
  // The pre-shared key that each of its connections has to be TLS with. nullptr: it connects in plain TCP.
  std::shared_ptr<const tls::Psk> psk;
};

// Whether the two ask the same of a host, by what the secrets are and not where they lie: what was unwrapped anew is the same.
bool AskTheSame(const HostAccess& one, const HostAccess& other);

// Whom a connection that is TLS was made for: the two names that the identity of its key has, and by which pre-shared key, as that may be
// another one by the time of its Connect.
struct SecuredAs {
  std::string host_nqn;
  std::string subsystem_nqn;  // or the discovery service's
  std::shared_ptr<const tls::Psk> psk;
};

// The key that a TLS connection is made with, and for whom.
struct SecuredKey {
  tls::ConnectionKey key;
  SecuredAs as;
};

}  // namespace cleat::nvme::target
