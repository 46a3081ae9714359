// SPDX-License-Identifier: Apache-2.0
// What the engine knows of a transport: a controller's endpoint connects a device model with whoever is on
// the other side. The real one is SocketEndpoint (a relay between QEMU's socket and the vhost library); the
// simulation has one without sockets. On the control reactor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "reactor/reactor.h"
#include "reactor/task.h"
#include "vhost/ownership.h"
#include "virtio/device_model.h"

namespace cleat::vhost {

enum class EndpointState : uint8_t {
  kConnecting,  // no peer
  kHandshake,   // a peer, no ring up
  kReady,       // at least one ring is up
  kBroken,      // a ring or the peer broke the rules: nothing is served until the peer connects again
  kDraining,    // the connection is over, requests are still in the storage
  kStopped,
};

struct EndpointStatus {
  EndpointState state = EndpointState::kStopped;
  std::string message;  // for an operator: what is waited for, what went wrong, what to do
  uint32_t rings_up = 0;
  uint64_t connections = 0;
};

enum class SocketMode : uint8_t { kClient, kServer };

class Endpoint {
 public:
  virtual ~Endpoint() = default;  // stopped
  // Begins to connect (or to listen); errors that can be seen at once - a path that is taken by something
  // that is no socket, too long a path, no permission - are returned and leave it stopped.
  virtual Status Start() = 0;
  // Ends the connection, stops and drains every ring, closes every queue on its reactor. As long as the
  // storage takes. What waits for space fails, unless the process ends (EndpointFactory::ProcessEnds).
  virtual Task<void> Stop() = 0;
  // The same, for another process' endpoint to go on: if the storage is done by then (on the control reactor's clock).
  // kDeadlineExceeded: it is not, and the endpoint serves on as before. Not beside Stop.
  virtual Task<Status> Yield(uint64_t deadline_ns) = 0;
  // The model's configuration space has changed: a peer that is connected is told.
  virtual void ConfigChanged() = 0;
  virtual EndpointStatus status() const = 0;
};

struct EndpointOptions {
  std::string name;         // the controller's, for messages
  std::string socket_path;  // at most 107 bytes
  SocketMode mode = SocketMode::kClient;
  std::vector<Reactor*> io_reactors;  // queue q runs on io_reactors[q % size]
  Ownership* ownership = nullptr;     // asked before rings start; nullptr: they always may
  bool memory_pinned = false;         // the guest gives no memory back: back ends may register it
};

// Called on the control reactor after each change of status().
using StatusFn = std::function<void()>;

class EndpointFactory {
 public:
  virtual ~EndpointFactory() = default;
  // `model` and the reactors outlive the endpoint.
  virtual Result<std::unique_ptr<Endpoint>> Make(const EndpointOptions& options, virtio::DeviceModel& model,
                                                 StatusFn on_status) = 0;
  // Endpoints are stopped from now on for another process to serve their guests: what waits for space is left to it.
  virtual void ProcessEnds() {}
};

}  // namespace cleat::vhost
