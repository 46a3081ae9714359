// SPDX-License-Identifier: Apache-2.0
// cleatd put together: store, state, link, reconciler, API. Used by main and by tests.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "control/api/service.h"
#include "control/callers/access.h"
#include "control/callers/audit_log.h"
#include "control/callers/call_guard.h"
#include "control/callers/tls_credentials.h"
#include "control/callers/unix_listener.h"
#include "control/link/engine_link.h"
#include "control/observe/counters.h"
#include "control/observe/metrics.h"
#include "control/observe/metrics_server.h"
#include "control/observe/slow_watch.h"
#include "control/paths/path_policy.h"
#include "control/reconcile/context/reconciler_options.h"
#include "control/state/disks/memfd_keeper.h"
#include "control/state/disks/purge_timer.h"
#include "control/state/host_state.h"
#include "control/store/store.h"
#include "keys/keyring.h"

namespace cleat::control {

class Reconciler;

inline constexpr uint32_t kKillSilentEngineSecondsMax = 3600;

// A connection of the API over which nothing comes while calls are under way is asked for a sign of life (a ping of HTTP/2), which any
// client's gRPC gives by itself. Without one the connection ends, and its calls are cancelled: a host that has died says nothing of it, and a call
// that watches would keep its place until gRPC's own two hours are over. Callers of this host matter less: their kernel tells of their end.
struct KeepAlive {
  std::chrono::milliseconds time = std::chrono::seconds(60);     // without a word
  std::chrono::milliseconds timeout = std::chrono::seconds(20);  // that the answer is waited for
};

struct DaemonOptions {
  std::string state_dir;    // exists
  std::string runtime_dir;  // of the sockets; guests' may be beside it, in RUNTIME_DIR-guests
  std::string paths_file = PathLists::kDefaultPath;  // the paths that callers may name
  std::string api_socket;                            // path of the unix socket for the API
  mode_t api_socket_mode = 0660;
  std::string api_group = {};  // that the socket is given to; empty: cleatd's own
  Grants grants = {};
  std::string tls_address = {};  // "HOST:PORT" for the API over mutual TLS; empty: none
  TlsFiles tls = {};
  std::string metrics_address = {};  // "HOST:PORT" for /metrics and /healthz; empty: none
  MetricsOptions metrics = {};
  std::string audit_log = {};   // file; empty: cleatd's log alone
  bool audit_required = false;  // no change without a record in that file
  // Files with the key-encryption key, the current one first. Empty: the service's credential, else a file of its own in
  // state_dir.
  std::vector<std::string> kek_files = {};
  uint32_t keep_deleted_days = kKeepDeletedDaysDefault;  // 0: deleted disks are not kept
  std::string engine_socket;  // path of the unix socket for engines; made with mode 0600
  ReconcilerOptions reconciler;
  size_t watch_queue_max = WatchHub::kQueueMax;
  KeepAlive keep_alive = {};
  // Called, on a thread of the API's, when the store was restored: this daemon is to end, and another one to start with the same options.
  std::function<void()> on_restored = {};
};

class Daemon {
 public:
  // Serves from its return on, also while the store can't be written. Errors say which part could not be had.
  static Result<std::unique_ptr<Daemon>> Start(const DaemonOptions& options);
  // Stops: watchers end with UNAVAILABLE, calls that run are answered, engines serve on.
  ~Daemon();

  HostState& state() { return *state_; }
  // Reads the paths that callers may name, certificates and key-encryption keys, and opens the audit log anew. What is
  // wrong with one is logged; the old one stays in use.
  void Reload();
  // Whether the engines' thread has gone on since the last call, or waits for the store: however long the store's disk takes, all that
  // is read is served meanwhile, and another process would wait for that disk as well. Does not return while the state's lock is not to
  // be had. On one thread.
  bool GoesOn();
  int tls_port() const { return tls_port_; }  // that it listens on; 0: none
  int metrics_port() const { return metrics_server_ ? metrics_server_->port() : 0; }

 private:
  Daemon();
  Status ReadKeys(const DaemonOptions& options);
  Status MakeFirstKek(const std::string& path);
  Status RewrapKeys();
  bool FinishStart();
  Status StartApi(const DaemonOptions& options);
  bool CheckHealth();
  void LogUnlisted();

  MonotonicClock clock_;
  MemfdKeeper memory_;
  keys::Keyring keyring_;
  std::unique_ptr<PathPolicy> paths_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<HostState> state_;
  Counters counters_{clock_};
  SlowWatch slow_watch_{counters_};
  std::unique_ptr<PurgeTimer> purge_timer_;
  std::unique_ptr<EngineLink> link_;
  std::unique_ptr<Reconciler> reconciler_;
  Grants grants_;
  std::unique_ptr<AuditLog> audit_;
  std::shared_ptr<TlsCertificates> certificates_;
  std::unique_ptr<UnixListener> listener_;
  std::unique_ptr<CallGuard> guard_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<MetricsServer> metrics_server_;
  uint64_t link_rounds_ = 0;  // at the last GoesOn()
  int tls_port_ = 0;
  std::string kek_to_make_;  // path; empty: there is one
  bool rewrap_ = false;      // keys are to be wrapped anew
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cleat::control
