// SPDX-License-Identifier: Apache-2.0
// How long a peer that comes to nothing is kept waiting before it is let in again, and who that is. Owned by a connector, on the
// control reactor; knows neither sockets' events nor time: both are passed in.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace cleat::vhost {

// How a connection was.
struct Conduct {
  bool good = true;    // it ended in good order, after a message
  bool useful = true;  // ... and a ring was up, or it lasted for a while
};

// Of one peer. After a connection that ended in an error, or before its first message, it waits, twice as long each time. A peer
// that comes and goes politely gets some more at once (firmware, an upgrade that changed its mind), and is then no better.
class Backoff {
 public:
  static constexpr uint64_t kDelayMinNs = 20 * kNsPerMs;
  static constexpr uint64_t kDelayMaxNs = 2 * kNsPerSecond;
  static constexpr uint32_t kUselessMax = 4;

  // A connection has ended. Returns for how long the peer waits; 0: not at all.
  uint64_t Ended(const Conduct& conduct);
  uint32_t useless() const { return useless_; }  // connections in a row

 private:
  uint64_t delay_ns_ = 0;
  uint32_t useless_ = 0;
};

// A process, by the kernel's word. One that connected from another pid namespace has no number of ours: all of those that have
// its user are one.
struct PeerIdentity {
  pid_t process = 0;
  uid_t user = 0;
  bool operator==(const PeerIdentity&) const = default;
};
PeerIdentity IdentityOf(const UniqueFd& connected);
std::string NameOfPeer(const PeerIdentity& peer);  // for people

// Of the peers of a socket that anybody may connect to who may write to it: one that does nothing but come and go waits, and nobody
// else does. Of so many peers; a further one takes the place of that which has waited.
class PeerBackoffs {
 public:
  static constexpr size_t kPeersMax = 16;

  // Returns for how long the peer waits.
  uint64_t Ended(const PeerIdentity& peer, const Conduct& conduct, uint64_t now_ns);
  uint64_t WaitsUntilNs(const PeerIdentity& peer) const;  // 0: it does not

 private:
  struct Entry {
    explicit Entry(const PeerIdentity& p) : peer(p) {}
    PeerIdentity peer;
    Backoff backoff;
    uint64_t until_ns = 0;
  };
  Entry& EntryOf(const PeerIdentity& peer);

  std::vector<Entry> entries_;
};

}  // namespace cleat::vhost
