// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rdma_fabric/connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace cleat::test::rdma_fabric {

using rdma::EndKind;
using rdma::Endpoint;
using Step = EndState::Step;

namespace {

// As a fabric's message has room for, with zeros behind.
std::vector<uint8_t> Padded(std::span<const uint8_t> data, size_t bytes) {
  CLEAT_CHECK(data.size() <= bytes);
  std::vector<uint8_t> padded(data.begin(), data.end());
  padded.resize(bytes);
  return padded;
}

const std::shared_ptr<DeviceState>& StateOf(const rdma::Device& device) {
  return static_cast<const FabricDevice&>(device).state();
}

std::shared_ptr<PairState> MakePair(World& world, const rdma::QueuePairParts& parts)
    CLEAT_REQUIRES(world.mutex) {
  return world.MakePair(StateOf(*parts.device),
                        static_cast<const FabricCompletionQueue&>(*parts.completions).state(),
                        static_cast<const FabricReceiveQueue&>(*parts.receives).state(), parts.wanted);
}

Error OfOtherAdapter(const AdapterState& adapter, const DeviceState& device) {
  return {ErrorCode::kFailedPrecondition,
          fmt::format(
              "RDMA: the connection is by the adapter {}, its queues are on {}: use those of its own adapter",
              adapter.name, device.adapter->name)};
}

}  // namespace

// ---- What all ends share

void ConnectionWorld::Push(ManagerState& manager, std::function<void()> event) {
  if (manager.events.empty()) manager.event.Set();
  manager.events.push_back(std::move(event));
}

void ConnectionWorld::PushEnd(const std::shared_ptr<EndState>& end, EndKind kind, std::string why,
                              std::vector<uint8_t> data) {
  const std::weak_ptr<EndState> weak = end;
  Push(*end->manager, [weak, kind, why = std::move(why), data = std::move(data)] {
    const auto ended = weak.lock();
    if (ended != nullptr && ended->object != nullptr) ended->object->End(kind, why, data);
  });
}

bool ConnectionWorld::IsSilent(const EndState& end) {
  const auto silent = [](const EndState& one) {
    const auto pair = one.pair.lock();
    return pair != nullptr && pair->silence != RdmaSilence::kNone;
  };
  const auto peer = end.peer.lock();
  return silent(end) || (peer != nullptr && silent(*peer));
}

void ConnectionWorld::PushPeersEnd(const EndState& end, EndKind kind, const char* why) {
  const auto peer = end.peer.lock();
  if (peer != nullptr && peer->object != nullptr && !IsSilent(end)) PushEnd(peer, kind, why);
}

std::shared_ptr<ListenerState> ConnectionWorld::ListenerAt(const Endpoint& at) {
  for (const auto& known : listeners) {
    auto listener = known.lock();
    if (listener != nullptr && listener->object != nullptr && listener->at.port == at.port &&
        (listener->of_all || listener->at.address == at.address))
      return listener;
  }
  return nullptr;
}

void ConnectionWorld::AdapterIsGone(const std::shared_ptr<AdapterState>& adapter) {
  for (const auto& known : listeners) {
    const auto listener = known.lock();
    if (listener == nullptr || listener->object == nullptr || listener->of_all ||
        std::ranges::count(adapter->addresses, listener->at.address) == 0)
      continue;
    FabricListener& object = *std::exchange(listener->object, nullptr);
    Push(*listener->manager, [listener, &object] { object.End(*listener); });
  }
  for (const auto& known : ends) {
    const auto end = known.lock();
    if (end == nullptr || end->object == nullptr || end->adapter != adapter) continue;
    PushEnd(end, EndKind::kDeviceRemoved, "its adapter was removed");
    const auto peer = end->peer.lock();
    if (peer != nullptr && peer->adapter != adapter)
      PushPeersEnd(*end, EndKind::kDisconnected, "disconnected");
  }
}

