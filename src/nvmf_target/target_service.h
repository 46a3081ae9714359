// SPDX-License-Identifier: Apache-2.0
// An engine's NVMe/TCP target: the subsystems that it shows, the addresses at which it listens, and the hosts that are connected.
//
// A subsystem is there from AddSubsystem on, and hosts reach it from StandBy or Serve to Withdraw. Its namespaces come and go in between, and may
// be there before. The service knows no engine and no disk: whoever adds a namespace says which channel each reactor has for it.
//
//   away --StandBy--> stands by: hosts come at the standby addresses, and no I/O command of theirs is executed
//     |                  |
//     +------Serve-------+--> served --Withdraw--> away
//
// While a subsystem stands by another process serves it, and has its disks: not one I/O command reaches a channel before Serve, which whoever calls it
// does not call before the disks are this engine's. From the end of Withdraw on none does either, on no reactor.
//
// Of the control reactor. Calls for one namespace come one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor_budget.h"
#include "base/result.h"
#include "nvme/target/target.h"
#include "nvmf_target/admin_queue.h"
#include "nvmf_target/hand_over/saved_association.h"
#include "nvmf_target/io/io_port.h"
#include "nvmf_target/rdma/rdma_listeners.h"
#include "nvmf_target/reservations/reservation_keeper.h"
#include "nvmf_target/reservations/reservation_store.h"
#include "nvmf_target/socket/listener.h"
#include "nvmf_target/socket/target_stream.h"
#include "nvmf_target/subsystem_parts.h"
#include "reactor/reactor.h"
#include "reactor/sync.h"
#include "reactor/task.h"

namespace cleat::nvmf_target {

class TargetService final : private AdminQueueHost, private RdmaHostsOwner {
 public:
  // Hosts that come and go are in the log, so many at most in a time: one that does nothing else must not fill it.
  static constexpr uint32_t kLogLinesMax = 32;
  static constexpr uint64_t kLogNs = 10 * kNsPerSecond;
  // All connections, those that have not said yet what they are, and of these those from one address; what comes beyond is closed at once.
  static constexpr size_t kConnectionsMax = 8192;
  static constexpr size_t kUnknownMax = 1024;
  static constexpr size_t kUnknownOfOneMax = 256;
  // Unknown ones over RDMA have memory for all of their entries.
  static constexpr size_t kUnknownRdmaOfOneMax = 16;
  // Of a line of the target's own, not the one of the engine's own paths: strangers that keep it busy delay no disk of this engine's.
  static constexpr uint32_t kLoginThreads = 1;

  // `adapters`: the process'. `descriptors`: of which each connection has one; nullptr: nobody counts. `reservations`: where they are kept; nullptr: hosts
  // can't have any.
  TargetService(nvmf::RdmaAdapters& adapters, DescriptorBudget* descriptors, StreamTuning tuning = {},
                const PortLimits& port_limits = {}, ReservationStore* reservations = nullptr);
  ~TargetService();  // closed
  TargetService(const TargetService&) = delete;
  TargetService& operator=(const TargetService&) = delete;

  // kAlreadyExists, kInvalidArgument. Where its controllers' identifiers begin is the service's to say, each time that hosts reach it anew.
  Status AddSubsystem(SubsystemParts parts);
  // Withdrawn, without namespaces. Nothing when it is not there.
  void RemoveSubsystem(const std::string& nqn);
  // Another process serves it: hosts may come at the standby addresses meanwhile, and see all namespaces inaccessible (ANA). Nothing where it has
  // no such addresses. Of one that is not served, or was withdrawn. An error - an address is somebody else's - changes nothing. The same again is OK.
  Status StandBy(const std::string& nqn);
  // Hosts may come. Those that have come while it stood by stay, and are told that the namespaces are optimized; nobody listens at the standby addresses
  // any more. An error - an address is somebody else's - changes nothing. The same again is OK.
  // kShared: another engine of this host, which serves it no more, may listen there still, for other subsystems. A host that comes to that one, or to
  // one that stands by and by another address than a standby one, is told to try again.
  // `associations`, which another process has handed over, go on where they stood, with its namespaces, which are there. One that can't be taken is
  // closed, and its host comes back; so are all on an error.
  enum class Addresses : uint8_t { kOwn, kShared };
  Status Serve(const std::string& nqn, Addresses addresses = Addresses::kOwn,
               std::vector<SavedAssociation> associations = {});
  // Its hosts are let go, and none is let in: when it returns nothing of theirs is in the storage. By that time, or kDeadlineExceeded, and it is
  // served as before.
  Task<Status> Withdraw(std::string nqn, uint64_t deadline_ns = kNoDeadline);
  // Withdraw for a process that serves it next: the associations that can go there are the result, and leave without a word to their hosts. Others
  // - over TLS, not proved yet, being reset or shut down, with a queue that has just ended, beyond kSavedBytesMax - are let go.
  Task<Result<std::vector<SavedAssociation>>> HandOver(std::string nqn, uint64_t deadline_ns);
  // Hosts that are not in the list any more lose their connections.
  Status SetHosts(const std::string& nqn, std::vector<nvme::target::HostAccess> hosts);

