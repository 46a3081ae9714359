// SPDX-License-Identifier: Apache-2.0
// The connection manager of a fabric (rdma/connection_manager.h). What one end has to hear of another one is an event of its manager's, and is told by
// HandleEvents alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/connection_manager.h"
#include "tests/support/rdma_fabric/device.h"
#include "tests/support/rdma_fabric/rdma_fabric.h"
#include "tests/support/rdma_fabric/world.h"

namespace cleat::test::rdma_fabric {

class FabricConnection;
class FabricConnectRequest;
class FabricListener;

struct ManagerState {
  EventFd event;  // readable while there are events
  std::deque<std::function<void()>> events;
  uint32_t objects = 0;  // listeners, requests and connections
};

// One end of a connection, kept by whoever has to tell it something.
struct EndState {
  enum class Step : uint8_t { kBegun, kAsked, kMade, kAccepted, kEstablished, kDisconnecting, kEnded };
  Step step = Step::kBegun;
  std::shared_ptr<ManagerState> manager;
  FabricConnection* object = nullptr;  // nullptr: it is destroyed
  std::shared_ptr<AdapterState> adapter;
  rdma::Endpoint local;
  rdma::Endpoint remote;
  std::weak_ptr<EndState> peer;
  std::weak_ptr<PairState> pair;
  uint32_t reads_served = 0;
};

struct ListenerState {
  std::shared_ptr<ManagerState> manager;
  FabricListener* object = nullptr;  // nullptr: it is destroyed, or has ended
  bool destroyed = false;
  rdma::Endpoint at;
  bool of_all = false;
  size_t backlog = 0;
  std::deque<std::unique_ptr<FabricConnectRequest>> requests;  // that were not handled
};

// World, and who listens.
class ConnectionWorld {
 public:
  explicit ConnectionWorld(std::shared_ptr<World> w) : world(std::move(w)) {}
  void Push(ManagerState& manager, std::function<void()> event) CLEAT_REQUIRES(world->mutex);
  // The end hears that it has ended, in its turn. `data`: of a rejection.
  void PushEnd(const std::shared_ptr<EndState>& end, rdma::EndKind kind, std::string why,
               std::vector<uint8_t> data = {}) CLEAT_REQUIRES(world->mutex);
  // The same of the other end, unless one of the two is silent.
  void PushPeersEnd(const EndState& end, rdma::EndKind kind, const char* why) CLEAT_REQUIRES(world->mutex);
  static bool IsSilent(const EndState& end);
  std::shared_ptr<ListenerState> ListenerAt(const rdma::Endpoint& at) CLEAT_REQUIRES(world->mutex);
  void AdapterIsGone(const std::shared_ptr<AdapterState>& adapter) CLEAT_REQUIRES(world->mutex);
  void GiveUp() CLEAT_REQUIRES(world->mutex);

  const std::shared_ptr<World> world;
  std::vector<std::weak_ptr<ListenerState>> listeners CLEAT_GUARDED_BY(world->mutex);
  std::vector<std::weak_ptr<EndState>> ends CLEAT_GUARDED_BY(world->mutex);
  std::vector<RdmaWay> ways CLEAT_GUARDED_BY(world->mutex);
};

class FabricConnection final : public rdma::Connection {
 public:
  FabricConnection(std::shared_ptr<ConnectionWorld> connections, std::shared_ptr<EndState> end,
                   rdma::ConnectionOwner& owner);
  ~FabricConnection() override;
  FabricConnection(const FabricConnection&) = delete;
  FabricConnection& operator=(const FabricConnection&) = delete;

  rdma::Endpoint local() const override { return end_->local; }
  rdma::Endpoint peer() const override { return end_->remote; }
  rdma::QueuePair* queue_pair() override { return is_shown_ ? pair_.get() : nullptr; }
  Status Accept(std::span<const uint8_t> private_data) override;
  void DestroyQueuePair() override { pair_.reset(); }
  void Disconnect() override;

  // ---- For the connection manager
  void SetPair(std::unique_ptr<FabricQueuePair> pair) {
    pair_ = std::move(pair);
    is_shown_ = true;
  }
  void BeginToConnect(const rdma::ConnectOptions& options);
  void AskPeer();
  void PeerIsEstablished();
  void BecomeEstablished(const std::vector<uint8_t>& private_data);
  void End(rdma::EndKind kind, const std::string& why, std::span<const uint8_t> private_data);

 private:
  struct Refusal {
    rdma::EndKind kind;
    std::string why;
  };
  std::optional<Refusal> SendRequest() CLEAT_REQUIRES(connections_->world->mutex);
  void TellPeerOfDestruction() CLEAT_REQUIRES(connections_->world->mutex);

  const std::shared_ptr<ConnectionWorld> connections_;
  const std::shared_ptr<EndState> end_;
  rdma::ConnectionOwner& owner_;
  std::unique_ptr<FabricQueuePair> pair_;
  bool is_shown_ = false;
  // The end that connects
  rdma::QueuePairParts parts_;
  std::vector<uint8_t> private_data_;
};

class FabricConnectRequest final : public rdma::ConnectRequest {
 public:
  FabricConnectRequest(std::shared_ptr<ConnectionWorld> connections, std::shared_ptr<ManagerState> manager,
                       std::shared_ptr<EndState> asker, std::shared_ptr<AdapterState> adapter,
                       std::vector<uint8_t> private_data, uint32_t peer_sends_reads);
  ~FabricConnectRequest() override;
  FabricConnectRequest(const FabricConnectRequest&) = delete;
  FabricConnectRequest& operator=(const FabricConnectRequest&) = delete;

  rdma::Endpoint local() const override { return local_; }
  rdma::Endpoint peer() const override { return peer_; }
  const std::string& device_name() const override { return adapter_->name; }
  bool IsOn(const rdma::Device& device) const override;
  std::span<const uint8_t> private_data() const override { return private_data_; }
  uint32_t peer_serves_reads() const override { return asker_->reads_served; }
  uint32_t peer_sends_reads() const override { return peer_sends_reads_; }
  Result<std::unique_ptr<rdma::Connection>> MakeConnection(const rdma::QueuePairParts& parts,
                                                           rdma::ConnectionOwner& owner) override;
  void Reject(std::span<const uint8_t> private_data) override;

 private:
  const std::shared_ptr<ConnectionWorld> connections_;
  const std::shared_ptr<ManagerState> manager_;
  const std::shared_ptr<EndState> asker_;
  const std::shared_ptr<AdapterState> adapter_;
  const rdma::Endpoint local_;
  const rdma::Endpoint peer_;
  const std::vector<uint8_t> private_data_;
  const uint32_t peer_sends_reads_;
  bool answered_ = false;
};

class FabricListener final : public rdma::Listener {
 public:
  FabricListener(std::shared_ptr<ConnectionWorld> connections, std::shared_ptr<ListenerState> state,
                 rdma::ListenerOwner& owner);
  ~FabricListener() override;
  FabricListener(const FabricListener&) = delete;
  FabricListener& operator=(const FabricListener&) = delete;

  rdma::Endpoint local() const override { return state_->at; }
  rdma::ListenerOwner& owner() { return owner_; }
  void End(const ListenerState& state);

 private:
  const std::shared_ptr<ConnectionWorld> connections_;
  const std::shared_ptr<ListenerState> state_;
  rdma::ListenerOwner& owner_;
};

// As rdma::OpenConnectionManager.
std::unique_ptr<rdma::ConnectionManager> OpenFabricConnectionManager(
    const std::shared_ptr<ConnectionWorld>& connections);

}  // namespace cleat::test::rdma_fabric