void ConnectionWorld::GiveUp() {
  for (const auto& known : ends) {
    const auto end = known.lock();
    if (end == nullptr || end->object == nullptr) continue;
    if (end->step == Step::kBegun || end->step == Step::kAsked)
      PushEnd(end, EndKind::kUnreachable, "no answer in time");
    if (end->step == Step::kDisconnecting) PushEnd(end, EndKind::kDisconnected, "disconnected");
  }
}

// ---- Connections

FabricConnection::FabricConnection(std::shared_ptr<ConnectionWorld> connections,
                                   std::shared_ptr<EndState> end, rdma::ConnectionOwner& owner)
    : connections_(std::move(connections)), end_(std::move(end)), owner_(owner) {
  const MutexLock lock(connections_->world->mutex);
  end_->object = this;
  ++end_->manager->objects;
  std::erase_if(connections_->ends, [](const auto& known) { return known.expired(); });
  connections_->ends.push_back(end_);
}

FabricConnection::~FabricConnection() {
  bool silent = false;
  {
    const MutexLock lock(connections_->world->mutex);
    silent = ConnectionWorld::IsSilent(*end_);
  }
  pair_.reset();
  const MutexLock lock(connections_->world->mutex);
  if (!silent) TellPeerOfDestruction();
  end_->step = Step::kEnded;
  end_->object = nullptr;
  --end_->manager->objects;
}

void FabricConnection::TellPeerOfDestruction() {
  switch (end_->step) {
    case Step::kAccepted:
    case Step::kEstablished:
      return connections_->PushPeersEnd(*end_, EndKind::kDisconnected, "disconnected");
    case Step::kMade:
      return connections_->PushPeersEnd(*end_, EndKind::kRejected, "the peer has refused");
    case Step::kAsked:
      return connections_->PushPeersEnd(*end_, EndKind::kRejected, "the peer has given up");
    case Step::kBegun:
    case Step::kDisconnecting:
    case Step::kEnded:
      break;
  }
}

void FabricConnection::BeginToConnect(const rdma::ConnectOptions& options) {
  parts_ = options.parts;
  private_data_.assign(options.private_data.begin(), options.private_data.end());
  const MutexLock lock(connections_->world->mutex);
  connections_->Push(*end_->manager, [weak = std::weak_ptr<EndState>(end_)] {
    const auto end = weak.lock();
    if (end != nullptr && end->object != nullptr) end->object->AskPeer();
  });
}

void FabricConnection::AskPeer() {
  std::optional<Refusal> refusal;
  {
    const MutexLock lock(connections_->world->mutex);
    if (end_->step == Step::kBegun) refusal = SendRequest();
  }
  if (refusal) End(refusal->kind, refusal->why, {});
}

// The queue pair is made in here, and is the owner's once the connection is established.
std::optional<FabricConnection::Refusal> FabricConnection::SendRequest() {
  const DeviceState& device = *StateOf(*parts_.device);
  if (device.adapter != end_->adapter)
    return Refusal{EndKind::kFailed, OfOtherAdapter(*end_->adapter, device).message};
  const auto adapter = connections_->world->AdapterAt(end_->remote.address);
  if (adapter == nullptr) return Refusal{EndKind::kUnreachable, "the address does not answer"};
  const Status room = connections_->world->CheckRoom(device, parts_.wanted);
  if (!room.ok()) return Refusal{EndKind::kFailed, room.error().message};
  const auto pair = MakePair(*connections_->world, parts_);
  pair_ = std::make_unique<FabricQueuePair>(connections_->world, pair);
  end_->pair = pair;
  end_->step = Step::kAsked;
  const auto listener = connections_->ListenerAt(end_->remote);
  if (listener == nullptr) return Refusal{EndKind::kRejected, "nobody listens there"};
  if (listener->requests.size() >= listener->backlog)
    return Refusal{EndKind::kRejected, "the peer's connection manager has refused"};
  ++listener->manager->objects;
  listener->requests.push_back(std::make_unique<FabricConnectRequest>(
      connections_, listener->manager, end_, adapter, Padded(private_data_, rdma::kConnectDataBytesMax),
      pair->limits.read_credits));
  connections_->Push(*listener->manager,
                     [world = connections_->world, weak = std::weak_ptr<ListenerState>(listener)] {
                       const auto asked = weak.lock();
                       std::unique_ptr<FabricConnectRequest> request;
                       FabricListener* object = nullptr;
                       {
                         const MutexLock lock(world->mutex);
                         if (asked == nullptr || asked->object == nullptr || asked->requests.empty()) return;
                         object = asked->object;
                         request = std::move(asked->requests.front());
                         asked->requests.pop_front();
                       }
                       object->owner().Requested(*object, std::move(request));
                     });
  return std::nullopt;
}

