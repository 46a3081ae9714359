// SPDX-License-Identifier: Apache-2.0
// A queue pair to a target with its connection, whatever it runs over: what TcpQueue (../socket) and RdmaQueue (../rdma) have alike, and what they are made
// from (../connect/make_queue.h).
//
// Ownership: whoever makes one owns it, and keeps it until it has ended; it is not destroyed from within a callback. Thread: its reactor's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "modules/nvmf/transport/tcp_tuning.h"
#include "nvme/fabrics/names.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/tcp/pdu_check.h"
#include "nvmf/socket/tls_stream.h"

namespace cleat::modules {

class RdmaPorts;

// What the queues of one disk to one of its addresses have in common.
struct TransportOptions {
  nvme::fabrics::TransportAddress address;
  std::optional<nvme::fabrics::TransportAddress> source = std::nullopt;  // as PathAddress'
  uint8_t dscp = 0;            // of the packets of their connections: 0 to nvme::fabrics::kDscpMax
  nvme::tcp::Digests digests;  // these three: of TCP alone
  TcpTuning tuning;
  nvmf::TlsNames tls;
  RdmaPorts* rdma = nullptr;  // never nullptr where the address is one of RDMA
};

struct TransportQueueOptions {
  TransportOptions transport;
  std::string name;            // in errors: "subsystems/a at 10.0.0.1:4420, queue 1"
  uint16_t queue_id = 0;       // 0: an admin queue
  uint16_t controller_id = 0;  // that an I/O queue is one of
  uint32_t entries = 0;        // one more than commands under way
  // The time until commands may be submitted.
  uint64_t connect_timeout_ns = 10 * kNsPerSecond;
  // The queue is broken, takes no command any more, and has commands that come back later than now: over RDMA, at most once, before all of Unanswered and Ended.
  std::function<void(const Error& reason)> on_breaks = {};
};

class TransportQueue : public nvme::fabrics::QueuePair {
 public:
  // Begins to connect. Once. Connected or Ended follows, Ended perhaps before this returns.
  virtual void Start() = 0;
  // The value that Identify has; used from the next Submit on.
  virtual void set_in_capsule_bytes(uint32_t bytes) = 0;
  virtual bool ended() const = 0;
  // The maker of TLS' records, kernel or engine, for people, once it is connected; empty without TLS.
  virtual std::string tls_maker() const { return {}; }
};

}  // namespace cleat::modules
