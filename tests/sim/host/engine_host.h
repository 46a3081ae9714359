// SPDX-License-Identifier: Apache-2.0
// An engine of a host, by its name: one process after the other, each the engine's own code with its link to cleatd, on reactors of its own
// and over a real socket. A process dies at any of its turns, or is told to end; the next one is started by the test. Owned by the test.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../world.h"
#include "base/unique_fd.h"
#include "engine/engine.h"
#include "engine/link/command_link.h"
#include "host_storage.h"

namespace cleat::sim {

// Which processes have connected to cleatd's socket and were not accepted yet, in the order in which they came: what SO_PEERCRED and
// pidfd_open say of real ones. The descriptors become readable when the process has ended.
using Connecting = std::deque<UniqueFd>;

class EngineHost final : public Actor {
 public:
  struct Parts {  // all of it outlives the engine
    World& world;
    HostStorage& storage;
    Connecting& connecting;
    uint64_t& processes;  // that were started on the host
    std::string socket_path;
  };
  EngineHost(const Parts& parts, std::string name, std::string stands_by_for);
  ~EngineHost() override;  // not running

  const std::string& name() const { return name_; }
  bool running() const { return process_ != nullptr; }
  uint64_t process() const;                            // the number of the one that runs; 0: none does
  uint64_t connected_ns() const;                       // when the one that runs last connected to cleatd
  uint64_t ended() const { return ended_processes_; }  // how many processes have
  const engine::Engine& engine() const;
  bool Has(const std::string& controller) const;     // it runs, and serves it or stands by
  bool Serves(const std::string& controller) const;  // it runs, has it, and does not only stand by

  void Start();
  // At once, or after so many turns in which it does something.
  void Die();
  void DieAfter(uint64_t turns) { dies_after_ = turns; }
  // SIGTERM: it runs until it has let go of everything.
  void Terminate();
  // The process has no turn for so long.
  void Stall(uint64_t duration_ns) { stalled_until_ns_ = parts_.world.now_ns() + duration_ns; }

  // ---- Actor
  bool Step() override;
  uint64_t NextNs() const override;
  std::string Describe() const override;

 private:
  class Process;
  void TellOfDeaths();
  void End();

  const Parts parts_;
  const std::string name_;
  const std::string stands_by_for_;
  Random random_;
  std::unique_ptr<Process> process_;
  uint64_t ended_processes_ = 0;
  uint64_t dies_after_ = UINT64_MAX;
  uint64_t stalled_until_ns_ = 0;
  // Of processes that have ended, by when the kernel tells so.
  std::deque<std::pair<uint64_t, UniqueFd>> ended_;
};

}  // namespace cleat::sim
