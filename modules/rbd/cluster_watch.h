// SPDX-License-Identifier: Apache-2.0
// How each cluster does that has a client here: whether its monitors answer, and what they say that holds up I/O. Of a client that
// connects it is known how long that takes; of the others one asks the monitors every few seconds, off the clients' own threads
// (RadosClient::AskHealth).
//
//   a client is connecting for 2 s, or a question is unanswered for 2 s, or one came to nothing --> silent, since it began
//   a client has connected, an image was opened, a question was answered                        --> not silent
//
// A watch belongs to the engine's control reactor, and makes no call itself.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "modules/rbd/client_pool.h"
#include "modules/rbd/cluster_health.h"

namespace cleat::modules {

// All since: UNIX time in seconds; 0: it is not so.
struct ClusterCondition {
  std::string cluster;
  uint64_t silent_since_s = 0;  // its monitors do not answer
  uint64_t full_since_s = 0;    // pools with images of ours are full, so that writes wait
  std::string full = {};        // which, for people
  uint64_t paused_since_s = 0;  // its reads or writes are paused
  bool operator==(const ClusterCondition&) const = default;
};

class ClusterWatch {
 public:
  static constexpr uint64_t kSilentNs = 2 * kNsPerSecond;
  static constexpr uint64_t kAskEveryNs = 5 * kNsPerSecond;
  // A cluster that nobody tries to reach any more is forgotten after so long: longer than between two attempts.
  static constexpr uint64_t kForgetNs = 60 * kNsPerSecond;

  struct Now {
    uint64_t ns = 0;  // of the reactor's clock
    uint64_t unix_s = 0;
  };

  // Every second, and with every change: the clients that there are.
  void Look(const std::vector<RadosClientStatus>& clients, Now now);
  // An image was opened, or could not be, in a call that began then.
  void Opened(const std::string& cluster, const Status& status, uint64_t began_ns, Now now);

  // Whose monitors are to be asked now; each has a client that is connected.
  std::vector<std::string> Due(Now now) const;
  void Asked(const std::string& cluster, Now now);
  void Answered(const std::string& cluster, const Result<ClusterHealth>& answer, Now now);

  // The clusters that anything is known of.
  std::vector<ClusterCondition> Report(Now now);
  bool empty() const { return known_.empty(); }

 private:
  struct Known {
    bool used = false;       // there is a client
    bool connected = false;  // ... that can be asked through
    std::set<std::string> pools;
    uint64_t connecting_since_ns = 0;  // 0: no client is connecting
    uint64_t asked_ns = 0;             // 0: no question is under way
    uint64_t ask_next_ns = 0;
    uint64_t failed_since_ns = 0;  // what came to nothing since an answer; 0: nothing
    uint64_t tried_ns = 0;         // when anything was last seen of it
    bool heard = false;            // its monitors have answered
    ClusterCondition condition;
  };
  static void Hear(Known& known, Now now);
  static void Fail(Known& known, uint64_t began_ns, Now now);
  static uint64_t SilentSinceNs(const Known& known, Now now);

  std::map<std::string, Known> known_;  // by cluster
};

}  // namespace cleat::modules
