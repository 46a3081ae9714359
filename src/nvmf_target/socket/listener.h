// SPDX-License-Identifier: Apache-2.0
// Listens on one address for hosts, and gives out the connections that come. On one reactor, the control reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "nvme/fabrics/names.h"
#include "reactor/reactor.h"

namespace cleat::nvmf_target {

struct Accepted {
  UniqueFd fd;  // does not block, and has all options
  nvme::fabrics::TransportAddress local;
  nvme::fabrics::TransportAddress peer;
};

// Whom limits of one peer are counted for: its address without the port, which is another one for each connection, and of IPv6 the first half,
// as a host that has one address there has all that begin alike.
std::string PeerOf(nvme::fabrics::TransportAddress peer);

class Listener {
 public:
  // Connections that the kernel has for us to accept, at most; those that come then try again.
  static constexpr int kBacklog = 1024;
  // Accepted in one turn.
  static constexpr int kAcceptsMax = 64;
  // When the process has no descriptors left, it looks again after that time.
  static constexpr uint64_t kPauseNs = 100 * kNsPerMs;

  // `on_accepted` may destroy the listener.
  Listener(Reactor& reactor, std::function<void(Accepted)> on_accepted);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // kUnavailable: the address is another process' (EADDRINUSE), or none of this host's; names it.
  // `shared`: others of the same user may listen there, too.
  Status Listen(const nvme::fabrics::TransportAddress& address, bool shared);
  // With the port that the kernel chose, where 0 was asked for.
  const nvme::fabrics::TransportAddress& address() const { return address_; }

 private:
  struct Watch : FdWatch {
    explicit Watch(Listener& l)
        : FdWatch([](FdWatch& watch, uint32_t) { static_cast<Watch&>(watch).listener.AcceptSome(); }),
          listener(l) {}
    Listener& listener;
  };
  struct PauseTimer : Timer {
    explicit PauseTimer(Listener& l)
        : Timer([](Timer& timer) { static_cast<PauseTimer&>(timer).listener.AcceptSome(); }), listener(l) {}
    Listener& listener;
  };
  void AcceptSome();
  void LookAgainAfter(uint64_t pause_ns);

  Reactor& reactor_;
  const std::function<void(Accepted)> on_accepted_;
  nvme::fabrics::TransportAddress address_;
  UniqueFd fd_;
  Watch watch_{*this};
  PauseTimer pause_{*this};
  std::shared_ptr<bool> gone_ = std::make_shared<bool>(false);
};

}  // namespace cleat::nvmf_target
