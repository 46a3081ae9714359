// SPDX-License-Identifier: Apache-2.0
// The vhost-user protocol engine behind a relay, as the rest of the engine sees it: something that a relay
// connects to and that negotiates, validates and answers. The real one is VhostLibrary (librte_vhost); tests
// have a pretend one.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "base/unique_fd.h"
#include "vhost/session.h"

namespace cleat::vhost {

class ProtocolLibrary {
 public:
  virtual ~ProtocolLibrary() = default;

  // How many devices it takes at a time.
  virtual uint32_t devices_max() const = 0;

  // A connected, non-blocking stream socket to a fresh device that offers `offer`; closing it ends the
  // device. Control reactor; never waits. kUnavailable: try again in a moment; kResourceExhausted: a limit,
  // named.
  virtual Result<UniqueFd> Connect(const Offer& offer) = 0;
};

}  // namespace cleat::vhost
