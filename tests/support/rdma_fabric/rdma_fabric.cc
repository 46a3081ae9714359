// SPDX-License-Identifier: Apache-2.0
#include "tests/support/rdma_fabric/rdma_fabric.h"

#include "base/check.h"
#include "rdma/endpoint.h"
#include "tests/support/rdma_fabric/connections.h"
#include "tests/support/rdma_fabric/device.h"
#include "tests/support/rdma_fabric/world.h"

namespace cleat::test {

using rdma_fabric::AdapterState;
using rdma_fabric::PairState;

RdmaFabric::RdmaFabric()
    : connections_(std::make_shared<rdma_fabric::ConnectionWorld>(std::make_shared<rdma_fabric::World>())) {}

RdmaFabric::~RdmaFabric() = default;

rdma::DeviceLimits RdmaFabric::UsualLimits() {
  return {.queue_pairs = 4096,
          .works = 4096,
          .pieces = 16,
          .read_pieces = 16,
          .receive_queues = 1024,
          .receive_entries = 16384,
          .completion_entries = 65536,
          .reads_served = 16,
          .reads_sent = 16,
          .windows = 4096,
          .windows_of_type_2b = true};
}

// ---- Adapters

void RdmaFabric::AddAdapter(const std::string& name, const std::vector<std::string>& addresses,
                            const rdma::DeviceLimits& limits) {
  auto adapter = std::make_shared<AdapterState>();
  adapter->name = name;
  adapter->limits = limits;
  for (const std::string& address : addresses)
    adapter->addresses.push_back(rdma::FromKernel(rdma::ToKernel({address, 0}).value()).address);
  const MutexLock lock(connections_->world->mutex);
  CLEAT_CHECK(!addresses.empty() && connections_->world->AdapterOf(name) == nullptr);
  for (const std::string& address : adapter->addresses)
    CLEAT_CHECK(connections_->world->AdapterAt(address) == nullptr);
  connections_->world->adapters.push_back(std::move(adapter));
}

void RdmaFabric::RemoveAdapter(const std::string& name) {
  const MutexLock lock(connections_->world->mutex);
  const auto adapter = connections_->world->AdapterOf(name);
  CLEAT_CHECK(adapter != nullptr);
  connections_->world->Lose(adapter);
  connections_->AdapterIsGone(adapter);
}

void RdmaFabric::FailAdapter(const std::string& name) {
  const MutexLock lock(connections_->world->mutex);
  const auto adapter = connections_->world->AdapterOf(name);
  CLEAT_CHECK(adapter != nullptr);
  connections_->world->Lose(adapter);
}

void RdmaFabric::LeaveWindows(const std::string& name, uint32_t windows) {
  const MutexLock lock(connections_->world->mutex);
  const auto adapter = connections_->world->AdapterOf(name);
  CLEAT_CHECK(adapter != nullptr);
  adapter->windows_left = windows;
}

void RdmaFabric::SendPlainly(const std::string& name) {
  const MutexLock lock(connections_->world->mutex);
  const auto adapter = connections_->world->AdapterOf(name);
  CLEAT_CHECK(adapter != nullptr);
  adapter->sends_plainly = true;
}

Result<std::unique_ptr<rdma::ConnectionManager>> RdmaFabric::OpenConnectionManager() {
  return rdma_fabric::OpenFabricConnectionManager(connections_);
}

Result<std::unique_ptr<rdma::Device>> RdmaFabric::OpenDevice(const std::string& local_address) {
  return rdma_fabric::OpenFabricDevice(connections_->world, local_address);
}

Result<std::string> RdmaFabric::DeviceNameAt(const std::string& local_address) const {
  return rdma_fabric::FabricDeviceNameAt(connections_->world, local_address);
}

// ---- Orders

void RdmaFabric::Hold(uint32_t pair) {
  const MutexLock lock(connections_->world->mutex);
  PairState* const state = connections_->world->FindPair(pair);
  CLEAT_CHECK(state != nullptr);
  state->held = true;
  state->released = 0;
}

void RdmaFabric::Release(uint32_t pair, uint32_t works) {
  const MutexLock lock(connections_->world->mutex);
  PairState* const state = connections_->world->FindPair(pair);
  CLEAT_CHECK(state != nullptr);
  if (works == UINT32_MAX) {
    state->held = false;
  } else {
    state->released += works;
  }
  connections_->world->PumpAll();
}

uint32_t RdmaFabric::waiting(uint32_t pair) const {
  const MutexLock lock(connections_->world->mutex);
  const PairState* const state = connections_->world->FindPair(pair);
  return state == nullptr ? 0 : static_cast<uint32_t>(state->pending.size());
}

uint32_t RdmaFabric::LastPairOn(const std::string& adapter) const {
  const MutexLock lock(connections_->world->mutex);
  return connections_->world->LastPairOn(adapter);
}

uint32_t RdmaFabric::PeerOf(uint32_t pair) const {
  const MutexLock lock(connections_->world->mutex);
  const PairState* const state = connections_->world->FindPair(pair);
  return state == nullptr || state->peer == nullptr ? 0 : state->peer->number;
}

void RdmaFabric::SetSilence(uint32_t pair, RdmaSilence silence) {
  const MutexLock lock(connections_->world->mutex);
  PairState* const state = connections_->world->FindPair(pair);
  CLEAT_CHECK(state != nullptr);
  state->silence = silence;
  connections_->world->PumpAll();
}

void RdmaFabric::Break(uint32_t pair) {
  const MutexLock lock(connections_->world->mutex);
  PairState* const state = connections_->world->FindPair(pair);
  CLEAT_CHECK(state != nullptr);
  connections_->world->Break(*state);
}

void RdmaFabric::GiveUp() {
  const MutexLock lock(connections_->world->mutex);
  connections_->world->GiveUpWorks();
  connections_->GiveUp();
}

// ---- What there is

uint32_t RdmaFabric::receives_posted(const std::string& adapter) const {
  const MutexLock lock(connections_->world->mutex);
  uint32_t posted = 0;
  if (const auto device = connections_->world->LastDeviceOf(adapter)) {
    for (const auto* const receives : device->receive_queues)
      posted += static_cast<uint32_t>(receives->posted.size());
  }
  return posted;
}

std::vector<RdmaWay> RdmaFabric::TakeWays() {
  const MutexLock lock(connections_->world->mutex);
  return std::exchange(connections_->ways, {});
}

uint32_t RdmaFabric::queue_pairs(const std::string& adapter) const {
  const MutexLock lock(connections_->world->mutex);
  const auto device = connections_->world->LastDeviceOf(adapter);
  return device == nullptr ? 0 : device->queue_pairs;
}

uint32_t RdmaFabric::devices(const std::string& adapter) const {
  const MutexLock lock(connections_->world->mutex);
  const auto device = connections_->world->LastDeviceOf(adapter);
  return device == nullptr ? 0 : device->adapter->devices;
}

bool RdmaFabric::IsShown(std::span<const uint8_t> memory) const {
  const MutexLock lock(connections_->world->mutex);
  const auto address = reinterpret_cast<uint64_t>(memory.data());
  const auto shows = [&](const rdma_fabric::WindowState& window) {
    const rdma::WindowBinding& binding = window.binding;
    return window.pair != nullptr && binding.address < address + memory.size() &&
           address < binding.address + binding.length_bytes;
  };
  for (const auto& weak : connections_->world->devices) {
    const auto device = weak.lock();
    if (device == nullptr) continue;
    for (const auto& [index, window] : device->windows) {
      if (shows(window)) return true;
    }
  }
  return false;
}

void RdmaFabric::SetRegionMax(const std::string& adapter, uint64_t bytes) {
  const MutexLock lock(connections_->world->mutex);
  connections_->world->AdapterOf(adapter)->region_max = bytes;
}

uint32_t RdmaFabric::registrations(const std::string& adapter) const {
  const MutexLock lock(connections_->world->mutex);
  const auto device = connections_->world->LastDeviceOf(adapter);
  return device == nullptr ? 0 : static_cast<uint32_t>(device->regions.size());
}

std::vector<std::string> RdmaFabric::WhatWasWrong() {
  const MutexLock lock(connections_->world->mutex);
  return connections_->world->TakeWrong();
}

}  // namespace cleat::test
