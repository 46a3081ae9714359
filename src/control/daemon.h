// SPDX-License-Identifier: Apache-2.0
// cleatd put together: store, state, link, conductor, API. Used by main and by tests.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "control/conductor.h"
#include "control/engine_link.h"
#include "control/host_state.h"
#include "control/memory_keeper.h"
#include "control/service.h"
#include "control/store.h"

namespace cleat::control {

struct DaemonOptions {
  std::string state_dir;      // exists
  std::string api_socket;     // path of the unix socket for the API; made with mode 0660
  std::string engine_socket;  // path of the unix socket for engines; made with mode 0600
  ConductorOptions conductor;
  size_t watch_queue_max = WatchHub::kQueueMax;
};

class Daemon {
 public:
  // Serves from its return on. Errors say which part could not be had.
  static Result<std::unique_ptr<Daemon>> Start(const DaemonOptions& options);
  // Stops: watchers end with UNAVAILABLE, calls that run are answered, engines serve on.
  ~Daemon();

  HostState& state() { return *state_; }

 private:
  Daemon() = default;
  Status StartApi(const std::string& path);

  MonotonicClock clock_;
  MemoryKeeper memory_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
  std::unique_ptr<EngineLink> link_;
  std::unique_ptr<Conductor> conductor_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cleat::control
