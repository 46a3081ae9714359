// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/rdma/rdma_listeners.h"

#include <arpa/inet.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "nvme/rdma/connect_data.h"
#include "nvme/target/limits.h"
#include "nvmf_target/rdma/rdma_transport.h"

namespace cleat::nvmf_target {

using nvme::fabrics::AddressFamily;
using nvme::fabrics::TextOfAddress;
using nvme::fabrics::TransportAddress;
using nvme::fabrics::TransportType;
using nvme::rdma::RejectStatus;

namespace {

rdma::Endpoint EndpointOf(const TransportAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(address.family == AddressFamily::kIpv4 ? AF_INET : AF_INET6, address.address.data(), text.data(),
            text.size());
  return {text.data(), address.port};
}

TransportAddress AddressOf(const rdma::Endpoint& endpoint) {
  const bool ipv6 = endpoint.address.find(':') != std::string::npos;
  // Without a link-local address's zone.
  const std::string literal = endpoint.address.substr(0, endpoint.address.find('%'));
  auto address = nvme::fabrics::TransportAddressOf(ipv6 ? AddressFamily::kIpv6 : AddressFamily::kIpv4,
                                                   literal, std::to_string(endpoint.port));
  TransportAddress known = address.ok() ? *address : TransportAddress();
  known.transport = TransportType::kRdma;
  return known;
}

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

struct RdmaListeners::AdapterWatch : FdWatch {
  AdapterWatch(RdmaListeners& l, rdma::Device* d) : FdWatch(&OnEvent), listeners(l), device(d) {}
  static void OnEvent(FdWatch& watch, uint32_t /*events*/) {
    auto& self = static_cast<AdapterWatch&>(watch);
    const Status status = self.device->TakeEvents();
    if (!status.ok()) self.listeners.AdapterIsGone(self.device, status.error());
  }
  RdmaListeners& listeners;
  rdma::Device* device;
};

RdmaListeners::~RdmaListeners() {
  CLEAT_CHECK(listening_.empty() && adapters_.empty() && manager_ == nullptr);
}

// ---- Listening

Status RdmaListeners::OpenManager() {
  if (manager_ != nullptr) return {};
  CLEAT_ASSIGN(auto manager, rdma::OpenConnectionManager());
  CLEAT_TRY(watch_.Start(control_, manager->descriptor(), EPOLLIN));
  manager_ = std::move(manager);
  return {};
}

Status RdmaListeners::Listen(const TransportAddress& address, std::vector<Reactor*> reactors, bool waits) {
  const std::string text = TextOfAddress(address);
  if (std::ranges::all_of(address.address, [](uint8_t byte) { return byte == 0; })) {
    return Error(ErrorCode::kInvalidArgument,
                 text + ": over RDMA each address is one adapter's: name them one by one");
  }
  CLEAT_TRY(OpenManager());
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
  CLEAT_ASSIGN(listening.listener, manager_->Listen(EndpointOf(address), kBacklog, *this));
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

// Edges alone are told, and as many events are handled as the manager does at a time: the others have the next turn.
void RdmaListeners::HandleEvents() {
  manager_->HandleEvents();
  pollfd more{.fd = manager_->descriptor(), .events = POLLIN, .revents = 0};
  if (poll(&more, 1, 0) > 0 && !more_.pending()) control_.AddTimer(more_, control_.now_ns());
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
  if (!owner_.MayAccept(AddressOf(request.peer()))) {
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
  for (auto& [device, adapter] : adapters_) {
    if (!adapter.gone && request.IsOn(*device)) return &adapter;
  }
  CLEAT_ASSIGN(auto opened, rdma::OpenDevice(request.local().address));
  rdma::Device* const device = opened.get();
  auto watch = std::make_unique<AdapterWatch>(*this, device);
  CLEAT_TRY(watch->Start(control_, device->descriptor(), EPOLLIN));
  Adapter& adapter = adapters_[device];
  adapter.device = std::move(opened);
  adapter.watch = std::move(watch);
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
  std::function<void()> on_failed = [this, device = adapter.device.get()] {
    const Error reason(ErrorCode::kUnavailable, "it takes no more work");
    control_.PostCall([this, device, reason] { AdapterIsGone(device, reason); });
  };
  auto made = RdmaPort::Make(*adapter.device, owner_.PortOf(*reactor), std::move(on_failed));
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
  rdma::Device* const device = adapter.device.get();
  Reactor& reactor = port.reactor();
  CLEAT_CO_ASSIGN(const RdmaPort::Staging staging, port.TakeStaging());
  std::function<void(RdmaLink&)> on_over = [this, device, &reactor](RdmaLink& link) {
    LinkIsOver(device, &reactor, &link);
  };
  const auto link = std::make_shared<RdmaLink>(control_, port, staging, std::move(on_over));
  rdma::QueuePairParts parts;
  parts.device = device;
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
  const TransportAddress local = AddressOf(request.local()), peer = AddressOf(request.peer());
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
  if (adapter.gone) link->Break({ErrorCode::kUnavailable, name + ": the adapter is gone"});
  if (!link->ended()) link->Accept(BytesOf(reply));
  co_return Ok{};
}

// ---- The end

// An adapter that fails without being removed tells its connections nothing.
void RdmaListeners::AdapterIsGone(rdma::Device* device, const Error& reason) {
  const auto found = adapters_.find(device);
  if (found == adapters_.end() || std::exchange(found->second.gone, true)) return;
  spdlog::warn("RDMA adapter {}: {}; its hosts lose their connections", device->name(), reason.message);
  for (const auto& [known, weak] : found->second.links) {
    if (const auto link = weak.lock()) link->Break(reason);
  }
  CloseGone();
}

void RdmaListeners::LinkIsOver(rdma::Device* device, Reactor* reactor, RdmaLink* link) {
  Adapter& adapter = adapters_.at(device);
  --adapter.queues[reactor];
  adapter.links.erase(link);
  changed_.Pulse();
  CloseGone();
}

// While requests are answered an adapter may be in use there.
void RdmaListeners::CloseGone() {
  if (answers_) return;
  std::vector<rdma::Device*> gone;
  for (const auto& [device, adapter] : adapters_) {
    if (adapter.gone && adapter.links.empty()) gone.push_back(device);
  }
  for (rdma::Device* const device : gone) Spawn(CloseAdapter(device));
}

Task<void> RdmaListeners::CloseAdapter(rdma::Device* device) {
  auto node = adapters_.extract(device);
  if (node.empty()) co_return;
  ++adapters_closing_;
  Adapter& adapter = node.mapped();
  adapter.watch.reset();
  for (auto& [reactor, port] : adapter.ports) {
    if (port == nullptr) continue;
    co_await reactor->Enter();
    port->Stop();
    co_await control_.Enter();
    port.reset();
  }
  adapter.device.reset();
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
    rdma::Device* const device = adapters_.begin()->first;
    while (adapters_.contains(device) && !adapters_.at(device).links.empty()) (void)co_await changed_.Wait();
    co_await CloseAdapter(device);
  }
  while (adapters_closing_ > 0) (void)co_await changed_.Wait();
  watch_.Stop();
  more_.Cancel();
  manager_.reset();
}

}  // namespace cleat::nvmf_target
