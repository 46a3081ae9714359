// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/nvmf_target/rdma/rdma_rig.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <thread>

#include "nvme/target/subsystem.h"
#include "tests/unit/nvmf_target/rdma/rdma_host.h"

namespace cleat::test {
namespace {

constexpr nvme::fabrics::Uuid kUuid = {0x4c, 0x0f, 0x7d, 0x1e, 0x8a, 0x55, 0x4d, 0x0b,
                                       0x9a, 0x53, 0x0b, 0x6b, 0x0f, 0x4d, 0x2f, 0x11};
constexpr int kTurnsMax = 2'000'000;

}  // namespace

// ---- Machines of hosts

RdmaMachine::RdmaMachine(RdmaFabric& fabric, const std::string& name, std::string own_address)
    : address(std::move(own_address)) {
  fabric.AddAdapter(name, {address});
  device = std::move(fabric.OpenDevice(address)).value();
  manager = std::move(fabric.OpenConnectionManager()).value();
}

void RdmaMachine::Pump() {
  pollfd events{.fd = manager->descriptor(), .events = POLLIN, .revents = 0};
  if (poll(&events, 1, 0) > 0) manager->HandleEvents();
  for (RdmaHostQueue* const queue : queues) queue->Pump();
}

// ---- The rig

nvmf_target::PortLimits RdmaRig::SmallLimits() {
  return {.commands = 1024, .data_slabs = 4, .capsule_slabs = 4, .registered_slabs = 16};
}

std::unique_ptr<Reactor> RdmaRig::MakeReactor(uint32_t index) {
  Reactor::Options options;
  options.index = index;
  return std::move(Reactor::Make(clock, options)).value();
}

RdmaRig::RdmaRig(uint32_t adapters, const nvmf_target::PortLimits& limits)
    : target_adapters(*control, LibraryOf(fabric)) {
  for (uint32_t i = 0; i < io.size(); ++i) io[i] = MakeReactor(i + 1);
  for (uint32_t i = 0; i < adapters; ++i) AddTargetAdapter(i);
  machines.push_back(std::make_unique<RdmaMachine>(fabric, "host0", "192.0.2.101"));
  machines.push_back(std::make_unique<RdmaMachine>(fabric, "host1", "192.0.2.102"));
  service = std::make_unique<nvmf_target::TargetService>(target_adapters, nullptr,
                                                         nvmf_target::StreamTuning{}, limits);
  auto made = std::make_unique<Storage>(kBytes);
  storage = made.get();
  backing = block::Pipeline::Make(std::move(made), block::AccessMode::kReadWrite).value();
  for (size_t i = 0; i < io.size(); ++i) channels[i] = std::move(backing->OpenChannel(*io[i])).value();
  AddSubsystem(adapters);
}

void RdmaRig::AddTargetAdapter(uint32_t number) {
  rdma::DeviceLimits limits = RdmaFabric::UsualLimits();
  limits.receive_entries = kSlots;
  fabric.AddAdapter(AdapterName(number), {AddressOf(number)}, limits);
}

void RdmaRig::AddSubsystem(uint32_t adapters) {
  nvmf_target::SubsystemParts parts;
  parts.name = "controllers/e";
  parts.config.nqn = kNqn;
  parts.config.serial = "S1";
  for (uint8_t i = 0; i < 4; ++i) parts.config.hosts.push_back(nvme::target::HostAccess::Named(Host(i).nqn));
  for (uint32_t i = 0; i < adapters; ++i) {
    const std::string address = "rdma://" + AddressOf(i) + ":" + std::to_string(kPort);
    parts.config.addresses.push_back(nvme::fabrics::ParseAddressOfAnyTransport(address).value());
  }
  for (const auto& reactor : io) parts.reactors.push_back(reactor.get());
  CLEAT_CHECK(service->AddSubsystem(std::move(parts)).ok());
  const auto added = Await<Status>([](RdmaRig& rig) -> Task<Status> {
    nvmf_target::NamespaceParts of_namespace;
    nvme::fabrics::NamespaceIds ids;
    ids.uuid = kUuid;
    of_namespace.shape = nvme::target::ShapeOf(rig.backing->geometry(), false, ids);
    of_namespace.channel_on = [&rig](Reactor& reactor) {
      return nvmf_target::NamespaceChannel{rig.channels[&reactor == rig.io[0].get() ? 0 : 1].get()};
    };
    co_return co_await rig.service->AddNamespace(kNqn, 1, std::move(of_namespace));
  });
  CLEAT_CHECK(added->ok());
  const Status served = service->Serve(kNqn);
  CLEAT_CHECK(served.ok());
}

void RdmaRig::Close() {
  if (std::exchange(closed_, true)) return;
  if (!threads_.running()) storage->LetGo();
  Await<bool>([](RdmaRig& rig) -> Task<bool> {
    (void)co_await rig.service->Withdraw(kNqn);
    co_await rig.service->RemoveNamespace(kNqn, 1);
    rig.service->RemoveSubsystem(kNqn);
    co_await rig.service->Close();
    co_return true;
  });
}

RdmaRig::~RdmaRig() {
  Close();
  threads_.Stop();
  service.reset();
  for (auto& channel : channels) channel.reset();
  Await<bool>([](RdmaRig& rig) -> Task<bool> {
    (void)co_await rig.backing->Close();
    co_return true;
  });
  for (int turn = 0; turn < 100; ++turn) Turn();
  machines.clear();
  EXPECT_EQ(fabric.WhatWasWrong(), std::vector<std::string>());
  for (uint32_t i = 0; i < 2; ++i) EXPECT_EQ(fabric.devices(AdapterName(i)), 0U);
}

// ---- Time

void RdmaRig::Turn() {
  PassTime();
  control->RunOnce();
  if (!threads_.running()) {
    for (auto& reactor : io) reactor->RunOnce();
  }
  for (const auto& machine : machines) machine->Pump();
}

void RdmaRig::PassTime() {
  if (threads_.running() && !threads_.HaveTurned()) return std::this_thread::yield();
  clock.AdvanceBy(kTurnNs);
}

void RdmaRig::TurnIo() {
  clock.AdvanceBy(kTurnNs);
  for (auto& reactor : io) reactor->RunOnce();
}

void RdmaRig::TurnControl() {
  clock.AdvanceBy(kTurnNs);
  control->RunOnce();
}

bool RdmaRig::Until(const std::function<bool()>& done) {
  for (int turn = 0; turn < kTurnsMax; ++turn) {
    if (done()) return true;
    Turn();
  }
  return false;
}

void RdmaRig::Settle() {
  for (int turn = 0; turn < 100; ++turn) Turn();
}

void RdmaRig::Pass(uint64_t ns) {
  // Timers' ticks are no finer than that.
  constexpr uint64_t kStepNs = kNsPerMs;
  for (const uint64_t until = clock.NowNs() + ns; clock.NowNs() < until;) {
    clock.AdvanceBy(kStepNs);
    Turn();
  }
  Settle();
}

void RdmaRig::Begin(std::function<Task<void>(RdmaRig&)> make, bool& done) {
  control->PostCall(
      [this, make = std::move(make), &done]() mutable { Spawn(Note(std::move(make), *this, done)); });
}

}  // namespace cleat::test
