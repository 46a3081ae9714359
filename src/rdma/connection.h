// SPDX-License-Identifier: Apache-2.0
// A connection of the RDMA connection manager, with its queue pair: either end of it, from the moment that it is accepted (rdma/connection_manager.h) or
// asked for.
//
//   asked for --address, route, connect--> Established --> Ended     the end that connects
//   accepted  ---------------------------> Established --> Ended     the end that listens
// or Ended at once, from anywhere.
//
// Threads: all of it belongs to the control reactor, but its queue pair's Post, and all of its completion queue, belong to the queue's reactor, and
// QueuePair::Break to both at any time. That nobody posts or breaks while the queue pair is destroyed, or later, is the caller's duty: the queue's reactor
// says that it has stopped, then the control reactor destroys.
//
// Timing, of each queue pair:
//   - A packet is sent again when it was not acknowledged for 0.54 s (4.096 us * 2^17; adapters may take up to four times that), six times, so that a path
//     that comes back within 3 s costs no connection, and that a peer is gone is noticed after 3.8 to 15 s where there is anything to send. Not seven
//     times, as soft-RoCE takes that for without end. How often is the connecting end's choice, for both ends.
//   - A message for which the peer has no ReceiveWork is sent again for ever, after 0.64 ms each, which this end says as the receiver. The connection
//     manager's own choice is 655 ms, which one short of memory would stand still for.
//
// Sources: rdma_get_cm_event(3), rdma_connect(3), rdma_accept(3), rdma_disconnect(3), rdma_set_option(3), ibv_modify_qp(3).
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "rdma/device.h"
#include "rdma/endpoint.h"
#include "rdma/verbs.h"

namespace cleat::rdma {

// Private data, in bytes, that go along with each step. A peer is shown as many as its fabric's message has room for, zeros behind what was sent.
inline constexpr uint32_t kConnectDataBytesMax = 56;
inline constexpr uint32_t kAcceptDataBytesMax = 196;
inline constexpr uint32_t kRejectDataBytesMax = 148;

// What a queue pair is made of. All three outlive it; the queues are of that device. Several queue pairs may share the queues.
struct QueuePairParts {
  Device* device = nullptr;
  CompletionQueue* completions = nullptr;  // of all that is sent and received
  ReceiveQueue* receives = nullptr;
  // QueuePair::limits() says what was granted, no more than this: less where the adapter has less. `read_credits`: also no more than what the peer serves,
  // which may be none. `inline_bytes`: this, or none where the adapter has no room for so many.
  SendLimits wanted;
};

enum class EndKind : uint8_t {
  kDisconnected,   // by either end, after it was established
  kRejected,       // by the peer, or nobody listens there
  kUnreachable,    // no such address, no route, no answer in time
  kFailed,         // of this end, or of what the peer has sent
  kDeviceRemoved,  // the adapter is gone
};

struct ConnectionEnd {
  EndKind kind = EndKind::kFailed;
  Error error;                                 // names both ends
  std::span<const uint8_t> private_data = {};  // of a rejection, good until Ended returns
};

class Connection;

// Called by ConnectionManager::HandleEvents alone, never from within a call of the owner's.
class ConnectionOwner {
 public:
  // `private_data`: of the peer's acceptance, at the end that connects; good until this returns. At the end that listens, messages may have come before.
  virtual void Established(Connection& connection, std::span<const uint8_t> private_data) = 0;
  // Once, and the last call. What was posted is flushed from now on: the queue pair is broken. The owner may destroy the connection in here.
  virtual void Ended(Connection& connection, const ConnectionEnd& end) = 0;
  // The address has moved to another adapter, as bonded interfaces do. This connection stays where it is, and works as long as that does.
  virtual void AddressMoved(Connection& /*connection*/) {}

 protected:
  ~ConnectionOwner() = default;
};

class Connection {
 public:
  // At any time, also before it is established: the peer sees that it ended. Destroys the queue pair first.
  virtual ~Connection() = default;

  virtual Endpoint local() const = 0;
  virtual Endpoint peer() const = 0;
  // nullptr: at the end that connects, before Established; after DestroyQueuePair.
  virtual QueuePair* queue_pair() = 0;
  // Of one that a connect request has made, once: messages may come from now on, and Established or Ended follows. `private_data`: up to
  // kAcceptDataBytesMax. An error: the peer has given up, or the adapter is gone; the connection is to be destroyed.
  virtual Status Accept(std::span<const uint8_t> private_data) = 0;
  // From its return on, nothing that was posted is done any more, and the adapter has let go of its memory (~QueuePair). Again is no error.
  virtual void DestroyQueuePair() = 0;
  // Breaks the queue pair and tells the peer. Ended follows: within moments, or within a minute from a peer that does not answer. Not before Established:
  // destroy it instead. After Ended, and again, it does nothing.
  virtual void Disconnect() = 0;
};

}  // namespace cleat::rdma
