// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rdma_fabric/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rdma/endpoint.h"

namespace cleat::test::rdma_fabric {
namespace {

constexpr uint32_t kIndexShift = 8;

class FabricRegistration final : public rdma::Registration {
 public:
  FabricRegistration(std::shared_ptr<World> world, std::shared_ptr<DeviceState> device, uint32_t local_key,
                     uint32_t remote_key)
      : Registration(local_key, remote_key), world_(std::move(world)), device_(std::move(device)) {}
  ~FabricRegistration() override {
    const MutexLock lock(world_->mutex);
    for (const auto& [index, window] : device_->windows) {
      if (window.pair != nullptr && window.local_key == local_key())
        world_->Wrong("a registration is destroyed to which a window is bound");
    }
    if (world_->IsNamedByWork(*device_, local_key()))
      world_->Wrong("a registration is destroyed that work names");
    device_->regions.erase(local_key());
  }
  FabricRegistration(const FabricRegistration&) = delete;
  FabricRegistration& operator=(const FabricRegistration&) = delete;

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<DeviceState> device_;
};

class FabricWindow final : public rdma::MemoryWindow {
 public:
  FabricWindow(std::shared_ptr<World> world, std::shared_ptr<DeviceState> device, uint32_t key)
      : MemoryWindow(key), world_(std::move(world)), device_(std::move(device)), index_(key >> kIndexShift) {}
  ~FabricWindow() override {
    const MutexLock lock(world_->mutex);
    if (world_->IsNamedByWork(*this)) world_->Wrong("a window is destroyed that work is to bind");
    device_->windows.erase(index_);
  }
  FabricWindow(const FabricWindow&) = delete;
  FabricWindow& operator=(const FabricWindow&) = delete;

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<DeviceState> device_;
  const uint32_t index_;
};

Error IsGone(const AdapterState& adapter) {
  return {ErrorCode::kUnavailable, fmt::format("RDMA: the adapter {}: was removed", adapter.name)};
}

}  // namespace

// ---- The device

FabricDevice::~FabricDevice() {
  const MutexLock lock(world_->mutex);
  const DeviceState& state = *state_;
  if (!state.regions.empty() || !state.windows.empty() || !state.receive_queues.empty() ||
      state.completion_queues > 0 || state.queue_pairs > 0) {
    world_->Wrong(
        fmt::format("a device is destroyed with {} registrations, {} windows, {} receive queues, {} "
                    "completion queues and {} queue pairs",
                    state.regions.size(), state.windows.size(), state.receive_queues.size(),
                    state.completion_queues, state.queue_pairs));
  }
  --state_->adapter->devices;
}

Result<std::unique_ptr<rdma::Registration>> FabricDevice::Register(std::span<uint8_t> memory,
                                                                   const rdma::MemoryAccess& access) {
  const MutexLock lock(world_->mutex);
  if (memory.empty()) world_->Wrong("no memory is registered");
  if (access.peer_may_write && !access.local_write)
    world_->Wrong("memory that the peer may write, and its own adapter not");
  if (state_->adapter->gone) return IsGone(*state_->adapter);
  if (memory.size() > state_->adapter->region_max)
    return Error(ErrorCode::kResourceExhausted, fmt::format("RDMA: {} locks no more memory", name()));
  const uint32_t local_key = world_->NextKey();
  const uint32_t remote_key = world_->NextKey();
  state_->regions[local_key] = {.address = reinterpret_cast<uint64_t>(memory.data()),
                                .bytes = memory.size(),
                                .access = access,
                                .remote_key = remote_key};
  return std::unique_ptr<rdma::Registration>(
      std::make_unique<FabricRegistration>(world_, state_, local_key, remote_key));
}

Result<std::unique_ptr<rdma::MemoryWindow>> FabricDevice::MakeWindow() {
  const MutexLock lock(world_->mutex);
  if (state_->adapter->gone) return IsGone(*state_->adapter);
  if (state_->windows.size() >= std::min(limits().windows, state_->adapter->windows_left))
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("RDMA: {} gives no memory window (it has {})", name(), limits().windows));
  const uint32_t key = world_->NextKey();
  auto window = std::make_unique<FabricWindow>(world_, state_, key);
  state_->windows[key >> kIndexShift].binding.window = window.get();
  return std::unique_ptr<rdma::MemoryWindow>(std::move(window));
}

Result<std::unique_ptr<rdma::CompletionQueue>> FabricDevice::MakeCompletionQueue(uint32_t entries,
                                                                                 uint32_t /*vector*/) {
  const MutexLock lock(world_->mutex);
  if (state_->adapter->gone) return IsGone(*state_->adapter);
  if (entries == 0 || entries > limits().completion_entries) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("RDMA: {} makes no completion queue of {} entries (it has up to {})", name(),
                             entries, limits().completion_entries));
  }
  auto made = std::make_shared<CompletionState>();
  made->device = state_;
  made->entries_max = entries;
  ++state_->completion_queues;
  return std::unique_ptr<rdma::CompletionQueue>(
      std::make_unique<FabricCompletionQueue>(world_, std::move(made)));
}