  // What the process has left that served the subsystem last: ahead of Serve, when that one does so no more. A namespace whose reservation can't be
  // read is shut for all hosts until it can.
  Task<void> LoadReservations(std::string nqn);

  // ---- Namespaces of a subsystem that is there
  // Every reactor serves it, and hosts are told. An error, as of a reservation that can't be read, changes nothing.
  Task<Status> AddNamespace(std::string nqn, uint32_t nsid, NamespaceParts parts);
  // Hosts are told of its new shape.
  Status ChangeNamespace(const std::string& nqn, uint32_t nsid, const nvme::target::NamespaceShape& shape);
  // When it returns no request of it is in the storage any more, and none will come.
  Task<void> RemoveNamespace(std::string nqn, uint32_t nsid);

  SubsystemStatus StatusOf(const std::string& nqn) const;
  bool serves(const std::string& nqn) const;

  // No subsystem is left. Drops whoever is connected, waits until all is over.
  Task<void> Close();

 private:
  struct Shown {
    std::string name;
    nvme::target::SubsystemConfig config;
    std::vector<Reactor*> reactors;
    std::function<void()> on_change;
    std::map<Reactor*, std::shared_ptr<SubsystemPort>> ports;
    struct Namespace {
      nvme::target::NamespaceShape shape;
      std::function<NamespaceChannel(Reactor&)> channel_on;
      std::unique_ptr<OlderWrites> older = std::make_unique<OlderWrites>();
      std::unique_ptr<ReservationKeeper> reservation = nullptr;  // nullptr: hosts can't have any
    };
    std::map<uint32_t, Namespace> namespaces;
    bool served = false;
    bool stands_by = false;  // and hosts may come
    uint64_t connections = 0;
    // While something is done to all of its I/O queues (target_service_hand_over.cc) new ones wait here.
    bool starts_later = false;
    std::vector<std::shared_ptr<IoQueue>> not_started;
    bool in_target() const { return served || stands_by; }
  };
  struct Listening {
    std::unique_ptr<Listener> listener;  // nullptr: RdmaListeners has it
    uint32_t subsystems = 0;
  };
  // What changes within that time is told once: hosts may come and go a thousand times a second.
  static constexpr uint64_t kTellNs = 50 * kNsPerMs;
  struct TellTimer : Timer {
    explicit TellTimer(TargetService& s) : Timer(&Fire), service(s) {}
    static void Fire(Timer& timer);
    TargetService& service;
  };
  struct TickTimer : Timer {
    explicit TickTimer(TargetService& s) : Timer(&Fire), service(s) {}
    static void Fire(Timer& timer);
    TargetService& service;
  };

  // RdmaHostsOwner
  bool MayAccept(const nvme::fabrics::TransportAddress& peer) const override;
  IoPort& PortOf(Reactor& reactor) override;
  void RdmaAccepted(std::unique_ptr<QueueTransport> transport, const nvme::fabrics::TransportAddress& local,
                    const nvme::fabrics::TransportAddress& peer) override;
  // AdminQueueHost
  Reactor& control() override { return control_; }
  nvme::target::Target& target() override { return target_; }
  std::span<uint8_t> receive_buffer() override { return receive_buffer_; }
  nvmf::LoginLine& logins() override { return logins_; }
  void HostRefused(const std::string& subsystem_nqn, const std::string& host_nqn, const std::string& peer,
                   const std::string& reason) override;
  bool keeps_data() const override { return tuning_.keeps_data; }
  Place PlaceOf(const nvme::target::TargetController& controller, uint16_t queue_id,
                const QueueTransport& transport) override;
  const nvme::target::TransportOffer& OfferOf(nvme::fabrics::TransportType transport) const override;
  bool has_reservations() const override { return reservation_store_ != nullptr; }
  void Execute(const nvme::target::TargetController& controller, ReservationCall call) override;
  void StartQueue(const nvme::target::TargetController& controller, std::shared_ptr<IoQueue> queue) override;
  void AssociationBegan(const nvme::target::TargetController& controller, const std::string& peer) override;
  void AssociationChanged(const nvme::target::TargetController& controller, int more_queues) override;
  void DeadlineChanged(uint64_t deadline_ns) override;
  void Identified(const nvme::fabrics::TransportAddress& peer) override;
  void TlsRefused(const Error& reason) override;
  void AssociationEnds(const nvme::target::TargetController& controller, const Error& reason) override;
  void Over(AdminQueue& queue) override;