Status FabricConnection::Accept(std::span<const uint8_t> private_data) {
  const MutexLock lock(connections_->world->mutex);
  if (end_->step != Step::kMade || pair_ == nullptr)
    connections_->world->Wrong("a connection is accepted twice, or without its queue pair");
  const auto asker = end_->peer.lock();
  if (end_->adapter->gone || asker == nullptr || asker->object == nullptr || asker->step != Step::kAsked) {
    return Error(ErrorCode::kUnavailable,
                 fmt::format("RDMA: the connection of {} cannot be accepted", end_->remote.Text()));
  }
  end_->step = Step::kAccepted;
  connections_->Push(*asker->manager, [weak = std::weak_ptr<EndState>(asker),
                                       data = Padded(private_data, rdma::kAcceptDataBytesMax)] {
    const auto end = weak.lock();
    if (end != nullptr && end->object != nullptr) end->object->BecomeEstablished(data);
  });
  return Ok{};
}

void FabricConnection::BecomeEstablished(const std::vector<uint8_t>& private_data) {
  {
    const MutexLock lock(connections_->world->mutex);
    if (end_->step != Step::kAsked) return;
    end_->step = Step::kEstablished;
    is_shown_ = true;
    const auto accepter = end_->peer.lock();
    const auto pair = end_->pair.lock();
    pair->was_connected = true;
    if (accepter != nullptr && accepter->object != nullptr) {
      pair->limits.read_credits = std::min(pair->limits.read_credits, accepter->reads_served);
      const auto other = accepter->pair.lock();
      if (other != nullptr && connections_->world->FindPair(other->number) != nullptr)
        connections_->world->Link(*pair, *other);
      connections_->Push(*accepter->manager, [weak = std::weak_ptr<EndState>(accepter)] {
        const auto end = weak.lock();
        if (end != nullptr && end->object != nullptr) end->object->PeerIsEstablished();
      });
    }
  }
  owner_.Established(*this, private_data);
}

void FabricConnection::PeerIsEstablished() {
  {
    const MutexLock lock(connections_->world->mutex);
    if (end_->step != Step::kAccepted) return;
    end_->step = Step::kEstablished;
  }
  owner_.Established(*this, {});
}

void FabricConnection::Disconnect() {
  const MutexLock lock(connections_->world->mutex);
  if (end_->step == Step::kEnded || end_->step == Step::kDisconnecting) return;
  if (end_->step != Step::kEstablished)
    return connections_->world->Wrong("a connection is disconnected before it is established");
  end_->step = Step::kDisconnecting;
  if (const auto pair = end_->pair.lock()) connections_->world->Break(*pair);
  const auto peer = end_->peer.lock();
  if (peer == nullptr || peer->object == nullptr)
    return connections_->PushEnd(end_, EndKind::kDisconnected, "disconnected");
  if (ConnectionWorld::IsSilent(*end_)) return;
  connections_->Push(*peer->manager, [connections = connections_, end = end_, peer] {
    {
      // The peer's word, which comes from one that is destroyed as well.
      const MutexLock told(connections->world->mutex);
      connections->PushEnd(end, EndKind::kDisconnected, "disconnected");
    }
    if (peer->object != nullptr) peer->object->End(EndKind::kDisconnected, "disconnected", {});
  });
}

void FabricConnection::End(EndKind kind, const std::string& why, std::span<const uint8_t> private_data) {
  {
    const MutexLock lock(connections_->world->mutex);
    if (std::exchange(end_->step, Step::kEnded) == Step::kEnded) return;
    const auto pair = end_->pair.lock();
    if (pair != nullptr) connections_->world->Break(*pair);
  }
  const std::string text =
      fmt::format("RDMA: the connection of {} with {}: {}", end_->local.Text(), end_->remote.Text(), why);
  owner_.Ended(*this, {kind, Error(ErrorCode::kUnavailable, text), private_data});
}

