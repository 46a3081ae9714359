// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "tests/support/rdma_fabric/connections.h"

namespace cleat::test::rdma_fabric {
namespace {

using rdma::Endpoint;

class FabricConnectionManager final : public rdma::ConnectionManager {
 public:
  explicit FabricConnectionManager(std::shared_ptr<ConnectionWorld> connections)
      : connections_(std::move(connections)), state_(std::make_shared<ManagerState>()) {}
  ~FabricConnectionManager() override;
  FabricConnectionManager(const FabricConnectionManager&) = delete;
  FabricConnectionManager& operator=(const FabricConnectionManager&) = delete;

  int descriptor() const override { return state_->event.get(); }
  void HandleEvents() override;
  Result<std::unique_ptr<rdma::Listener>> Listen(const Endpoint& at, int backlog,
                                                 rdma::ListenerOwner& owner) override;
  Result<std::unique_ptr<rdma::Connection>> Connect(const rdma::ConnectOptions& options,
                                                    rdma::ConnectionOwner& owner) override;

 private:
  Status CheckAddress(const Endpoint& at, bool of_all) CLEAT_REQUIRES(connections_->world->mutex);

  const std::shared_ptr<ConnectionWorld> connections_;
  const std::shared_ptr<ManagerState> state_;
};

FabricConnectionManager::~FabricConnectionManager() {
  std::deque<std::function<void()>> dropped;
  const MutexLock lock(connections_->world->mutex);
  if (state_->objects > 0) {
    connections_->world->Wrong(fmt::format(
        "a connection manager is destroyed with {} listeners, requests and connections", state_->objects));
  }
  dropped.swap(state_->events);
}

void FabricConnectionManager::HandleEvents() {
  for (uint32_t handled = 0; handled < rdma::kEventsMax; ++handled) {
    std::function<void()> event;
    {
      const MutexLock lock(connections_->world->mutex);
      if (state_->events.empty()) return;
      event = std::move(state_->events.front());
      state_->events.pop_front();
      if (state_->events.empty()) state_->event.Clear();
    }
    event();
  }
}

Status FabricConnectionManager::CheckAddress(const Endpoint& at, bool of_all) {
  if (!of_all && connections_->world->AdapterAt(at.address) == nullptr)
    return Error(ErrorCode::kNotFound, fmt::format("RDMA: no adapter has the address of {}", at.Text()));
  for (const auto& known : connections_->listeners) {
    const auto other = known.lock();
    if (other == nullptr || other->object == nullptr || other->at.port != at.port) continue;
    if (of_all || other->of_all || other->at.address == at.address)
      return ErrnoError(EADDRINUSE, fmt::format("RDMA: cannot listen at {}", at.Text()));
  }
  return Ok{};
}

Result<std::unique_ptr<rdma::Listener>> FabricConnectionManager::Listen(const Endpoint& at, int backlog,
                                                                        rdma::ListenerOwner& owner) {
  CLEAT_ASSIGN(const sockaddr_storage storage, rdma::ToKernel(at));
  auto state = std::make_shared<ListenerState>();
  state->manager = state_;
  state->at = rdma::FromKernel(storage);
  state->of_all = state->at.address == "0.0.0.0" || state->at.address == "::";
  state->backlog = static_cast<size_t>(std::max(backlog, 0));
  auto listener = std::make_unique<FabricListener>(connections_, state, owner);
  const MutexLock lock(connections_->world->mutex);
  if (state->at.port == 0) state->at.port = connections_->world->NextPort();
  ++state_->objects;
  const Status free = CheckAddress(state->at, state->of_all);
  if (!free.ok()) {
    const MutexUnlock unlock(connections_->world->mutex);
    listener.reset();
    return free.error();
  }
  state->object = listener.get();
  std::erase_if(connections_->listeners, [](const auto& known) { return known.expired(); });
  connections_->listeners.push_back(state);
  return std::unique_ptr<rdma::Listener>(std::move(listener));
}

Result<std::unique_ptr<rdma::Connection>> FabricConnectionManager::Connect(
    const rdma::ConnectOptions& options, rdma::ConnectionOwner& owner) {
  CLEAT_CHECK(options.private_data.size() <= rdma::kConnectDataBytesMax && options.timeout_ms > 0);
  CLEAT_ASSIGN(const sockaddr_storage to, rdma::ToKernel(options.to));
  sockaddr_storage from{};
  if (!options.from.empty()) {
    CLEAT_ASSIGN(from, rdma::ToKernel({options.from, 0}));
  }
  auto end = std::make_shared<EndState>();
  end->manager = state_;
  end->remote = rdma::FromKernel(to);
  {
    const MutexLock lock(connections_->world->mutex);
    connections_->ways.push_back({options.from, options.to, options.traffic_class});
    end->adapter = options.from.empty()
                       ? static_cast<const FabricDevice&>(*options.parts.device).state()->adapter
                       : connections_->world->AdapterAt(rdma::FromKernel(from).address);
    if (end->adapter == nullptr || end->adapter->gone) {
      return Error(ErrorCode::kUnavailable, fmt::format("RDMA: there is no way from {} to {} by an adapter",
                                                        options.from, options.to.Text()));
    }
    end->local = {options.from.empty() ? end->adapter->addresses.front() : rdma::FromKernel(from).address,
                  connections_->world->NextPort()};
    end->reads_served = std::min(options.reads_served, end->adapter->limits.reads_served);
  }
  auto connection = std::make_unique<FabricConnection>(connections_, end, owner);
  connection->BeginToConnect(options);
  return std::unique_ptr<rdma::Connection>(std::move(connection));
}

}  // namespace

std::unique_ptr<rdma::ConnectionManager> OpenFabricConnectionManager(
    const std::shared_ptr<ConnectionWorld>& connections) {
  return std::make_unique<FabricConnectionManager>(connections);
}

}  // namespace cleat::test::rdma_fabric
