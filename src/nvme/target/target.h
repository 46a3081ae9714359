// SPDX-License-Identifier: Apache-2.0
// All that an engine shows to hosts over NVMe-oF: its subsystems, the discovery service that tells each host of those that let it in, and the
// controllers of both. Connect, the first command of every connection, comes here.
//
// Source: NVM Express Base Specification 2.0 ("base"), 6.3 (Connect), 5.16.1.23 (discovery log), 3.1.2.3 (discovery controllers). Of the control
// reactor; pure. Owners of controllers outlive them. Limits are in limits.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/names.h"
#include "nvme/target/controller.h"
#include "nvme/target/limits.h"
#include "nvme/target/reservations/reservation_commands.h"
#include "nvme/target/subsystem.h"

namespace cleat::nvme::target {

// What became of a Connect.
struct Connected {
  Answer answer;
  // The rest: only where the answer is a success.
  TargetController* controller = nullptr;
  uint16_t queue_id = 0;     // 0: the admin queue; the association begins
  uint32_t entries = 0;      // of the queue
  bool flow_control = true;  // false: SQHD is FFFFh in all answers of the queue
  // What the host has to prove on this queue before anything else is done on it (base 8.13); nullptr: it is believed. Then Admit comes, or
  // the connection ends.
  std::shared_ptr<const auth::ChapSecrets> proof = {};
};

class Target final : private TargetController::DiscoveryLogSource, private SiblingControllers {
 public:
  // `firmware`: the product's version, of which 8 bytes are shown (FR). `random`: numbers that no other engine draws, any of 64 bits; hosts tell one
  // instance of a controller from the next by them.
  Target(const TargetLimits& limits, std::string firmware, std::function<uint64_t()> random);
  // No controller is left.
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  // ---- Subsystems. Owners of controllers and hosts hear of what changes.

  // kInvalidArgument, kAlreadyExists, kResourceExhausted (kSubsystemsMax).
  cleat::Status Add(SubsystemConfig config);
  // The subsystem takes no Connect any more, and its associations are told to end. kNotFound.
  cleat::Status Remove(std::string_view nqn);
  // nullptr: there is none. Until Remove.
  const Subsystem* Find(std::string_view nqn) const;
  // Associations of hosts that are no longer let in, or have something else to prove from now on (AskTheSame), are told to end, by their owners'
  // EndAssociation. kNotFound, kInvalidArgument.
  cleat::Status SetHosts(std::string_view nqn, std::vector<HostAccess> hosts);
  // Adds the namespace, or gives it another shape. The same shape again changes nothing. kNotFound, kInvalidArgument; kFailedPrecondition: a
  // namespace keeps its names and its blocks' size until it is removed.
  cleat::Status PutNamespace(std::string_view nqn, uint32_t nsid, const NamespaceShape& shape);
  // kNotFound: there is no such subsystem, or namespace.
  cleat::Status RemoveNamespace(std::string_view nqn, uint32_t nsid);
  // Of a namespace that is there, to begin with what the subsystem has. kNotFound.
  cleat::Status SetAna(std::string_view nqn, uint32_t nsid, fabrics::AnaState state);
  // Of all namespaces of the subsystem, and of those that come later: kOptimized to begin with. kNotFound.
  cleat::Status SetAna(std::string_view nqn, fabrics::AnaState state);

  // ---- Reservations: whoever executes the commands of I/O queues keeps them, and tells what hosts hear of them from controllers.

  // Of a namespace that is there, false to begin with: what feature 83h says. kNotFound.
  cleat::Status SetReservationPersists(std::string_view nqn, uint32_t nsid, bool persists);
  // To each controller of that host's in the subsystem. Nothing where there is none, or no such subsystem or namespace any more.
  void NotifyOfReservation(std::string_view nqn, uint32_t nsid, const fabrics::Uuid& host_id,
                           ReservationNotice notice);
  // Of the hosts that are believed, by identifier; none where there is no such subsystem.
  std::vector<ReportedController> ControllersOf(std::string_view nqn) const;

  // ---- TLS

