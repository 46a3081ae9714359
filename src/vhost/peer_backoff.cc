// SPDX-License-Identifier: Apache-2.0
#include "vhost/peer_backoff.h"

#include <sys/socket.h>

#include <algorithm>

namespace cleat::vhost {

uint64_t Backoff::Ended(const Conduct& conduct) {
  const bool useful = conduct.good && conduct.useful;
  useless_ = useful ? 0 : useless_ + 1;
  const bool at_once = useful || (conduct.good && useless_ <= kUselessMax);
  delay_ns_ = at_once ? 0 : std::clamp(2 * delay_ns_, kDelayMinNs, kDelayMaxNs);
  return delay_ns_;
}

PeerIdentity IdentityOf(const UniqueFd& connected) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connected.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return {};
  return {.process = peer.pid, .user = peer.uid};
}

std::string NameOfPeer(const PeerIdentity& peer) {
  return peer.process > 0 ? "process " + std::to_string(peer.process) : "a process";
}

uint64_t PeerBackoffs::Ended(const PeerIdentity& peer, const Conduct& conduct, uint64_t now_ns) {
  Entry& entry = EntryOf(peer);
  const uint64_t delay_ns = entry.backoff.Ended(conduct);
  entry.until_ns = now_ns + delay_ns;
  return delay_ns;
}

uint64_t PeerBackoffs::WaitsUntilNs(const PeerIdentity& peer) const {
  const auto found = std::ranges::find(entries_, peer, &Entry::peer);
  return found == entries_.end() ? 0 : found->until_ns;
}

PeerBackoffs::Entry& PeerBackoffs::EntryOf(const PeerIdentity& peer) {
  const auto found = std::ranges::find(entries_, peer, &Entry::peer);
  if (found != entries_.end()) return *found;
  if (entries_.size() < kPeersMax) return entries_.emplace_back(peer);
  Entry& oldest = *std::ranges::min_element(entries_, {}, &Entry::until_ns);
  oldest = Entry(peer);
  return oldest;
}

}  // namespace cleat::vhost
