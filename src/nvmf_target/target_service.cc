// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/target_service.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/random.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/version.h"
#include "nvmf_target/placement.h"

namespace cleat::nvmf_target {

using nvme::fabrics::AnaState;
using nvme::fabrics::TextOfAddress;
using nvme::fabrics::TransportAddress;
using nvme::fabrics::TransportType;

namespace {

// More than a host needs at a time for what it does without waiting: a block of 16 KiB needs no R2T.
constexpr uint32_t kInCapsuleBytes = 16 * 1024;
constexpr uint32_t kQueueEntriesMax = 256;
constexpr uint32_t kReceiveBufferBytes = 64 * 1024;
constexpr uint64_t kTickLeastNs = 50 * kNsPerMs;

nvme::target::TargetLimits Limits(bool reservations) {
  nvme::target::TargetLimits limits;
  limits.tcp.in_capsule_bytes = kInCapsuleBytes;
  limits.rdma.in_capsule_bytes = RdmaPort::kInCapsuleBytes;
  limits.transfer_bytes_max = nvme::fabrics::kTransferBytesMax;
  limits.queue_entries_max = kQueueEntriesMax;
  limits.features.reservations = reservations;
  return limits;
}

// The kernel's: engines that begin alike must not draw alike.
uint64_t DrawNumber() {
  uint64_t number = 0;
  CLEAT_CHECK(getrandom(&number, sizeof(number), 0) == static_cast<ssize_t>(sizeof(number)));
  return number;
}

}  // namespace

TargetService::TargetService(nvmf::RdmaAdapters& adapters, DescriptorBudget* descriptors, StreamTuning tuning,
                             const PortLimits& port_limits, ReservationStore* reservations)
    : control_(adapters.control()),
      descriptors_(descriptors),
      tuning_(tuning),
      port_limits_(port_limits),
      reservation_store_(reservations),
      limits_(Limits(reservations != nullptr)),
      target_(limits_, kVersion, &DrawNumber),
      receive_buffer_(kReceiveBufferBytes),
      rdma_(adapters, *this),
      changed_(control_) {}

TargetService::~TargetService() {
  CLEAT_CHECK(subsystems_.empty() && connections_.empty() && ports_.empty());
}

TargetService::Shown* TargetService::Find(const std::string& nqn) {
  const auto found = subsystems_.find(nqn);
  return found == subsystems_.end() ? nullptr : &found->second;
}

// ---- Subsystems

Status TargetService::AddSubsystem(SubsystemParts parts) {
  CLEAT_CHECK(!parts.reactors.empty());
  CLEAT_TRY(nvme::target::CheckConfig(parts.config));
  const std::string nqn = parts.config.nqn;
  if (Find(nqn) != nullptr)
    return Error(ErrorCode::kAlreadyExists, nqn + ": this engine shows a subsystem of that name already");
  Shown shown;
  shown.name = std::move(parts.name);
  shown.config = std::move(parts.config);
  shown.reactors = std::move(parts.reactors);
  shown.on_change = std::move(parts.on_change);
  for (Reactor* const reactor : shown.reactors) {
    if (!shown.ports.contains(reactor)) shown.ports.emplace(reactor, std::make_shared<SubsystemPort>());
  }
  subsystems_.emplace(nqn, std::move(shown));
  return Ok{};
}

void TargetService::RemoveSubsystem(const std::string& nqn) {
  const Shown* const shown = Find(nqn);
  if (shown == nullptr) return;
  CLEAT_CHECK(!shown->in_target() && shown->namespaces.empty());
  subsystems_.erase(nqn);
}

Status TargetService::Show(Shown& shown, std::span<const TransportAddress> where, Addresses addresses,
                           AnaState ana) {
  const std::string& nqn = shown.config.nqn;
  shown.config.controller_id_begin =
      static_cast<uint16_t>(control_.random().Between(1, nvme::fabrics::kControllerIdLast));
  CLEAT_TRY(target_.Add(shown.config));
  CLEAT_CHECK(target_.SetAna(nqn, ana).ok());
  for (const auto& [nsid, space] : shown.namespaces) {
    const Status put = target_.PutNamespace(nqn, nsid, space.shape);
    CLEAT_CHECK(put.ok());  // AddNamespace has checked it
    if (space.reservation != nullptr)
      (void)target_.SetReservationPersists(nqn, nsid, space.reservation->reservation().persists);
  }
  Status listening = Listen(shown, where, addresses);
  if (!listening.ok()) (void)target_.Remove(nqn);
  return listening;
}

void TargetService::PostPathStatus(const Shown& shown, AnaState ana) {
  for (const auto& [reactor, port] : shown.ports)
    reactor->PostCall([port, ana] { port->path_status = nvme::target::PathStatusOf(ana); });
}

Task<void> TargetService::BecomeInaccessible(const Shown& shown) {
  for (const auto& [reactor, port] : shown.ports) {
    co_await reactor->Enter();
    port->path_status = nvme::target::PathStatusOf(AnaState::kInaccessible);
    co_await control_.Enter();
  }
}

void TargetService::PostCounters(const Shown& shown) {
  for (const auto& [reactor, port] : shown.ports) {
    for (const auto& [nsid, space] : shown.namespaces) {
      reactor->PostCall(
          [&of_reactor = PortOf(*reactor), port, index = nsid - 1, on = space.channel_on(*reactor)] {
            of_reactor.UseCounters(on.reactor_counters);
            port->namespaces[index].counters = on.counters;
          });
    }
  }
}

Status TargetService::StandBy(const std::string& nqn) {
  Shown& shown = *Find(nqn);
  CLEAT_CHECK(!shown.served);
  const auto& where = shown.config.standby_addresses;
  if (shown.stands_by || where.empty()) return Ok{};
  // Ahead of the first queue, whoever has let its hosts go before.
  PostPathStatus(shown, AnaState::kInaccessible);
  // The next engine that is to stand by may listen there already.
  CLEAT_TRY(Show(shown, where, Addresses::kShared, AnaState::kInaccessible));
  shown.stands_by = true;
  return Ok{};
}

Status TargetService::Serve(const std::string& nqn, Addresses addresses,
                            std::vector<SavedAssociation> associations) {
  Shown& shown = *Find(nqn);
  if (shown.served) return Ok{};
  if (shown.stands_by) {
    CLEAT_TRY(Listen(shown, shown.config.addresses, addresses));
    StopListening(shown.config.standby_addresses);
  } else {
    CLEAT_TRY(Show(shown, shown.config.addresses, addresses, AnaState::kOptimized));
  }
  shown.served = true;
  shown.stands_by = false;
  PostCounters(shown);
  // The reactors before the hosts, which then find it true; where other paths of theirs were handed over, behind what was in flight on these.
  if (associations.empty()) PostPathStatus(shown, AnaState::kOptimized);
  CLEAT_CHECK(target_.SetAna(nqn, AnaState::kOptimized).ok());
  ShowShut(shown);
  if (!associations.empty()) Restore(nqn, std::move(associations));
  return Ok{};
}

Task<Status> TargetService::Withdraw(std::string nqn, uint64_t deadline_ns) {
  const Deadline deadline(control_, changed_, deadline_ns);
  while (StartsLater(nqn) && !deadline.passed()) (void)co_await changed_.Wait();
  if (StartsLater(nqn))
    co_return Error(ErrorCode::kDeadlineExceeded, nqn + ": its hosts' connections are still being moved");
  Shown* const shown = Find(nqn);
  if (shown == nullptr || !shown->in_target()) co_return Ok{};
  const bool served = std::exchange(shown->served, false);
  shown->stands_by = false;
  StopListening(served ? shown->config.addresses : shown->config.standby_addresses);
  (void)target_.Remove(nqn);
  while (AnyQueueOf(nqn)) {
    (void)co_await changed_.Wait();
    if (!deadline.passed() || !AnyQueueOf(nqn)) continue;
    CLEAT_CO_TRY(served ? Serve(nqn) : StandBy(nqn));
    co_return Error(ErrorCode::kDeadlineExceeded, nqn + ": requests of its hosts are still in the storage");
  }
  // No queue is left that would ask; so no later one finds the disks of a subsystem that another process has by then.
  co_await BecomeInaccessible(*shown);
  co_return Ok{};
}

// Looked for anew behind each wait, as a subsystem may be removed meanwhile.
bool TargetService::StartsLater(const std::string& nqn) const {
  const auto found = subsystems_.find(nqn);
  return found != subsystems_.end() && found->second.starts_later;
}

bool TargetService::AnyQueueOf(const std::string& nqn) const {
  return std::any_of(connections_.begin(), connections_.end(), [&nqn](const auto& known) {
    const nvme::target::TargetController* const controller = known.first->controller();
    return controller != nullptr && !controller->discovery() && controller->subsystem()->config().nqn == nqn;
  });
}

Status TargetService::SetHosts(const std::string& nqn, std::vector<nvme::target::HostAccess> hosts) {
  Shown* const shown = Find(nqn);
  if (shown == nullptr) return Error(ErrorCode::kNotFound, nqn + ": there is no such subsystem");
  if (shown->in_target()) CLEAT_TRY(target_.SetHosts(nqn, hosts));
  shown->config.hosts = std::move(hosts);
  return Ok{};
}

// ---- Namespaces

Task<Status> TargetService::AddNamespace(std::string nqn, uint32_t nsid, NamespaceParts parts) {
  CLEAT_CO_TRY(nvme::target::CheckShape(parts.shape));
  Shown* shown = Find(nqn);
  CLEAT_CHECK(shown != nullptr && nsid > 0 && nsid <= kNamespacesMax && !shown->namespaces.contains(nsid));
  Shown::Namespace known{.shape = parts.shape, .channel_on = parts.channel_on};
  known.reservation = MakeKeeper(*shown, nsid, parts.shape);
  if (known.reservation != nullptr) CLEAT_CO_TRY(co_await known.reservation->Load());
  for (const auto& [reactor, subsystem] : shown->ports) {
    IoPort& port = PortOf(*reactor);
    co_await reactor->Enter();
    const NamespaceChannel on = parts.channel_on(*reactor);
    port.LearnCpu();
    port.UseCounters(on.reactor_counters);
    if (on.channel != nullptr) on.channel->SetFrontEnd(&IoQueue::FrontEnd());
    NamespacePort& space = subsystem->namespaces[nsid - 1];
    space.channel = on.channel;
    space.counters = on.counters;
    space.older = known.older.get();
    space.open = on.channel != nullptr;
    space.copies_left = 0;
    ++space.epoch;
    co_await control_.Enter();
  }
  const bool persists = known.reservation != nullptr && known.reservation->reservation().persists;
  shown->namespaces.emplace(nsid, std::move(known));
  if (!shown->in_target()) co_return Ok{};
  CLEAT_CO_TRY(target_.PutNamespace(nqn, nsid, parts.shape));
  co_return target_.SetReservationPersists(nqn, nsid, persists);
}

Status TargetService::ChangeNamespace(const std::string& nqn, uint32_t nsid,
                                      const nvme::target::NamespaceShape& shape) {
  Shown* const shown = Find(nqn);
  CLEAT_CHECK(shown != nullptr && shown->namespaces.contains(nsid));
  shown->namespaces[nsid].shape = shape;
  return shown->in_target() ? target_.PutNamespace(nqn, nsid, shape) : Ok{};
}

Task<void> TargetService::RemoveNamespace(std::string nqn, uint32_t nsid) {
  Shown* const shown = Find(nqn);
  if (shown == nullptr) co_return;
  const auto known = shown->namespaces.extract(nsid);
  if (known.empty()) co_return;
  if (shown->in_target()) (void)target_.RemoveNamespace(nqn, nsid);
  // On all reactors before any is waited for: what is held on one may wait for what another one has in the storage.
  for (const auto& [reactor, subsystem] : shown->ports) {
    IoPort& port = PortOf(*reactor);
    co_await reactor->Enter();
    NamespacePort& space = subsystem->namespaces[nsid - 1];
    space.open = false;
    port.order().AbandonHeld(space, [](IoCommand& command) { command.queue->NamespaceGone(command); });
    co_await control_.Enter();
  }
  if (known.mapped().reservation != nullptr) co_await known.mapped().reservation->Close();
  for (const auto& [reactor, subsystem] : shown->ports) {
    IoPort& port = PortOf(*reactor);
    co_await reactor->Enter();
    NamespacePort& space = subsystem->namespaces[nsid - 1];
    if (space.in_flight > 0) {
      Event drained(*reactor);
      space.drained = &drained;
      space.channel->BeginBypass();  // what waits for limits, or for space, is not waited for
      if (space.in_flight > 0) (void)co_await drained.Wait();
      space.channel->EndBypass();
      space.drained = nullptr;
    }
    port.FlushCounters();
    space.channel = nullptr;
    space.counters = nullptr;
    space.older = nullptr;
    space.reservation = nullptr;
    co_await control_.Enter();
  }
}

// ---- Listening

Status TargetService::Listen(const Shown& shown, std::span<const TransportAddress> where,
                             Addresses addresses) {
  size_t done = 0;
  for (const TransportAddress& address : where) {
    Listening& listening = listeners_[TextOfAddress(address)];
    if (listening.subsystems == 0) {
      if (Status listens = ListenAt(shown, address, addresses, listening); !listens.ok()) {
        listeners_.erase(TextOfAddress(address));
        StopListening(where.first(done));
        return listens;
      }
    }
    ++listening.subsystems;
    ++done;
  }
  return Ok{};
}

Status TargetService::ListenAt(const Shown& shown, const TransportAddress& address, Addresses addresses,
                               Listening& listening) {
  if (address.transport == TransportType::kRdma)
    return rdma_.Listen(address, shown.reactors, addresses == Addresses::kShared);
  listening.listener =
      std::make_unique<Listener>(control_, [this](Accepted accepted) { Accept(std::move(accepted)); });
  CLEAT_TRY(listening.listener->Listen(address, addresses == Addresses::kShared));
  spdlog::info("{}: listens for NVMe/TCP hosts", TextOfAddress(address));
  return Ok{};
}

void TargetService::StopListening(std::span<const TransportAddress> addresses) {
  for (const TransportAddress& address : addresses) {
    const auto found = listeners_.find(TextOfAddress(address));
    if (--found->second.subsystems > 0) continue;
    listeners_.erase(found);
    if (address.transport == TransportType::kRdma) rdma_.StopListening(address);
  }
}

bool TargetService::MayAccept(const TransportAddress& peer) const {
  const auto of_one = unknown_of_one_.find(PeerOf(peer));
  const size_t of_one_max = peer.transport == TransportType::kRdma ? kUnknownRdmaOfOneMax : kUnknownOfOneMax;
  return connections_.size() + io_queues_ < kConnectionsMax && unknown_ < kUnknownMax &&
         (of_one == unknown_of_one_.end() || of_one->second < of_one_max);
}

std::optional<DescriptorBudget::Reservation> TargetService::DescriptorFor(const std::string& peer) {
  if (descriptors_ == nullptr) return DescriptorBudget::Reservation();
  auto reserved = descriptors_->Reserve(1, peer);
  if (reserved.ok()) return std::move(reserved).value();
  spdlog::debug("{}: closed: {}", peer, reserved.error().message);
  return std::nullopt;
}

void TargetService::Accept(Accepted accepted) {
  const std::string peer = TextOfAddress(accepted.peer);
  if (!MayAccept(accepted.peer)) {
    spdlog::debug("{}: closed: there are too many connections", peer);
    return;
  }
  auto descriptor = DescriptorFor(peer);
  if (!descriptor) return;
  auto transport =
      std::make_unique<TargetStream>(std::move(accepted.fd), peer, tuning_,
                                     [this](std::string_view identity) { return target_.KeyFor(identity); });
  Accept(AdminQueue::Parts{.transport = std::move(transport),
                           .local = accepted.local,
                           .peer = accepted.peer,
                           .descriptor = std::move(*descriptor)});
}

// Queue pairs have no descriptor of their own.
void TargetService::RdmaAccepted(std::unique_ptr<QueueTransport> transport, const TransportAddress& local,
                                 const TransportAddress& peer) {
  Accept(
      AdminQueue::Parts{.transport = std::move(transport), .local = local, .peer = peer, .descriptor = {}});
}

void TargetService::Accept(AdminQueue::Parts parts) {
  ++unknown_;
  ++unknown_of_one_[PeerOf(parts.peer)];
  AdminQueueHost& host = *this;
  auto queue = std::make_unique<AdminQueue>(host, std::move(parts));
  AdminQueue& started = *queue;
  connections_.emplace(&started, std::move(queue));
  started.Start();
}

void TargetService::Identified(const TransportAddress& peer) {
  --unknown_;
  const auto of_one = unknown_of_one_.find(PeerOf(peer));
  if (--of_one->second == 0) unknown_of_one_.erase(of_one);
}

// ---- What admin queues ask and say

IoPort& TargetService::PortOf(Reactor& reactor) {
  std::unique_ptr<IoPort>& port = ports_[&reactor];
  if (port == nullptr) port = std::make_unique<IoPort>(reactor, port_limits_);
  return *port;
}

AdminQueueHost::Place TargetService::PlaceOf(const nvme::target::TargetController& controller,
                                             uint16_t queue_id, const QueueTransport& transport) {
  Shown& shown = *Find(controller.subsystem()->config().nqn);
  std::vector<ReactorLoad> loads;
  for (Reactor* const reactor : shown.reactors)
    loads.push_back({PortOf(*reactor).cpu(), queues_on_[reactor]});
  // One host's queues on all reactors in turn; several hosts' first queues on different ones.
  const size_t in_turn = (size_t{controller.id()} + queue_id) % shown.reactors.size();
  const int cpu = tuning_.follows_packets ? transport.incoming_cpu() : kAnyCpu;
  Reactor* const fixed = transport.traits().reactor;
  Reactor* const reactor = fixed != nullptr ? fixed : shown.reactors[ChooseReactor(loads, cpu, in_turn)];
  uint32_t& queues = queues_on_[reactor];
  ++queues;
  return {PortOf(*reactor), *shown.ports.at(reactor),
          std::shared_ptr<void>(&queues, [](void* count) { --*static_cast<uint32_t*>(count); })};
}

const nvme::target::TransportOffer& TargetService::OfferOf(TransportType transport) const {
  return limits_.OfferOf(transport);
}

// nullptr: of the discovery service, or of a subsystem that is gone.
TargetService::Shown* TargetService::ShownOf(const nvme::target::TargetController& controller) {
  return controller.discovery() ? nullptr : Find(controller.subsystem()->config().nqn);
}

bool TargetService::MayLog(LogBudget& budget, const char* what) {
  if (control_.now_ns() - budget.begun_ns >= kLogNs) budget = {.begun_ns = control_.now_ns()};
  if (++budget.lines == kLogLinesMax)
    spdlog::info("NVMe/TCP hosts: more {}; they are left out here for some seconds", what);
  return budget.lines < kLogLinesMax;
}

void TargetService::AssociationBegan(const nvme::target::TargetController& controller,
                                     const std::string& peer) {
  Shown* const shown = ShownOf(controller);
  if (shown == nullptr) return;
  ++shown->connections;
  if (MayLog(coming_and_going_, "come and go"))
    spdlog::info("{}: {} has connected from {}: controller {}", shown->name, controller.host_nqn(), peer,
                 controller.id());
  AssociationChanged(controller, 0);
}

void TargetService::AssociationChanged(const nvme::target::TargetController& controller, int more_queues) {
  io_queues_ += static_cast<size_t>(more_queues);
  const Shown* const shown = ShownOf(controller);
  if (shown != nullptr && shown->on_change) TellLater(shown->config.nqn);
}

void TargetService::TellLater(const std::string& nqn) {
  changed_subsystems_.insert(nqn);
  if (!tell_.pending()) control_.AddTimer(tell_, control_.now_ns() + kTellNs);
}

void TargetService::TellTimer::Fire(Timer& timer) {
  TargetService& service = static_cast<TellTimer&>(timer).service;
  const std::set<std::string> changed = std::exchange(service.changed_subsystems_, {});
  for (const std::string& nqn : changed) {
    const Shown* const shown = service.Find(nqn);
    if (shown != nullptr && shown->on_change) shown->on_change();
  }
}

void TargetService::AssociationEnds(const nvme::target::TargetController& controller, const Error& reason) {
  const Shown* const shown = ShownOf(controller);
  if (shown != nullptr && MayLog(coming_and_going_, "come and go"))
    spdlog::info("{}: {} has left, controller {}: {}", shown->name, controller.host_nqn(), controller.id(),
                 reason.message);
}

void TargetService::TlsRefused(const Error& reason) {
  if (MayLog(refusals_, "are refused")) spdlog::info("NVMe/TCP host not let in: {}", reason.message);
}

void TargetService::HostRefused(const std::string& subsystem_nqn, const std::string& host_nqn,
                                const std::string& peer, const std::string& reason) {
  const Shown* const shown = Find(subsystem_nqn);
  if (shown != nullptr && MayLog(refusals_, "are refused"))
    spdlog::warn("{}: {} at {} is refused: {}", shown->name, host_nqn, peer, reason);
}

void TargetService::Over(AdminQueue& queue) {
  connections_.erase(&queue);
  changed_.Pulse();
}

SubsystemStatus TargetService::StatusOf(const std::string& nqn) const {
  SubsystemStatus status;
  std::set<std::string> hosts;
  for (const auto& [queue, connection] : connections_) {
    const nvme::target::TargetController* const controller = queue->controller();
    if (controller == nullptr || controller->discovery() || !controller->proved() ||
        controller->subsystem()->config().nqn != nqn)
      continue;
    ++status.controllers;
    status.io_queues += static_cast<uint32_t>(queue->io_queues());
    hosts.insert(controller->host_nqn());
  }
  const auto shown = subsystems_.find(nqn);
  if (shown != subsystems_.end()) {
    status.connections = shown->second.connections;
    for (const auto& [nsid, space] : shown->second.namespaces) {
      status.held_writes += space.older->held();
      if (space.reservation == nullptr) continue;
      status.reserved += space.reservation->reservation().held() ? 1 : 0;
      status.shut += space.reservation->shut() ? 1 : 0;
    }
  }
  status.hosts.assign(hosts.begin(), hosts.end());
  return status;
}

bool TargetService::serves(const std::string& nqn) const {
  const auto found = subsystems_.find(nqn);
  return found != subsystems_.end() && found->second.served;
}

// ---- Time

void TargetService::DeadlineChanged(uint64_t deadline_ns) {
  ScheduleTick(deadline_ns);
}

void TargetService::ScheduleTick(uint64_t at) {
  if (at == UINT64_MAX || (tick_.pending() && tick_.deadline_ns() <= at)) return;
  tick_.Cancel();
  control_.AddTimer(tick_, std::max(at, control_.now_ns() + kTickLeastNs));
}

void TargetService::TickTimer::Fire(Timer& timer) {
  TargetService& service = static_cast<TickTimer&>(timer).service;
  service.target_.Tick(service.control_.now_ns());
  service.ScheduleTick(service.target_.deadline_ns());
}

// ---- The end

Task<void> TargetService::Close() {
  CLEAT_CHECK(subsystems_.empty() && listeners_.empty());
  co_await rdma_.StopAccepting();
  const Error reason(ErrorCode::kUnavailable, "the engine ends");
  std::vector<AdminQueue*> left;
  for (const auto& [queue, connection] : connections_) left.push_back(queue);
  for (AdminQueue* const queue : left) queue->Close(reason);
  while (!connections_.empty()) co_await changed_.Wait();
  co_await rdma_.Close();
  for (auto& [reactor, port] : ports_) {
    co_await reactor->Enter();
    port->Stop();
    port.reset();  // here, where counters are looked at
    co_await control_.Enter();
  }
  ports_.clear();
  tick_.Cancel();
  tell_.Cancel();
}

}  // namespace cleat::nvmf_target
