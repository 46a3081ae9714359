// SPDX-License-Identifier: Apache-2.0
// Front ends beside a host's guests that mean harm: each takes whatever engine connects to its socket, sends requests until
// the socket takes no more, and reads no answer. A thread each; used by the thread that made them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "perf/vhost_user/frontend.h"

namespace cleat::bench {

class FloodingPeers {
 public:
  // All sockets listen when this returns.
  static Result<std::unique_ptr<FloodingPeers>> Listen(const std::vector<std::string>& sockets);
  ~FloodingPeers();
  FloodingPeers(const FloodingPeers&) = delete;
  FloodingPeers& operator=(const FloodingPeers&) = delete;

  // Until each of them has flooded so many connections since it began.
  Status WaitFlooded(uint64_t connections, const std::atomic<bool>& stop) const;

 private:
  struct Peer {
    std::unique_ptr<perf::Frontend> frontend;
    std::atomic<uint64_t> flooded{0};
    std::thread thread;
  };

  FloodingPeers() = default;
  void Flood(Peer& peer) const;

  std::vector<std::unique_ptr<Peer>> peers_;
  std::atomic<bool> ending_{false};
};

}  // namespace cleat::bench
