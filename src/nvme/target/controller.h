// SPDX-License-Identifier: Apache-2.0
// One association's controller: its properties, features, log pages and events. Its admin queue's commands are given to Execute after Connect;
// I/O commands are none of its business, but their queues are known here, since reset and shutdown are done only when they have ended.
//
// The version is 2.0: the newest that Linux, SPDK, Windows and VMware all take (they read fields by what the capabilities say, and refuse only
// what is older than 1.2 or so), and the first whose pages tell what Write Zeroes and discards are limited to. 2.1 would ask for pages that no
// host reads; CQT, which is 2.1's, is in a field that 2.0 reserves, where hosts that know it look.
//
// Source: NVM Express Base Specification 2.0 ("base"), 3.1.3 (properties), 3.5 to 3.7 (life), 3.9 (keep alive), 5 (admin commands), 6 (fabrics).
// Of the control reactor; pure: times are the caller's clock. Owned by Target. Hostile hosts: every field is checked, lists have limits, and
// what is answered is never longer than what the command has room for.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/events.h"
#include "nvme/target/cross_reset/reset_log.h"
#include "nvme/target/hand_over/saved_controller.h"
#include "nvme/target/limits.h"
#include "nvme/target/reservations/reservation_notices.h"
#include "nvme/target/subsystem.h"

namespace cleat::nvme::target {

// What becomes of a command.
struct Answer {
  enum class Kind : uint8_t {
    kAnswer,  // it is answered
    kHeld,    // it stays, and is answered by ControllerOwner::Completed; or never, if the association ends
    kDisconnect,  // it is answered, then its queue ends
  };
  Kind kind = Kind::kAnswer;
  uint64_t result = 0;  // DW0 and DW1 of the completion
  uint16_t status = 0;  // the Status Field without its phase tag: nvme::Status takes it
  std::vector<uint8_t>
      data;  // to the host, at most what the command's descriptor has room for; only where the status is 0

  bool ok() const { return status == 0; }
};

enum class QueuesEndFor : uint8_t { kReset, kShutdown };

// The owner of an association's connections. Called from within methods of Target and TargetController; calls none of them from there,
// except QueueEnded.
class ControllerOwner {
 public:
  // A command that was kHeld.
  virtual void Completed(uint16_t cid, const Answer& answer) = 0;
  // The I/O queues have to end: no command of theirs is executed or answered from here on that is not under way, and QueueEnded is called for
  // each once nothing of it can have an effect any more. The admin queue stays.
  virtual void EndQueues(QueuesEndFor why) = 0;
  // All connections have to end, and then Target::End. Once.
  virtual void EndAssociation(const Error& reason) = 0;

 protected:
  ~ControllerOwner() = default;
};

// What data an admin or fabrics command has by its opcode, before anything of it is known to be right.
struct Transfer {
  uint32_t to_target_bytes =
      0;  // what its descriptor says; more than kAdminDataMax is refused by whoever receives it
  uint32_t to_host_bytes = 0;  // the room
};
Transfer TransferOf(const fabrics::SubmissionEntry& entry);

class TargetController {
 public:
  struct Config {
    uint16_t id = 0;  // CNTLID
    std::string host_nqn;
    fabrics::Uuid host_id{};
    uint32_t kato_ms = 0;             // 0: no keep alive timer; only of discovery controllers
    fabrics::TransportAddress local;  // by which the host came in
    std::string firmware;             // FR
    bool proves = false;  // the host has to authenticate before any other command of it is executed
  };
  // The log that the discovery service has for this controller's host.
  class DiscoveryLogSource {
   public:
    virtual std::vector<uint8_t> DiscoveryLogOf(const TargetController& controller) const = 0;

   protected:
    ~DiscoveryLogSource() = default;
  };

  // One of `subsystem` and `discovery` is given and outlives it, as `siblings` does. Made by Target, on a Connect.
  TargetController(Config config, const TargetLimits& limits, const Subsystem* subsystem,
                   const DiscoveryLogSource* discovery, SiblingControllers& siblings, ControllerOwner& owner,
                   uint64_t now_ns);
  TargetController(const TargetController&) = delete;
  TargetController& operator=(const TargetController&) = delete;

  uint16_t id() const { return config_.id; }
  const std::string& host_nqn() const { return config_.host_nqn; }
  const fabrics::Uuid& host_id() const { return config_.host_id; }
  const fabrics::TransportAddress& local() const { return config_.local; }
  bool discovery() const { return discovery_ != nullptr; }
  // Whether the host is believed to be who it says it is. Until then each command ends with Authentication Required.
  bool proved() const { return proved_; }
  const Subsystem* subsystem() const { return subsystem_; }  // nullptr: of a discovery controller
  ControllerOwner& owner() const { return owner_; }
  // Whether I/O queues may be connected and I/O commands executed: enabled, ready, neither being shut down nor ending.
  bool ready() const;
  bool ending() const { return ending_; }  // EndAssociation was called
  uint32_t io_queues_max() const;          // the largest queue identifier that may be connected now
  uint32_t kato_ms() const { return kato_ms_; }
  const ControllerInstance& instance() const { return instance_; }
  // Another one of the same subsystem, and the same host's by its name and identifier.
  bool IsSiblingOf(const TargetController& other) const;

  // Whether another process may go on with it: ready, of a host that is believed, and of a subsystem.
  bool may_be_saved() const { return ready() && !resetting_ && proved_ && subsystem_ != nullptr; }
  // What it has asked for of others and is not over counts as failed: their end is not seen in the next process.
  SavedController Save();

