// SPDX-License-Identifier: Apache-2.0
// The RDMA connection manager, for both ends: listens, takes and refuses connect requests, and connects.
//
// Threads: the control reactor. All calls to owners come from HandleEvents. Limits: as many events a call as kEventsMax; connect requests that wait are the
// kernel's (`backlog`).
//
// Sources: rdma_cm(7), rdma_create_event_channel(3), rdma_get_cm_event(3), rdma_listen(3), rdma_accept(3), rdma_reject(3), rdma_connect(3).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "rdma/connection.h"
#include "rdma/device.h"
#include "rdma/endpoint.h"

namespace cleat::rdma {

inline constexpr uint32_t kEventsMax = 64;

// A peer wants to connect. Destroyed without an answer, it is rejected without private data.
class ConnectRequest {
 public:
  virtual ~ConnectRequest() = default;

  virtual Endpoint local() const = 0;  // OpenDevice takes its address
  virtual Endpoint peer() const = 0;
  virtual const std::string& device_name() const = 0;
  // Whether it came by that adapter, so that what is made on `device` serves it. A listener of all addresses hears requests of all adapters.
  virtual bool IsOn(const Device& device) const = 0;
  virtual std::span<const uint8_t> private_data() const = 0;
  virtual uint32_t peer_serves_reads() const = 0;  // READs from this end outstanding, at most
  virtual uint32_t peer_sends_reads() const = 0;   // READs to this end outstanding, as the peer would like

  // Makes the queue pair; Connection::Accept comes next. After an error the request may still be rejected; after success it is to be destroyed. `owner`
  // outlives the connection.
  virtual Result<std::unique_ptr<Connection>> MakeConnection(const QueuePairParts& parts,
                                                             ConnectionOwner& owner) = 0;
  // Both at once.
  Result<std::unique_ptr<Connection>> Accept(const QueuePairParts& parts,
                                             std::span<const uint8_t> private_data, ConnectionOwner& owner) {
    CLEAT_ASSIGN(auto connection, MakeConnection(parts, owner));
    CLEAT_TRY(connection->Accept(private_data));
    return connection;
  }
  // Up to kRejectDataBytesMax.
  virtual void Reject(std::span<const uint8_t> private_data) = 0;
};

class Listener {
 public:
  // Requests that were not handled are refused.
  virtual ~Listener() = default;
  // The port is the kernel's choice where 0 was asked for.
  virtual Endpoint local() const = 0;
};

class ListenerOwner {
 public:
  // May answer in here or later.
  virtual void Requested(Listener& listener, std::unique_ptr<ConnectRequest> request) = 0;
  // Once, and the last call: its adapter is gone, or its address has moved to another one. Listening anew, once the address is there, is the owner's. A
  // listener of all addresses never ends. The owner may destroy it in here.
  virtual void Ended(Listener& listener, const Error& error) = 0;

 protected:
  ~ListenerOwner() = default;
};

struct ConnectOptions {
  std::string from;  // a local address; empty: the kernel's choice, which has to be on the parts' device
  Endpoint to;
  QueuePairParts parts;
  std::span<const uint8_t> private_data = {};  // up to kConnectDataBytesMax; copied
  uint32_t reads_served = 0;  // READs of the peer outstanding, at most; no more than the adapter's limit
  uint8_t traffic_class = 0;  // DSCP << 2, of all packets of the connection, either way (RFC 2474)
  uint32_t timeout_ms = 0;    // of the whole, at least 1; Ended comes by then
};

class ConnectionManager {
 public:
  // After its listeners, requests and connections.
  virtual ~ConnectionManager() = default;

  // Readable: HandleEvents.
  virtual int descriptor() const = 0;
  virtual void HandleEvents() = 0;

  // `at`: a local address, or "0.0.0.0" or "::" for all; port 0 is the kernel's choice. backlog: requests that wait for HandleEvents, at most; more are
  // refused. `owner` outlives the listener. Which traffic class a connection has, the connecting end says.
  virtual Result<std::unique_ptr<Listener>> Listen(const Endpoint& at, int backlog, ListenerOwner& owner) = 0;
  // Begins to connect. `owner` outlives the connection.
  virtual Result<std::unique_ptr<Connection>> Connect(const ConnectOptions& options,
                                                      ConnectionOwner& owner) = 0;
};

// Errors: no library (kUnavailable; names the package), no adapter (kUnavailable), no way to the kernel's part of it.
Result<std::unique_ptr<ConnectionManager>> OpenConnectionManager();

}  // namespace cleat::rdma
