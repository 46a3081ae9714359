// SPDX-License-Identifier: Apache-2.0
// The secrets of this host and an NVMe-oF subsystem, or a discovery service, and of an export and a host, as the engine is told them: wrapped.
// Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cleat::engine {

struct WrappedSecret {
  std::string key_encryption_key;  // the id of what it is wrapped under; empty: there is no such secret
  std::vector<uint8_t> data;

  bool there() const { return !key_encryption_key.empty(); }
  bool operator==(const WrappedSecret&) const = default;
};

struct NvmfSecrets {
  WrappedSecret dhchap_secret;       // the host's
  WrappedSecret dhchap_ctrl_secret;  // the subsystem's, or the service's; only together with the host's
  WrappedSecret tls_psk;

  bool any() const { return dhchap_secret.there() || dhchap_ctrl_secret.there() || tls_psk.there(); }
  bool operator==(const NvmfSecrets&) const = default;
};

}  // namespace cleat::engine
