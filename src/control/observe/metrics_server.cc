// SPDX-License-Identifier: Apache-2.0
#include "control/observe/metrics_server.h"

#include <civetweb.h>
#include <fmt/format.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace cleat::control {
namespace {

constexpr const char* kThreads = "4";
constexpr const char* kRequestTimeoutMs = "10000";
constexpr const char* kTextFormat = "text/plain; version=0.0.4; charset=utf-8";

bool IsHostAndPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == 0 || colon == std::string_view::npos || colon + 1 == address.size()) return false;
  return std::ranges::all_of(address.substr(colon + 1), [](char c) { return c >= '0' && c <= '9'; }) &&
         address.find(',') == std::string_view::npos;
}

bool IsGet(mg_connection* connection) {
  const std::string_view method = mg_get_request_info(connection)->request_method;
  return method == "GET" || method == "HEAD";
}

int Answer(mg_connection* connection, const char* status, const char* type, const std::string& body) {
  const bool head = std::string_view(mg_get_request_info(connection)->request_method) == "HEAD";
  mg_printf(connection,
            "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "Connection: close\r\n\r\n",
            status, type, body.size());
  if (!head) mg_write(connection, body.data(), body.size());
  return 1;  // handled
}

int RefuseMethod(mg_connection* connection) {
  return Answer(connection, "405 Method Not Allowed", "text/plain", "GET or HEAD\n");
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                            const Metrics& metrics,
                                                            std::function<bool()> healthy) {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    return Error(code, fmt::format("metrics can't be served on '{}': {}", address, why));
  };
  if (!IsHostAndPort(address))
    return refuse(ErrorCode::kInvalidArgument, "give HOST:PORT, such as 127.0.0.1:9464");
  std::unique_ptr<MetricsServer> server(new MetricsServer(metrics, std::move(healthy)));
  mg_init_library(0);
  mg_callbacks callbacks{};
  callbacks.log_message = OnMessage;
  const char* options[] = {
      "listening_ports", address.c_str(),     "num_threads", kThreads, "request_timeout_ms",
      kRequestTimeoutMs, "enable_keep_alive", "no",          nullptr};
  server->context_ = mg_start(&callbacks, server.get(), options);
  if (server->context_ == nullptr) {
    return refuse(ErrorCode::kUnavailable,
                  server->problem_.empty() ? "it can't be listened on" : server->problem_);
  }
  server->started_ = true;
  mg_set_request_handler(server->context_, "/metrics$", OnMetrics, server.get());
  mg_set_request_handler(server->context_, "/healthz$", OnHealth, server.get());
  mg_server_port port{};
  if (mg_get_server_ports(server->context_, 1, &port) == 1) server->port_ = port.port;
  return server;
}

MetricsServer::~MetricsServer() {
  if (context_ != nullptr) mg_stop(context_);
  mg_exit_library();
}

int MetricsServer::OnMetrics(mg_connection* connection, void* self) {
  auto& server = *static_cast<MetricsServer*>(self);
  if (!IsGet(connection)) return RefuseMethod(connection);
  const MutexLock lock(server.scrape_);
  const std::string text = prometheus::TextSerializer().Serialize(server.metrics_.Collect());
  return Answer(connection, "200 OK", kTextFormat, text);
}

int MetricsServer::OnHealth(mg_connection* connection, void* self) {
  const auto& server = *static_cast<MetricsServer*>(self);
  if (!IsGet(connection)) return RefuseMethod(connection);
  if (server.healthy_()) return Answer(connection, "200 OK", "text/plain", "ok\n");
  return Answer(connection, "503 Service Unavailable", "text/plain", "changes can't be stored\n");
}

int MetricsServer::OnMessage(const mg_connection* connection, const char* message) {
  const auto* context = mg_get_context(connection);
  auto* server = context == nullptr ? nullptr : static_cast<MetricsServer*>(mg_get_user_data(context));
  // The first one is the cause.
  if (server != nullptr && !server->started_ && server->problem_.empty()) server->problem_ = message;
  spdlog::debug("metrics server: {}", message);
  return 1;
}

}  // namespace cleat::control
