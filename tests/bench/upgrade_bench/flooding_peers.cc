// SPDX-License-Identifier: Apache-2.0
#include "flooding_peers.h"

#include <poll.h>

#include <utility>

#include "base/clock.h"
#include "perf/hostile/hostile.h"

namespace cleat::bench {
namespace {

constexpr int kLookMs = 10;
constexpr uint64_t kFloodedTimeoutNs = 60 * kNsPerSecond;

}  // namespace

Result<std::unique_ptr<FloodingPeers>> FloodingPeers::Listen(const std::vector<std::string>& sockets) {
  std::unique_ptr<FloodingPeers> made(new FloodingPeers());
  for (const std::string& socket : sockets) {
    auto frontend = perf::Frontend::Listen(socket);
    if (!frontend) return std::move(frontend).error();
    made->peers_.push_back(std::make_unique<Peer>());
    made->peers_.back()->frontend = std::move(*frontend);
  }
  for (const auto& peer : made->peers_) {
    peer->thread = std::thread([&flooding = *made, &peer = *peer] { flooding.Flood(peer); });
  }
  return made;
}

FloodingPeers::~FloodingPeers() {
  ending_ = true;
  for (const auto& peer : peers_) {
    if (peer->thread.joinable()) peer->thread.join();
  }
}

void FloodingPeers::Flood(Peer& peer) const {
  pollfd listener{.fd = peer.frontend->listener_fd(), .events = POLLIN, .revents = 0};
  while (!ending_.load()) {
    if (poll(&listener, 1, kLookMs) <= 0) continue;
    if (!peer.frontend->Accept()) continue;  // ends the last connection as well
    (void)perf::Apply(perf::SocketAbuse::kFlood, *peer.frontend);
    peer.flooded.fetch_add(1);
  }
}

Status FloodingPeers::WaitFlooded(uint64_t connections, const std::atomic<bool>& stop) const {
  const uint64_t end_ns = MonotonicClock().NowNs() + kFloodedTimeoutNs;
  for (const auto& peer : peers_) {
    while (peer->flooded.load() < connections) {
      if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
      if (MonotonicClock().NowNs() > end_ns)
        return Error(ErrorCode::kDeadlineExceeded, "a peer that floods was not connected to");
      poll(nullptr, 0, kLookMs);
    }
  }
  return Ok{};
}

}  // namespace cleat::bench