  // A command of the admin queue other than Connect. `data`: what came with it. Checks Expired itself: an answer of an expired controller is
  // Command Aborted (keep alive timer expired), and the association ends.
  Answer Execute(const fabrics::SubmissionEntry& entry, std::span<const uint8_t> data, uint64_t now_ns);
  // A fabrics command on a connected I/O queue: Disconnect, or one that does not belong there.
  Answer ExecuteOnQueue(const fabrics::SubmissionEntry& entry) const;

  // An I/O queue whose host had to prove itself on it has done so, and belongs to the association from now on; others do since their Connect. A
  // stranger's queue has no identifier until then, so that it keeps none from the host. False: another queue has it, or none may come any more.
  bool Join(uint16_t queue_id);
  // An I/O queue that belongs to it has ended: nothing of it can have an effect any more.
  void QueueEnded(uint16_t queue_id);
  bool HasQueue(uint16_t queue_id) const { return queue_id < kQueuesMax && queues_.test(queue_id); }

  // ---- Time. Commands that come to a controller whose deadline is over are not executed, even if they were sent before: whoever
  // reads a socket asks Expired first.

  // Traffic of any queue has come or was answered; counts where TargetLimits::traffic_keeps_alive says so.
  void Touch(uint64_t now_ns);
  // Never without one: where no keep alive timer runs it is kIdleNs after the last command.
  uint64_t deadline_ns() const { return deadline_ns_; }
  bool Expired(uint64_t now_ns) const { return now_ns >= deadline_ns_; }
  // To be called at the deadline or somewhat later: an expired association is told to end.
  void Tick(uint64_t now_ns);

  // ---- What has changed; called by Target.

  void NamespaceChanged(uint32_t nsid);
  void AnaChanged();
  void DiscoveryChanged();
  // Nothing where the host has masked it, or there are no reservations.
  void ReservationChanged(uint32_t nsid, ReservationNotice notice);
  // Nothing of that one can have an effect any more.
  void SiblingEnded(const TargetController& sibling);
  void End(const Error& reason);

 private:
  static constexpr uint32_t kQueuesMax = 256;  // above the largest identifier that Number of Queues grants
  using Entry = fabrics::SubmissionEntry;
  enum EventKind : uint8_t { kNamespaces, kAna, kDiscovery, kReservation, kReset, kEventKinds };
  struct EventState {
    bool pending = false;  // to be told
    bool unread = false;   // told; its log has not been read since
  };
  // What the host has set, and what it has not been told: as when the controller is made, after each reset.
  struct Settings {
    uint32_t queues_granted = 0;  // by Number of Queues; 0: not asked yet
    uint32_t events_enabled = 0;
    std::map<uint32_t, uint32_t>
        features;  // those that have no effect here, by CDW10.FID and what CDW11 adds to it
    std::array<EventState, kEventKinds> events{};
    std::set<uint32_t> changed_namespaces;
    ReservationNotices reservation_notices;
  };

  // ---- controller.cc: life, properties, events
  friend class Target;
  // Of one that was just made for it: it goes on as `saved` says. kInvalidArgument.
  cleat::Status Restore(const SavedController& saved, uint64_t now_ns);
  void AddQueue(uint16_t queue_id) { queues_.set(queue_id); }
  Answer Fabrics(const Entry& entry, uint64_t now_ns);
  Answer PropertyGet(const Entry& entry) const;
  Answer PropertySet(const Entry& entry, uint64_t now_ns);
  uint64_t Capabilities() const;
  uint16_t CheckEnable(uint32_t configuration) const;
  void BecomeInstance();
  void Reset();
  void Settle();
  void EndQueues(QueuesEndFor why);
  bool HasKeepAlive() const;  // whether its timer runs
  void RestartTimer(uint64_t now_ns);
  void Raise(EventKind kind);
  void LogRead(EventKind kind);
  static uint32_t ResultOf(EventKind kind);
  static uint32_t BitOf(EventKind kind);
  bool IsWanted(EventKind kind) const;
  std::optional<EventKind> TakeEvent();
  void DropEventRequests();
  Answer EventRequest(const Entry& entry);

  // ---- controller_commands.cc
  Answer Admin(const Entry& entry, uint64_t now_ns);
  Answer Identify(const Entry& entry) const;
  Answer IdentifyNamespace(const Entry& entry) const;
  Answer NamespaceList(const Entry& entry) const;
  Answer GetLogPage(const Entry& entry);
  std::optional<std::vector<uint8_t>> LogOf(uint8_t page, uint8_t parameter) const;
  void ReadLog(uint8_t page);
  Answer ResetSibling(const Entry& entry);
  void RemoveResets();  // from the log, that are over
  Answer GetFeature(const Entry& entry) const;
  Answer SetFeature(const Entry& entry, uint64_t now_ns);
  Answer SetQueues(uint32_t value);
  Answer SetKeepAlive(uint32_t value, uint64_t now_ns);
  Answer SetWithoutEffect(const Entry& entry);
  Answer GetReservationFeature(const Entry& entry) const;
  Answer SetReservationFeature(const Entry& entry);

  const Config config_;
  const TargetLimits& limits_;
  const Subsystem* const subsystem_;
  const DiscoveryLogSource* const discovery_;
  SiblingControllers& siblings_;
  ControllerOwner& owner_;
  uint64_t deadline_ns_ = 0;
  uint32_t kato_ms_;
  uint32_t configuration_ = 0;  // CC
  uint32_t status_ = 0;         // CSTS
  bool ending_ = false;
  bool proved_;
  bool resetting_ = false;  // CC.EN was cleared, and queues are left
  Settings settings_;
  ControllerInstance instance_;
  ResetLog resets_;  // of others; outlives a reset of this one
  std::bitset<kQueuesMax> queues_;
  std::deque<uint16_t> event_requests_;  // command identifiers
};

}  // namespace cleat::nvme::target
