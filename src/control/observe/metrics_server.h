// SPDX-License-Identifier: Apache-2.0
// HTTP for monitoring: GET /metrics (Prometheus' text format) and GET /healthz (200, or 503 while cleatd can't store
// changes). Nobody is asked who they are, so it belongs on an address that only the monitoring reaches. A few threads of
// its own, from Start() to the destructor.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/result.h"
#include "control/observe/metrics.h"

struct mg_connection;
struct mg_context;

namespace cleat::control {

class MetricsServer {
 public:
  // "HOST:PORT"; port 0: a free one. `metrics` and what `healthy` needs outlive it.
  static Result<std::unique_ptr<MetricsServer>> Start(const std::string& address, const Metrics& metrics,
                                                      std::function<bool()> healthy);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  int port() const { return port_; }

 private:
  MetricsServer(const Metrics& metrics, std::function<bool()> healthy)
      : metrics_(metrics), healthy_(std::move(healthy)) {}
  static int OnMetrics(mg_connection* connection, void* server);
  static int OnHealth(mg_connection* connection, void* server);
  static int OnMessage(const mg_connection* connection, const char* message);

  const Metrics& metrics_;
  const std::function<bool()> healthy_;
  Mutex scrape_;                       // one at a time: their memory adds up
  std::string problem_;                // of the start
  std::atomic<bool> started_ = false;  // from then on problem_ is not written
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace cleat::control