// ---- Requests

// Under the mutex, as all that asks is; its manager counts it already.
FabricConnectRequest::FabricConnectRequest(std::shared_ptr<ConnectionWorld> connections,
                                           std::shared_ptr<ManagerState> manager,
                                           std::shared_ptr<EndState> asker,
                                           std::shared_ptr<AdapterState> adapter,
                                           std::vector<uint8_t> private_data, uint32_t peer_sends_reads)
    : connections_(std::move(connections)),
      manager_(std::move(manager)),
      asker_(std::move(asker)),
      adapter_(std::move(adapter)),
      local_(asker_->remote),
      peer_(asker_->local),
      private_data_(std::move(private_data)),
      peer_sends_reads_(peer_sends_reads) {}

FabricConnectRequest::~FabricConnectRequest() {
  const MutexLock lock(connections_->world->mutex);
  --manager_->objects;
  if (!answered_ && asker_->object != nullptr)
    connections_->PushEnd(asker_, EndKind::kRejected, "the peer has refused");
}

bool FabricConnectRequest::IsOn(const rdma::Device& device) const {
  return StateOf(device)->adapter == adapter_;
}

Result<std::unique_ptr<rdma::Connection>> FabricConnectRequest::MakeConnection(
    const rdma::QueuePairParts& parts, rdma::ConnectionOwner& owner) {
  CLEAT_CHECK(!answered_);
  if (!IsOn(*parts.device)) return OfOtherAdapter(*adapter_, *StateOf(*parts.device));
  auto end = std::make_shared<EndState>();
  end->step = Step::kMade;
  end->manager = manager_;
  end->adapter = adapter_;
  end->local = local_;
  end->remote = peer_;
  end->peer = asker_;
  end->reads_served = std::min(peer_sends_reads_, parts.device->limits().reads_served);
  std::shared_ptr<PairState> pair;
  {
    const MutexLock lock(connections_->world->mutex);
    CLEAT_TRY(connections_->world->CheckRoom(*StateOf(*parts.device), parts.wanted));
    pair = MakePair(*connections_->world, parts);
    pair->limits.read_credits = std::min(pair->limits.read_credits, asker_->reads_served);
    end->pair = pair;
    asker_->peer = end;
    answered_ = true;
  }
  auto connection = std::make_unique<FabricConnection>(connections_, end, owner);
  connection->SetPair(std::make_unique<FabricQueuePair>(connections_->world, std::move(pair)));
  return std::unique_ptr<rdma::Connection>(std::move(connection));
}

void FabricConnectRequest::Reject(std::span<const uint8_t> private_data) {
  CLEAT_CHECK(!answered_);
  const MutexLock lock(connections_->world->mutex);
  answered_ = true;
  if (asker_->object != nullptr)
    connections_->PushEnd(asker_, EndKind::kRejected, "the peer has refused",
                          Padded(private_data, rdma::kRejectDataBytesMax));
}

// ---- Listeners

FabricListener::FabricListener(std::shared_ptr<ConnectionWorld> connections,
                               std::shared_ptr<ListenerState> state, rdma::ListenerOwner& owner)
    : connections_(std::move(connections)), state_(std::move(state)), owner_(owner) {}

FabricListener::~FabricListener() {
  std::deque<std::unique_ptr<FabricConnectRequest>> refused;
  {
    const MutexLock lock(connections_->world->mutex);
    state_->object = nullptr;
    state_->destroyed = true;
    --state_->manager->objects;
    refused.swap(state_->requests);
  }
}

void FabricListener::End(const ListenerState& state) {
  if (state.destroyed) return;
  owner_.Ended(*this,
               Error(ErrorCode::kUnavailable,
                     fmt::format("RDMA: the listener at {}: its adapter was removed", state.at.Text())));
}

}  // namespace cleat::test::rdma_fabric
