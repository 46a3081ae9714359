// SPDX-License-Identifier: Apache-2.0
// A Connection (rdma/connection.h) by librdmacm: its identifier, its queue pair, and the steps from one end to the other.
#pragma once

#include <memory>
#include <vector>

#include "rdma/connection_manager.h"
#include "rdma/ibverbs/library.h"
#include "rdma/ibverbs/queue_pair.h"
#include "rdma/rdmacm/cm_event.h"
#include "rdma/rdmacm/deadlines.h"

namespace cleat::rdma {

// What a connect request offers to the end that accepts it.
struct OfferedReads {
  uint32_t sent = 0;    // that this end may have outstanding
  uint32_t served = 0;  // that the peer would like to have outstanding
};

class AdapterConnection final : public Connection, private CmEventHandler, private Deadline {
 public:
  // Of the request that `id` is. Takes `id` only when that succeeds; it has no queue pair else.
  static Result<std::unique_ptr<Connection>> Make(const Library& library, CmId& id,
                                                  const OfferedReads& offered, const QueuePairParts& parts,
                                                  ConnectionOwner& owner);
  // `deadlines` outlives it.
  static Result<std::unique_ptr<Connection>> Connect(const Library& library, rdma_event_channel& channel,
                                                     Deadlines& deadlines, const ConnectOptions& options,
                                                     ConnectionOwner& owner);
  ~AdapterConnection() override;
  AdapterConnection(const AdapterConnection&) = delete;
  AdapterConnection& operator=(const AdapterConnection&) = delete;

  Endpoint local() const override;
  Endpoint peer() const override;
  QueuePair* queue_pair() override { return queue_pair_.get(); }
  Status Accept(std::span<const uint8_t> private_data) override;
  void DestroyQueuePair() override { queue_pair_.reset(); }
  void Disconnect() override;

 private:
  enum class State : uint8_t { kConnecting, kMade, kAccepted, kEstablished, kDisconnecting, kEnded };

  AdapterConnection(const Library& library, ConnectionOwner& owner) : library_(library), owner_(owner) {}
  // CmEventHandler
  void Handle(const CmEvent& event) override;
  // Deadline
  void Expired() override;

  Status BeginToConnect(const ConnectOptions& options);
  void AddressResolved();
  void RouteResolved();
  void BecomeEstablished(const CmEvent& event);
  void EndBy(const CmEvent& event);
  // Ends with the owner's last call: nothing may come after it.
  void End(EndKind kind, Error error, std::span<const uint8_t> private_data = {});
  Error Failure(ErrorCode code, const char* what) const;

  const Library& library_;
  ConnectionOwner& owner_;
  CmId id_;
  std::unique_ptr<AdapterQueuePair> queue_pair_;  // goes before its identifier
  State state_ = State::kConnecting;
  // Of the end that connects
  Deadlines* deadlines_ = nullptr;
  Endpoint to_;
  QueuePairParts parts_;
  std::vector<uint8_t> private_data_;
  uint32_t reads_served_ = 0;  // of the end that listens as well
  int step_timeout_ms_ = 0;
};

}  // namespace cleat::rdma