  // The key of the connection whose host names it by `identity`, which may be anything (TCP transport 1.0, 3.6.1.3): of the host's pre-shared
  // key in the subsystem, or, for the discovery service, of the one that it has in any subsystem. The host proves afterwards that it has the key.
  // kPermissionDenied: no subsystem knows such a host with such a key; kResourceExhausted: no memory for keys.
  Result<SecuredKey> KeyFor(std::string_view identity) const;

  // ---- Associations

  // The first command of a connection, whatever it is: other than Connect it is a Command Sequence Error. `data`: what came with it; `local`:
  // the address that the host has connected to (IPv4 as such, not mapped into IPv6); `owner`: has the controller that an admin queue's Connect makes, and is not kept else. After an
  // answer that is no success the connection ends. An I/O queue's controller is the one of Connected, whose owner is another connection's.
  // `secured`: whom the connection's TLS was made for; nullptr: it is in plain TCP. A host with a pre-shared key is let in by that key alone,
  // and one without in plain TCP alone.
  Connected Connect(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> data,
                    const fabrics::TransportAddress& local, const SecuredAs* secured, ControllerOwner& owner,
                    uint64_t now_ns);
  // The host has proved on the admin queue of this controller who it is: from now on its commands are executed. kUnavailable: it ends.
  cleat::Status Admit(TargetController& controller, uint64_t now_ns);
  // An association goes on here that another process had: its host is let in as it would be by Connect in plain TCP, and is believed where it has
  // proved itself there. kNotFound: no such subsystem; kPermissionDenied: the host is not let in so; kAlreadyExists: a controller here has the
  // identifier; kResourceExhausted; kDeadlineExceeded: the host was not heard from for too long; kInvalidArgument: a value that no controller
  // has. Queues that it had join by Join.
  Result<TargetController*> Restore(std::string_view nqn, const SavedController& saved,
                                    ControllerOwner& owner, uint64_t now_ns);
  // Whether Connects are taken to the subsystem, which has to be there. The ones that are not hear what they hear of none.
  void LetIn(std::string_view nqn, bool lets_in);
  // The association is over, all its queues have ended: the controller is destroyed. Others of its host that were asked to reset it say so now.
  void End(TargetController& controller);
  // Controllers whose deadline is over are told to end.
  void Tick(uint64_t now_ns);
  // When Tick has something to do; UINT64_MAX: not by now.
  uint64_t deadline_ns() const;
  size_t controllers() const { return controllers_; }

 private:
  struct Shown;    // a subsystem, or the discovery service, and its controllers
  struct Request;  // a Connect as it is asked for
  static Answer Parse(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> data, Request& request);
  Connected ConnectAdmin(const Request& request, Shown& shown, const fabrics::TransportAddress& local,
                         ControllerOwner& owner, uint64_t now_ns);
  Connected ConnectQueue(const Request& request, Shown& shown);
  bool HasRoomFor(const Shown& shown, const std::string& host_nqn, bool proves) const;
  static std::shared_ptr<const auth::ChapSecrets> ProofOf(const Shown& shown, const std::string& host_nqn);
  std::optional<uint16_t> NewId(Shown& shown) const;
  bool IsUsed(const Shown& shown, uint16_t id) const;
  Shown* FindShown(std::string_view nqn) const;
  Result<Shown*> Known(std::string_view nqn) const;
  template <typename Function>
  void ForEach(const Function& function) const;
  std::vector<uint8_t> DiscoveryLogOf(const TargetController& controller) const override;
  uint64_t DrawRandom() override { return random_(); }
  TargetController* FindSibling(const TargetController& of, const ControllerInstance& instance) override;
  template <typename Concerns>
  void DiscoveryChanged(const Concerns& concerns);

  std::vector<std::shared_ptr<const tls::Psk>> KeysOf(std::string_view host_nqn,
                                                      std::string_view subsystem_nqn) const;

  const TargetLimits limits_;
  const std::string firmware_;
  const std::function<uint64_t()> random_;
  std::map<std::string, std::unique_ptr<Shown>, std::less<>> subsystems_;
  std::unique_ptr<Shown> discovery_;
  std::vector<std::unique_ptr<Shown>> leaving_;  // removed, with controllers that have not ended yet
  uint64_t generation_ = 1;                      // of the discovery log
  size_t controllers_ = 0;
  size_t unproved_ = 0;  // of these
};

}  // namespace cleat::nvme::target
