// SPDX-License-Identifier: Apache-2.0
// The hosts of one export, with their secrets unwrapped: whom the target lets in.
//
// A host without secrets is let in at once; one with secrets as soon as they are unwrapped, which is done on a thread of a pool. A host whose
// secrets can't be unwrapped is not let in: the reason is said, and it is tried again. While a host's new secrets are unwrapped its former ones
// hold, since they may be the same ones, wrapped anew. What is set last holds, whatever is under way.
//
// Owned by the export's guest device. On the control reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/protocol/export.h"
#include "engine/secrets/unwrap.h"
#include "keys/keyring.h"
#include "nvme/target/access/host_access.h"
#include "reactor/blocking.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::engine {

class ExportHosts {
 public:
  using Hosts = std::vector<nvme::target::HostAccess>;
  // How long after a failure it is tried again: twice as long each time, since what is missing is a file that somebody has to bring.
  static constexpr uint64_t kRetryNsMin = kNsPerSecond;
  static constexpr uint64_t kRetryNsMax = 30 * kNsPerSecond;

  // `name`: "controllers/ID", for the log. `keyring` and `blocking` outlive it; nullptr: no secret can be unwrapped. `changed` is told whom
  // to let in, in the order in which they were set; within Set, and later.
  ExportHosts(std::string name, Reactor& control, keys::Keyring* keyring, BlockingPool* blocking,
              std::function<void(Hosts)> changed);
  ~ExportHosts();  // closed, or nothing was ever set
  ExportHosts(const ExportHosts&) = delete;
  ExportHosts& operator=(const ExportHosts&) = delete;

  // From now on these. The same secrets, by what is wrapped, are not unwrapped again.
  void Set(std::vector<ExportHost> hosts);
  // Returns when the secrets of all hosts that were set are unwrapped, or could not be.
  Task<void> Settled();
  // Which host is not let in, why, and what to do, for people; empty: there is none.
  std::string WhyLeftOut() const;
  // Nothing is under way any more when it returns, and nothing is told. Set does nothing then.
  Task<void> Close();

 private:
  struct Known {
    NvmfSecrets secrets;
    NvmfKeys keys;
  };
  bool Has(const ExportHost& host) const;
  std::vector<ExportHost> Missing() const;
  void Tell();
  // Unwraps what is missing until nothing is, or it is closed.
  Task<void> Work();
  Task<void> UnwrapMissing();
  void Fail(const std::string& nqn, const std::string& why);

  const std::string name_;
  Reactor& control_;
  keys::Keyring* const keyring_;
  BlockingPool* const blocking_;
  const std::function<void(Hosts)> changed_;
  std::vector<ExportHost> hosts_;
  uint64_t generation_ = 0;                    // of hosts_
  std::map<std::string, Known> known_;         // by NQN, of those in hosts_
  std::map<std::string, std::string> failed_;  // likewise: why
  bool working_ = false;
  Event settled_;
  Event set_again_;
  CancelToken closing_;
  Gate work_;
};

}  // namespace cleat::engine
