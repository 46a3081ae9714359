// SPDX-License-Identifier: Apache-2.0
// The discovery services that cleatd has the engine ask over one connection. Each ends with its answer, when cleatd says so, and with the
// connection, as nobody would read the answer. On the control reactor.
#pragma once

#include <cstdint>
#include <map>

#include "base/result.h"
#include "engine/engine.h"
#include "engine/link/requests.h"
#include "engine/protocol/discovery.h"
#include "reactor/cancel.h"
#include "reactor/task.h"

namespace cleat::engine {

class Discoveries {
 public:
  explicit Discoveries(Engine& engine) : engine_(engine) {}

  // The request of that id, which no other one that is under way over this connection has.
  Task<Answer> Ask(uint64_t id, DiscoverySpec discovery, DiscoverySeen seen);
  // Nothing where it has been answered.
  void Stop(uint64_t id);
  // The connection has ended: ids of the next one may be the same.
  void StopAll();

 private:
  Engine& engine_;
  std::map<uint64_t, CancelToken*> under_way_;  // by request
};

}  // namespace cleat::engine
