// SPDX-License-Identifier: Apache-2.0
// A transport without sockets: endpoints that drive a vhost::Session by direct calls, as the relay does by messages.
// The other side is a SimPeer, whom an endpoint finds by socket path. On control.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "defect.h"
#include "reactor/cancel.h"
#include "reactor/sync.h"
#include "vhost/endpoint.h"
#include "vhost/ring_yield.h"
#include "vhost/session.h"
#include "world.h"

namespace cleat::sim {

// One connection as the peer sees it; lives until Serve has returned.
struct Connection {
  Connection(vhost::Session& s, virtio::DeviceModel& m, std::string name, uint64_t endpoint, Reactor& control)
      : session(s),
        model(m),
        controller(std::move(name)),
        endpoint_id(endpoint),
        wake(control),
        yield(
            control, [this] { wake.Pulse(); }, [] { return "a message"; }) {}
  vhost::Session& session;
  virtio::DeviceModel& model;
  const std::string controller;
  const uint64_t endpoint_id;  // another one: the controller's disk was detached and one attached since
  Event wake;                  // pulsed when there may be something to do
  bool closed = false;         // by the endpoint

  // The peer takes it between two of its messages; yielded, the connection is closed.
  vhost::RingYield yield;
};

// QEMU's part. Owned by the test; outlives the endpoints.
class SimPeer {
 public:
  virtual ~SimPeer() = default;
  virtual bool listening() const = 0;
  // Plays the front end until the connection is to end, by its own will or because it was closed. An error says that
  // the session refused something.
  virtual Task<Status> Serve(Connection& connection) = 0;
  // The connection is over, and all its requests have ended.
  virtual void Disconnected() = 0;
};

class SimEndpoint;

class SimNetwork final : public vhost::EndpointFactory {
 public:
  struct Plan {
    uint32_t make_fails_percent = 0;
    uint32_t start_fails_percent = 0;
  };
  SimNetwork(World& world, const Plan& plan, Defect defect = Defect::kNone);
  ~SimNetwork() override;  // no endpoint is left

  void AddPeer(const std::string& socket_path, SimPeer& peer) { peers_[socket_path] = &peer; }
  void PeerChanged(const std::string& socket_path);  // it began to listen

  Result<std::unique_ptr<vhost::Endpoint>> Make(const vhost::EndpointOptions& options,
                                                virtio::DeviceModel& model,
                                                vhost::StatusFn on_status) override;
  size_t endpoints() const { return endpoints_.size(); }
  bool HasEndpoint(const std::string& controller) const;
  std::string Describe() const;

 private:
  friend class SimEndpoint;
  World& world_;
  const Plan plan_;
  const Defect defect_;
  Random random_;
  std::map<std::string, SimPeer*> peers_;
  std::map<const SimEndpoint*, SimEndpoint*> endpoints_;
  uint64_t next_id_ = 1;
};

class SimEndpoint final : public vhost::Endpoint {
 public:
  SimEndpoint(SimNetwork& network, const vhost::EndpointOptions& options, virtio::DeviceModel& model,
              vhost::StatusFn on_status);
  ~SimEndpoint() override;

  Status Start() override;
  Task<void> Stop() override;
  Task<Status> Yield(uint64_t deadline_ns) override;
  void ConfigChanged() override {}  // a guest here reads the configuration when it connects
  vhost::EndpointStatus status() const override;

 private:
  friend class SimNetwork;
  static constexpr uint64_t kErrorDelayNs = 20 * kNsPerMs;
  static constexpr uint64_t kYieldRetryNs = 100 * kNsPerUs;
  Task<void> Run();
  Task<void> ServeOne(SimPeer& peer);
  void Changed();
  void EnterPhase(vhost::EndpointState phase);

  SimNetwork& network_;
  const vhost::EndpointOptions options_;
  virtio::DeviceModel& model_;
  const vhost::StatusFn on_status_;
  const uint64_t id_;
  CancelToken cancel_;
  Event peer_changed_;
  Event stopped_;
  std::unique_ptr<vhost::Session> session_;
  Connection* connection_ = nullptr;
  vhost::EndpointState phase_ = vhost::EndpointState::kStopped;
  std::string last_error_;
  uint64_t connections_ = 0;
};

}  // namespace cleat::sim