Result<std::unique_ptr<rdma::ReceiveQueue>> FabricDevice::MakeReceiveQueue(uint32_t entries) {
  const MutexLock lock(world_->mutex);
  if (state_->adapter->gone) return IsGone(*state_->adapter);
  if (entries == 0 || entries > limits().receive_entries ||
      state_->receive_queues.size() >= limits().receive_queues) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("RDMA: {} makes no receive queue of {} entries (it has {} queues of up to {})",
                             name(), entries, limits().receive_queues, limits().receive_entries));
  }
  auto made = std::make_shared<ReceiveState>();
  made->device = state_;
  made->entries_max = entries;
  state_->receive_queues.push_back(made.get());
  return std::unique_ptr<rdma::ReceiveQueue>(std::make_unique<FabricReceiveQueue>(world_, std::move(made)));
}

Status FabricDevice::TakeEvents() {
  const MutexLock lock(world_->mutex);
  state_->events.Clear();
  if (state_->adapter->gone) return IsGone(*state_->adapter);
  return Ok{};
}

// ---- Queues

FabricCompletionQueue::~FabricCompletionQueue() {
  const MutexLock lock(world_->mutex);
  if (state_->queue_pairs > 0) world_->Wrong("a completion queue is destroyed before its queue pairs");
  --state_->device->completion_queues;
}

uint32_t FabricCompletionQueue::Poll(std::span<rdma::Completion> completions) {
  const MutexLock lock(world_->mutex);
  return world_->Poll(*state_, completions);
}

Status FabricCompletionQueue::Arm() {
  const MutexLock lock(world_->mutex);
  if (state_->device->adapter->gone) return IsGone(*state_->device->adapter);
  state_->armed = true;
  return Ok{};
}

FabricReceiveQueue::~FabricReceiveQueue() {
  const MutexLock lock(world_->mutex);
  if (state_->queue_pairs > 0) world_->Wrong("a receive queue is destroyed before its queue pairs");
  std::erase(state_->device->receive_queues, state_.get());
}

uint32_t FabricReceiveQueue::Post(std::span<const rdma::ReceiveWork> works) {
  const MutexLock lock(world_->mutex);
  return world_->PostReceives(*state_, works);
}

// ---- Queue pairs

FabricQueuePair::~FabricQueuePair() {
  const MutexLock lock(world_->mutex);
  world_->DestroyPair(*state_);
}

uint32_t FabricQueuePair::Post(std::span<const rdma::SendWork> works) {
  const MutexLock lock(world_->mutex);
  return world_->PostSends(*state_, works);
}

void FabricQueuePair::Break() {
  const MutexLock lock(world_->mutex);
  world_->Break(*state_);
}

// ----

namespace {

Result<std::shared_ptr<AdapterState>> FindAdapter(World& world, const std::string& local_address)
    CLEAT_REQUIRES(world.mutex) {
  CLEAT_ASSIGN(const sockaddr_storage storage, rdma::ToKernel({local_address, 0}));
  auto adapter = world.AdapterAt(rdma::FromKernel(storage).address);
  if (adapter != nullptr) return adapter;
  return Error(
      ErrorCode::kNotFound,
      fmt::format("RDMA: no adapter has the address {}: take one of an interface that `rdma link` shows",
                  local_address));
}

}  // namespace

Result<std::string> FabricDeviceNameAt(const std::shared_ptr<World>& world,
                                       const std::string& local_address) {
  const MutexLock lock(world->mutex);
  CLEAT_ASSIGN(const auto adapter, FindAdapter(*world, local_address));
  return adapter->name;
}

Result<std::unique_ptr<rdma::Device>> OpenFabricDevice(const std::shared_ptr<World>& world,
                                                       const std::string& local_address) {
  const MutexLock lock(world->mutex);
  CLEAT_ASSIGN(const auto adapter, FindAdapter(*world, local_address));
  if (adapter->devices++ > 0)
    world->Wrong(fmt::format("the adapter {} is opened twice at a time", adapter->name));
  auto state = std::make_shared<DeviceState>();
  state->adapter = adapter;
  std::erase_if(world->devices, [](const auto& known) { return known.expired(); });
  world->devices.push_back(state);
  return std::unique_ptr<rdma::Device>(std::make_unique<FabricDevice>(world, std::move(state)));
}

}  // namespace cleat::test::rdma_fabric
