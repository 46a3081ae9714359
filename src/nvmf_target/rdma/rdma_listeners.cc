// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/rdma_listeners.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/rdma/connect_data.h"
#include "nvme/target/limits.h"
#include "nvmf_target/rdma/rdma_transport.h"

namespace cleat::nvmf_target {

using nvme::fabrics::TextOfAddress;
using nvme::fabrics::TransportAddress;
using nvme::fabrics::TransportType;
using nvme::rdma::RejectStatus;

namespace {

template <typename Record>
std::span<const uint8_t> BytesOf(const Record& record) {
  return {reinterpret_cast<const uint8_t*>(&record), sizeof(record)};
}

void Refuse(rdma::ConnectRequest& request, RejectStatus status, const std::string& why) {
  spdlog::debug("{}: refused over RDMA: {}", request.peer().Text(), why);
  const nvme::rdma::ConnectReject reject = nvme::rdma::RejectOf(status);
  request.Reject(BytesOf(reject));
}

}  // namespace

RdmaListeners::~RdmaListeners() {
  CLEAT_CHECK(listening_.empty() && adapters_.empty());
}

// ---- Listening

Status RdmaListeners::Listen(const TransportAddress& address, std::vector<Reactor*> reactors, bool waits) {
  const std::string text = TextOfAddress(address);
  if (std::ranges::all_of(address.address, [](uint8_t byte) { return byte == 0; })) {
    return Error(ErrorCode::kInvalidArgument,
                 text + ": over RDMA each address is one adapter's: name them one by one");
  }
  CLEAT_TRY(known_.Manager());
  Listening listening{.reactors = std::move(reactors), .listener = nullptr};
  Status listens = Begin(text, listening);
  if (!listens.ok() && !waits) return listens;
  if (!listens.ok()) {
    spdlog::warn("{}: does not listen for NVMe/RDMA hosts yet: {}; it is tried again", text,
                 listens.error().message);
    if (!retry_.pending()) control_.AddTimer(retry_, control_.now_ns() + kRetryNs);
  }
  listening_.insert_or_assign(text, std::move(listening));
  return {};
}

Status RdmaListeners::Begin(const std::string& text, Listening& listening) {
  CLEAT_ASSIGN(const TransportAddress address, nvme::fabrics::ParseAddressOfAnyTransport(text));
  CLEAT_ASSIGN(rdma::ConnectionManager* const manager, known_.Manager());
  CLEAT_ASSIGN(listening.listener, manager->Listen(nvmf::EndpointOf(address), kBacklog, *this));
  spdlog::info("{}: listens for NVMe/RDMA hosts", text);
  return {};
}

void RdmaListeners::StopListening(const TransportAddress& address) {
  listening_.erase(TextOfAddress(address));
}

void RdmaListeners::Ended(rdma::Listener& listener, const Error& error) {
  for (auto& [text, listening] : listening_) {
    if (listening.listener.get() != &listener) continue;
    spdlog::warn("{}: does not listen for NVMe/RDMA hosts any more: {}; it is tried again", text,
                 error.message);
    listening.listener.reset();
    if (!retry_.pending()) control_.AddTimer(retry_, control_.now_ns() + kRetryNs);
    return;
  }
}

void RdmaListeners::ListenAgain() {
  bool all = true;
  for (auto& [text, listening] : listening_) {
    if (listening.listener == nullptr) all &= Begin(text, listening).ok();
  }
  if (!all) control_.AddTimer(retry_, control_.now_ns() + kRetryNs);
}

// ---- Hosts that connect

// A host that connects in vain does so time and again.
void RdmaListeners::CannotConnect(const std::string& peer, const Error& why) {
  if (control_.now_ns() < next_log_ns_) return;
  next_log_ns_ = control_.now_ns() + kLogNs;
  spdlog::warn("{}: an NVMe/RDMA host cannot connect: {}", peer, why.message);
}

void RdmaListeners::Requested(rdma::Listener& listener, std::unique_ptr<rdma::ConnectRequest> request) {
  const auto found = std::ranges::find_if(
      listening_, [&listener](const auto& known) { return known.second.listener.get() == &listener; });
  if (found == listening_.end() || closing_) return;
  if (requests_.size() >= kRequestsMax)
    return Refuse(*request, RejectStatus::kNoResources, "too many requests wait");
  requests_.push_back({std::move(request), found->second.reactors});
  if (!std::exchange(answers_, true)) Spawn(AnswerAll());
}

Task<void> RdmaListeners::AnswerAll() {
  while (!requests_.empty()) {
    Request next = std::move(requests_.front());
    requests_.pop_front();
    co_await Answer(std::move(next));
  }
  answers_ = false;
  CloseGone();
  changed_.Pulse();
}

Task<void> RdmaListeners::Answer(Request asked) {
  rdma::ConnectRequest& request = *asked.request;
  const nvme::rdma::QueueLimits limits{.admin_entries_max = nvme::target::kAdminEntriesMax,
                                       .io_entries_max = kIoEntriesMax,
                                       .queue_id_max = UINT16_MAX};
  nvme::rdma::AskedQueue queue;
  if (const auto refusal = nvme::rdma::ParseRequest(request.private_data(), limits, queue)) {
    Refuse(request, *refusal, nvme::rdma::NameOf(*refusal));
    co_return;
  }
  if (request.peer_serves_reads() == 0) {
    Refuse(request, RejectStatus::kInvalidIrd, "the host serves no READs, by which its data is fetched");
    co_return;
  }
  if (!owner_.MayAccept(nvmf::AddressOf(request.peer()))) {
    Refuse(request, RejectStatus::kNoResources, "there are too many connections");
    co_return;
  }
  const auto adapter = AdapterOf(request);
  Status status;
  if (adapter.ok()) {
    const auto port = co_await PortFor(**adapter, asked.reactors);
    if (port.ok()) {
      status = co_await Connect(request, **adapter, **port, queue.queue_id, queue.entries);
    } else {
      status = port.error();
    }
  } else {
    status = adapter.error();
  }
  if (status.ok()) co_return;
  CannotConnect(request.peer().Text(), status.error());
  Refuse(request, RejectStatus::kNoResources, status.error().message);
}

Result<RdmaListeners::Adapter*> RdmaListeners::AdapterOf(const rdma::ConnectRequest& request) {
  CLEAT_ASSIGN(auto found, known_.OpenFor(request));
  Adapter& adapter = adapters_[found.get()];
  if (adapter.adapter == nullptr) {
    found->Add(*this);
    adapter.adapter = std::move(found);
  }
  return &adapter;
}

// The one with the fewest queues.
Task<Result<RdmaPort*>> RdmaListeners::PortFor(Adapter& adapter, const std::vector<Reactor*>& reactors) {
  Reactor* const reactor = *std::ranges::min_element(
      reactors, {}, [&adapter](Reactor* candidate) { return adapter.queues[candidate]; });
  std::unique_ptr<RdmaPort>& port = adapter.ports[reactor];
  if (port != nullptr) co_return port.get();
  Failure& failure = adapter.failures[reactor];
  if (control_.now_ns() < failure.until_ns) co_return failure.error;
  std::function<void()> on_failed = [this, weak = std::weak_ptr(adapter.adapter)] {
    control_.PostCall([weak] {
      if (const auto failed = weak.lock()) failed->Fail({ErrorCode::kUnavailable, "it takes no more work"});
    });
  };
  auto made = RdmaPort::Make(adapter.adapter->device(), owner_.PortOf(*reactor), std::move(on_failed));
  if (!made.ok()) {
    failure = {made.error(), control_.now_ns() + kFailureNs};
    co_return failure.error;
  }
  co_await reactor->Enter();
  const Status started = (*made)->Start();
  co_await control_.Enter();
  if (!started.ok()) co_return started.error();
  port = std::move(made).value();
  co_return port.get();
}

Task<Status> RdmaListeners::Connect(rdma::ConnectRequest& request, Adapter& adapter, RdmaPort& port,
                                    uint16_t queue_id, uint32_t entries) {
  nvmf::RdmaAdapter* const key = adapter.adapter.get();
  Reactor& reactor = port.reactor();
  CLEAT_CO_ASSIGN(const RdmaPort::Staging staging, port.TakeStaging());
  std::function<void(RdmaLink&)> on_over = [this, key, &reactor](RdmaLink& link) {
    LinkIsOver(key, &reactor, &link);
  };
  const auto link = std::make_shared<RdmaLink>(control_, port, staging, std::move(on_over));
  rdma::QueuePairParts parts;
  parts.device = &key->device();
  parts.completions = &port.completions();
  parts.receives = &port.receives();
  parts.wanted = port.LimitsFor(entries);
  auto connection = request.MakeConnection(parts, link->owner());
  if (!connection.ok()) {
    port.GiveStaging(staging);
    co_return connection.error();
  }
  link->SetConnection(std::move(connection).value());
  ++adapter.queues[&reactor];
  adapter.links.emplace(link.get(), link);
  const TransportAddress local = nvmf::AddressOf(request.local()), peer = nvmf::AddressOf(request.peer());
  const std::string name = TextOfAddress(peer);
  co_await reactor.Enter();
  const Status made = link->MakeQueue(name, queue_id, entries);
  co_await control_.Enter();
  if (!made.ok()) {
    link->GiveUp();
    CannotConnect(name, made.error());
    co_return Ok{};  // the request is the connection's by now
  }
  TransportTraits::Announced announced;
  announced.queue_id = queue_id;
  announced.entries = entries;
  owner_.RdmaAccepted(std::make_unique<RdmaTransport>(control_, link, name, announced), local, peer);
  const nvme::rdma::ConnectReply reply = nvme::rdma::ReplyOf(entries);
  if (key->gone()) link->Break({ErrorCode::kUnavailable, name + ": the adapter is gone"});
  if (!link->ended()) link->Accept(BytesOf(reply));
  co_return Ok{};
}

// ---- The end

void RdmaListeners::AdapterIsGone(nvmf::RdmaAdapter& adapter, const Error& reason) {
  for (const auto& [known, weak] : adapters_.at(&adapter).links) {
    if (const auto link = weak.lock()) link->Break(reason);
  }
  CloseGone();
}

void RdmaListeners::LinkIsOver(nvmf::RdmaAdapter* key, Reactor* reactor, RdmaLink* link) {
  Adapter& adapter = adapters_.at(key);
  --adapter.queues[reactor];
  adapter.links.erase(link);
  changed_.Pulse();
  CloseGone();
}

// While requests are answered an adapter may be in use there.
void RdmaListeners::CloseGone() {
  if (answers_) return;
  std::vector<nvmf::RdmaAdapter*> gone;
  for (const auto& [key, adapter] : adapters_) {
    if (key->gone() && adapter.links.empty()) gone.push_back(key);
  }
  for (nvmf::RdmaAdapter* const key : gone) Spawn(CloseAdapter(key));
}

Task<void> RdmaListeners::CloseAdapter(nvmf::RdmaAdapter* key) {
  auto node = adapters_.extract(key);
  if (node.empty()) co_return;
  ++adapters_closing_;
  Adapter& adapter = node.mapped();
  key->Remove(*this);
  for (auto& [reactor, port] : adapter.ports) {
    if (port == nullptr) continue;
    co_await reactor->Enter();
    port->Stop();
    co_await control_.Enter();
    port.reset();
  }
  adapter.adapter.reset();
  --adapters_closing_;
  changed_.Pulse();
}

Task<void> RdmaListeners::StopAccepting() {
  closing_ = true;
  requests_.clear();
  while (answers_) (void)co_await changed_.Wait();
}

Task<void> RdmaListeners::Close() {
  CLEAT_CHECK(listening_.empty() && closing_ && !answers_);
  retry_.Cancel();
  while (!adapters_.empty()) {
    nvmf::RdmaAdapter* const key = adapters_.begin()->first;
    while (adapters_.contains(key) && !adapters_.at(key).links.empty()) (void)co_await changed_.Wait();
    co_await CloseAdapter(key);
  }
  while (adapters_closing_ > 0) (void)co_await changed_.Wait();
}

}  // namespace cleat::nvmf_target