  Shown* Find(const std::string& nqn);
  Shown* ShownOf(const nvme::target::TargetController& controller);
  // Of one kind of line.
  struct LogBudget {
    uint64_t begun_ns = 0;
    uint32_t lines = 0;  // since then
  };
  bool MayLog(LogBudget& budget, const char* what);
  // Hosts may come at `where`, and see the namespaces so.
  Status Show(Shown& shown, std::span<const nvme::fabrics::TransportAddress> where, Addresses addresses,
              nvme::fabrics::AnaState ana);
  std::unique_ptr<ReservationKeeper> MakeKeeper(const Shown& shown, uint32_t nsid,
                                                const nvme::target::NamespaceShape& shape);
  // How I/O commands end from now on: on each of its reactors by mail, ahead of what is posted there later; and, when it returns, on all of them.
  static void PostPathStatus(const Shown& shown, nvme::fabrics::AnaState ana);
  Task<void> BecomeInaccessible(const Shown& shown);
  void PostCounters(const Shown& shown);
  Status Listen(const Shown& shown, std::span<const nvme::fabrics::TransportAddress> where,
                Addresses addresses);
  Status ListenAt(const Shown& shown, const nvme::fabrics::TransportAddress& address, Addresses addresses,
                  Listening& listening);
  void StopListening(std::span<const nvme::fabrics::TransportAddress> addresses);
  void Accept(Accepted accepted);
  void Accept(AdminQueue::Parts parts);
  // Of its socket. nullopt: there are too many.
  std::optional<DescriptorBudget::Reservation> DescriptorFor(const std::string& peer);
  bool AnyQueueOf(const std::string& nqn) const;
  // Whether something is done to all of the subsystem's I/O queues just now.
  bool StartsLater(const std::string& nqn) const;
  void ScheduleTick(uint64_t at);
  // Hosts see namespaces that are shut as inaccessible.
  void ShowShut(const Shown& shown);
  void TellLater(const std::string& nqn);

  // ---- target_service_hand_over.cc
  struct KnownQueue;
  std::vector<AdminQueue*> AssociationsOf(const std::string& nqn) const;
  bool AnyEnds(const std::string& nqn) const;
  Task<void> OnEach(const std::vector<KnownQueue>& queues, std::function<void(IoQueue&, size_t)> what);
  Task<bool> BecomeQuiet(const std::vector<KnownQueue>& queues, uint64_t deadline_ns);
  std::vector<SavedAssociation> Part(const std::string& nqn, const std::vector<KnownQueue>& queues,
                                     std::vector<std::optional<SavedQueue>> saved);
  void Restore(const std::string& nqn, std::vector<SavedAssociation> associations);
  Status RestoreOne(const std::string& nqn, SavedAssociation& saved);
  Task<void> StartRestored(std::string nqn);
  static void StartQueues(Shown& shown);

  Reactor& control_;
  DescriptorBudget* const descriptors_;
  const StreamTuning tuning_;
  const PortLimits port_limits_;
  ReservationStore* const reservation_store_;
  const nvme::target::TargetLimits limits_;
  nvme::target::Target target_;
  nvmf::LoginLine logins_{kLoginThreads};
  std::vector<uint8_t> receive_buffer_;
  std::map<std::string, Shown> subsystems_;
  std::map<std::string, Listening> listeners_;                      // by the address's text
  std::map<AdminQueue*, std::unique_ptr<AdminQueue>> connections_;  // but for I/O queues
  size_t io_queues_ = 0;
  size_t unknown_ = 0;                            // of connections_, that have not said what they are
  std::map<std::string, size_t> unknown_of_one_;  // by the peer's address
  std::map<Reactor*, std::unique_ptr<IoPort>> ports_;
  std::map<Reactor*, uint32_t> queues_on_;  // I/O queues
  RdmaListeners rdma_;
  Event changed_;  // pulsed when a connection is over
  TickTimer tick_{*this};
  TellTimer tell_{*this};
  std::set<std::string> changed_subsystems_;  // to be told
  LogBudget coming_and_going_;
  LogBudget refusals_;  // which those that come and go do not hide
};

}  // namespace cleat::nvmf_target
