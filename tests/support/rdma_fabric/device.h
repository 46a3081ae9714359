// SPDX-License-Identifier: Apache-2.0
// A device of a fabric and what is made on it (rdma/device.h): handles to the states of world.h.
#pragma once

#include <memory>
#include <string>

#include "tests/support/rdma_fabric/world.h"

namespace cleat::test::rdma_fabric {

class FabricDevice final : public rdma::Device {
 public:
  FabricDevice(std::shared_ptr<World> world, std::shared_ptr<DeviceState> state)
      : world_(std::move(world)), state_(std::move(state)) {}
  ~FabricDevice() override;
  FabricDevice(const FabricDevice&) = delete;
  FabricDevice& operator=(const FabricDevice&) = delete;

  const std::string& name() const override { return state_->adapter->name; }
  const rdma::DeviceLimits& limits() const override { return state_->adapter->limits; }
  Result<std::unique_ptr<rdma::Registration>> Register(std::span<uint8_t> memory,
                                                       const rdma::MemoryAccess& access) override;
  Result<std::unique_ptr<rdma::MemoryWindow>> MakeWindow() override;
  Result<std::unique_ptr<rdma::CompletionQueue>> MakeCompletionQueue(uint32_t entries,
                                                                     uint32_t vector) override;
  Result<std::unique_ptr<rdma::ReceiveQueue>> MakeReceiveQueue(uint32_t entries) override;
  int descriptor() const override { return state_->events.get(); }
  Status TakeEvents() override;

  const std::shared_ptr<DeviceState>& state() const { return state_; }

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<DeviceState> state_;
};

class FabricCompletionQueue final : public rdma::CompletionQueue {
 public:
  FabricCompletionQueue(std::shared_ptr<World> world, std::shared_ptr<CompletionState> state)
      : world_(std::move(world)), state_(std::move(state)) {}
  ~FabricCompletionQueue() override;
  FabricCompletionQueue(const FabricCompletionQueue&) = delete;
  FabricCompletionQueue& operator=(const FabricCompletionQueue&) = delete;

  uint32_t Poll(std::span<rdma::Completion> completions) override;
  Status Arm() override;
  int descriptor() const override { return state_->event.get(); }
  void TakeEvents() override { state_->event.Clear(); }

  const std::shared_ptr<CompletionState>& state() const { return state_; }

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<CompletionState> state_;
};

class FabricReceiveQueue final : public rdma::ReceiveQueue {
 public:
  FabricReceiveQueue(std::shared_ptr<World> world, std::shared_ptr<ReceiveState> state)
      : world_(std::move(world)), state_(std::move(state)) {}
  ~FabricReceiveQueue() override;
  FabricReceiveQueue(const FabricReceiveQueue&) = delete;
  FabricReceiveQueue& operator=(const FabricReceiveQueue&) = delete;

  uint32_t Post(std::span<const rdma::ReceiveWork> works) override;

  const std::shared_ptr<ReceiveState>& state() const { return state_; }

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<ReceiveState> state_;
};

class FabricQueuePair final : public rdma::QueuePair {
 public:
  FabricQueuePair(std::shared_ptr<World> world, std::shared_ptr<PairState> state)
      : world_(std::move(world)), state_(std::move(state)) {}
  ~FabricQueuePair() override;
  FabricQueuePair(const FabricQueuePair&) = delete;
  FabricQueuePair& operator=(const FabricQueuePair&) = delete;

  uint32_t number() const override { return state_->number; }
  const rdma::SendLimits& limits() const override { return state_->limits; }
  uint32_t Post(std::span<const rdma::SendWork> works) override;
  void Break() override;

 private:
  const std::shared_ptr<World> world_;
  const std::shared_ptr<PairState> state_;
};

// As rdma::DeviceNameAt, rdma::OpenDevice.
Result<std::string> FabricDeviceNameAt(const std::shared_ptr<World>& world, const std::string& local_address);
Result<std::unique_ptr<rdma::Device>> OpenFabricDevice(const std::shared_ptr<World>& world,
                                                       const std::string& local_address);

}  // namespace cleat::test::rdma_fabric
