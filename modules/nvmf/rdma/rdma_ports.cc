// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/rdma/rdma_ports.h"

#include <functional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "modules/nvmf/rdma/host_link.h"

namespace cleat::modules {

RdmaPorts::~RdmaPorts() {
  CLEAT_CHECK(in_use_.empty() && adapters_closing_ == 0);
}

Task<Result<RdmaPorts::Way>> RdmaPorts::Find(nvme::fabrics::PathAddress address, Reactor& reactor,
                                             HostLink& link) {
  Way way;
  CLEAT_CO_ASSIGN(way.manager, adapters_.Manager());
  CLEAT_CO_ASSIGN(way.from, adapters_.LocalAddressOf(address));
  CLEAT_CO_ASSIGN(auto found, adapters_.Open(way.from));
  Adapter& adapter = in_use_[found.get()];
  if (adapter.adapter == nullptr) {
    found->Add(*this);
    adapter.guests = MakeGuestMemory(*found);
    adapter.adapter = std::move(found);
  }
  adapter.links.insert(&link);
  CLEAT_CO_ASSIGN(way.port, co_await PortOn(adapter, reactor));
  co_return way;
}

void RdmaPorts::Over(HostLink& link) {
  for (auto& [key, adapter] : in_use_) adapter.links.erase(&link);
  CloseGone();
  changed_.Pulse();
}

// ---- Ports

std::shared_ptr<GuestMemory> RdmaPorts::MakeGuestMemory(nvmf::RdmaAdapter& adapter) {
  using block::MemoryRegistration;
  for (uint32_t number = MemoryRegistration::kFirstAdapter; number < MemoryRegistration::kRegistrarsMax;
       ++number) {
    if (numbers_.insert(number).second)
      return std::make_shared<GuestMemory>(adapter.device(), control(), guests_, number);
  }
  spdlog::warn(
      "RDMA adapter {}: disks are reached by {} adapters that have guests' memory registered with them, "
      "which is as many as there may be: "
      "what goes by this one is copied",
      adapter.device().name(), numbers_.size());
  return nullptr;
}

Task<Result<HostPort*>> RdmaPorts::PortOn(Adapter& adapter, Reactor& reactor) {
  Port& port = adapter.ports[&reactor];
  while (port.being_made) (void)co_await changed_.Wait();
  if (port.port != nullptr) co_return port.port.get();
  if (control().now_ns() < port.not_before_ns) co_return port.failure;
  port.being_made = true;
  const Status made = co_await MakePort(adapter, port, reactor);
  port.being_made = false;
  if (!made.ok()) {
    port.failure = made.error();
    port.not_before_ns = control().now_ns() + kFailureNs;
  }
  changed_.Pulse();
  if (!made.ok()) co_return made.error();
  co_return port.port.get();
}

Task<Status> RdmaPorts::MakePort(Adapter& adapter, Port& port, Reactor& reactor) {
  Reactor& control = this->control();
  std::function<void()> on_failed = [&control, weak = std::weak_ptr(adapter.adapter)] {
    control.PostCall([weak] {
      if (const auto failed = weak.lock()) failed->Fail({ErrorCode::kUnavailable, "it takes no more work"});
    });
  };
  const bool is_for_admin = &reactor == &control;
  const std::function<Result<std::unique_ptr<HostPort>>()> make = [&] {
    return HostPort::Make(adapter.adapter->device(), reactor,
                          is_for_admin ? HostPort::kForAdmin : HostPort::kForIo,
                          is_for_admin ? nullptr : adapter.guests.get(), std::move(on_failed));
  };
  CLEAT_CO_ASSIGN(auto made, co_await making_.Run<Result<std::unique_ptr<HostPort>>>(make));
  co_await reactor.Enter();
  const Status started = made->Start();
  co_await control.Enter();
  if (started.ok()) port.port = std::move(made);
  co_return started;
}

// ---- The end

void RdmaPorts::AdapterIsGone(nvmf::RdmaAdapter& adapter, const Error& reason) {
  for (HostLink* const link : std::set<HostLink*>(in_use_.at(&adapter).links)) link->Break(reason);
  CloseGone();
}

void RdmaPorts::CloseGone() {
  std::vector<nvmf::RdmaAdapter*> gone;
  for (const auto& [key, adapter] : in_use_) {
    if (key->gone() && adapter.links.empty()) gone.push_back(key);
  }
  for (nvmf::RdmaAdapter* const key : gone) Spawn(CloseAdapter(key));
}

Task<void> RdmaPorts::CloseAdapter(nvmf::RdmaAdapter* key) {
  auto node = in_use_.extract(key);
  if (node.empty()) co_return;
  ++adapters_closing_;
  Adapter& adapter = node.mapped();
  key->Remove(*this);
  for (auto& [reactor, port] : adapter.ports) {
    if (port.port == nullptr) continue;
    co_await reactor->Enter();
    port.port->Stop();
    co_await control().Enter();
    port.port.reset();
  }
  if (adapter.guests != nullptr) {
    co_await adapter.guests->Close();
    numbers_.erase(adapter.guests->number());
  }
  adapter.adapter.reset();
  --adapters_closing_;
  changed_.Pulse();
}

Task<void> RdmaPorts::Close() {
  while (!in_use_.empty()) {
    nvmf::RdmaAdapter* const key = in_use_.begin()->first;
    while (in_use_.contains(key) && !in_use_.at(key).links.empty()) (void)co_await changed_.Wait();
    co_await CloseAdapter(key);
  }
  while (adapters_closing_ > 0) (void)co_await changed_.Wait();
}

}  // namespace cleat::modules
