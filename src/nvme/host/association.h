// SPDX-License-Identifier: Apache-2.0
// The life of one association: a host and one controller of a subsystem, by one path's admin queue. It logs in, enables the controller, finds
// the namespace that a disk lies on, and from then on keeps the association alive and follows what the controller tells of the namespace
// and of the way to it (ANA). A new try is a new Association.
// Source: NVM Express Base Specification 2.0 ("base"), 3.5 (initialization), 3.6 (shutdown), 3.9 (keep alive), 8.1 (ANA).
//
// Ownership and thread: whoever makes it owns it and the admin queue pair, on the reactor's thread that has the queue, and keeps both until
// Gone. Pure: the time comes in by Tick. Hostile targets: each step has a deadline, each list a limit, each value is checked; a violation ends
// the association with a reason. After Start memory is taken for the ANA log alone, at most once in a size that is bounded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/fabrics/commands.h"
#include "nvme/fabrics/events.h"
#include "nvme/fabrics/identify.h"
#include "nvme/fabrics/log_pages.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/host/queue_login.h"
#include "nvme/identify.h"

namespace cleat::nvme::host {

// Which namespace: all that is given has to fit.
struct NamespaceWanted {
  std::optional<uint32_t> nsid;
  fabrics::NamespaceIds ids;
};

inline constexpr uint32_t kEventRequestsMax = 4;  // outstanding, of the association's own
inline constexpr uint32_t kAdminEntriesMin = kEventRequestsMax + 4;

struct AssociationConfig {
  std::string who;    // begins errors: "subsystems/a at 10.0.0.1:4420"
  uint64_t life = 0;  // random, of this association alone: tells its news from those of an earlier one
  fabrics::HostIdentity host;
  std::string subsystem_nqn;
  HostChap chap;
  NamespaceWanted wanted;
  uint32_t kato_ms = 5000;      // within which the target has to hear of the host; 1000 to 600 000
  uint32_t admin_entries = 32;  // as asked of the transport; at least kAdminEntriesMin
  uint32_t io_queues = 1;       // asked of the controller
  uint32_t event_requests = kEventRequestsMax;   // outstanding, at most: from 1 on
  uint64_t connect_timeout_ns = 10'000'000'000;  // until the transport has connected
  uint64_t command_timeout_ns = 10'000'000'000;  // until an admin command is answered, or the login is over
};

// What is known when it is live. A copy of its own for whoever keeps it.
struct AssociationInfo {
  uint16_t controller_id = 0;  // for the Connects of I/O queues
  uint32_t version = 0;        // VS
  ControllerInfo controller;
  fabrics::FabricsInfo fabrics;
  CommandSetLimits command_set;
  uint32_t io_queues = 0;          // granted, from 1 to what was asked
  uint32_t queue_entries_max = 0;  // of an I/O queue: MQES
  uint32_t kato_ms = 0;            // as the controller counts it: rounded up to its granularity
  uint32_t nsid = 0;
  fabrics::NamespaceIds ids;
  NamespaceInfo space;
  bool present = true;  // false: the namespace has been detached or deleted since
  uint32_t ana_group = 0;
  fabrics::AnaState ana = fabrics::AnaState::kOptimized;  // without ANA too
  // Not empty: the log can't be used, for this reason, and the path counts as inaccessible.
  std::string ana_problem;
};

// What is different in AssociationInfo; bits.
enum Changed : uint32_t {
  kChangedSize = 1U << 0,  // more or fewer blocks, or another of NamespaceInfo's values
  kChangedPresence = 1U << 1,
  kChangedAna = 1U << 2,  // state, group or problem
  kLookedAgain = 1U << 3  // nothing: what Recheck has asked for is done
};

// Called from within methods and callbacks of the queue pair, and may call End and Recheck from there; destroys the association after Gone.
class AssociationOwner {
 public:
  // Once: I/O queues may be connected.
  virtual void Live(uint64_t life, const AssociationInfo& info) = 0;
  // The namespace was read anew. Only between Live and Lost. `changed`: bits of Changed; none: it looks as before, but may have been gone and be
  // back.
  virtual void Changed(uint64_t life, uint32_t changed, const AssociationInfo& info) = 0;
  // The association is broken, or has never come to be: its I/O queues have to end too. At most once; not after End.
  virtual void Lost(uint64_t life, const Error& reason) = 0;
  // Once, last: the admin queue pair has ended and nothing of the association is in use.
  virtual void Gone(uint64_t life) = 0;

 protected:
  ~AssociationOwner() = default;
};

class Association final : public fabrics::QueuePairOwner {
 public:
  static constexpr uint64_t kTickNs = 100'000'000;  // how often Tick has to come; deadlines are as exact
  // The most that one Tick takes from the time that a target has left. The rest is time in which the host stood still and read no socket.
  static constexpr uint64_t kTickCountsNs = 2 * kTickNs;
  static constexpr uint64_t kShutdownTimeoutNs = 5'000'000'000;

  Association(AssociationConfig config, AssociationOwner& owner);
  ~Association();
  Association(const Association&) = delete;
  Association& operator=(const Association&) = delete;

  // Before the queue pair can call back. An invalid config is a programmer's error; names have passed CheckNqn.
  void Start(fabrics::QueuePair& admin, uint64_t now_ns);
  // Each kTickNs or more often. May come before or after news of the queue pair that have come meanwhile.
  void Tick(uint64_t now_ns);
  // The orderly end: no I/O queue is in use any more. With `shutdown` the controller is told and has kShutdownTimeoutNs for it.
  void End(bool shutdown);
  // The owner knows that the path is broken (an I/O queue says so): as if the association had found out.
  void Break(const Error& reason);
  // I/O says that the namespace or the way to it is not as it was: both are read again, soon, and then Changed has kLookedAgain.
  void Recheck();
  void Computed();  // what HostChap::compute was asked for

  bool live() const { return phase_ == Phase::kLive; }
  uint64_t life() const { return config_.life; }
  const AssociationInfo& info() const { return info_; }
  uint64_t keep_alives_answered() const { return keep_alives_answered_; }
  uint64_t events_seen() const { return events_seen_; }

  void Connected() override;
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes) override;
  void Unanswered(uint64_t cookie, fabrics::Reached reached) override;
  void Ended(const Error& reason) override;

 private:
  enum class Phase : uint8_t { kIdle, kConnecting, kLogin, kSetup, kLive, kShutdown, kEnding, kGone };
  // The commands that go one after the other; association_steps.cc has what each answer leads to.
  enum class Step : uint8_t {
    kNone,
    kCapabilities,
    kVersion,
    kEnable,
    kReady,
    kController,
    kCommandSet,
    kQueues,
    kEvents,
    kList,
    kDescriptors,
    kSpace,
    kAna,
    kChangedList,
    kShutdownSet,
    kShutdownDone,
  };
  struct Memory;  // of commands' data
  struct EventSlot {
    bool outstanding = false;
    bool failed = false;    // the last one
    uint64_t again_ns = 0;  // not before
  };
  using Entry = fabrics::CompletionEntry;

  // ---- association.cc: sending, time, ends
  void Send(Step step);
  void Submit(uint64_t cookie, const Command& command, std::span<uint8_t> room);
  void TakeLogin(uint64_t cookie, const Entry& entry, uint64_t data_bytes);
  void Fail(const Error& reason);
  void Finish();
  void TakeKeepAlive(const Entry& entry);
  void TickKeepAlive();
  void TickStep();
  void ArmEvents();
  void TakeEvent(size_t slot, const Entry& entry);
  bool ToldOfChanges() const;
  void RecheckBy(uint64_t at_ns);
  void Wish(uint64_t after_ns);
  void BeginRefresh();

  // ---- association_steps.cc: what is sent and what comes
  static const char* NameOfStep(Step step);
  static bool IsFabrics(Step step);
  Command CommandOf(Step step) const;
  std::span<uint8_t> DataOf(Step step);
  cleat::Status Took(Step step, const Entry& entry, uint64_t data_bytes);
  cleat::Status TookReady(const Entry& entry);
  void TookShutdown(const Entry& entry);
  cleat::Status TookController();
  cleat::Status TookQueues(const Entry& entry);
  cleat::Status TookList();
  cleat::Status TookDescriptors(const Entry& entry, uint64_t data_bytes);
  cleat::Status TookSpace(const Entry& entry, uint64_t data_bytes);
  cleat::Status NotPresent();
  cleat::Status NotFound() const;
  cleat::Status NextCandidate(const std::string& why_not);
  cleat::Status CheckSame(const NamespaceInfo& space) const;
  cleat::Status CheckController(const fabrics::FabricsInfo& fabrics) const;
  cleat::Status StatusError(Step step, const Entry& entry) const;
  void FindNamespace();
  void ReadAna();
  void TookAna(const Entry& entry, uint64_t data_bytes);
  cleat::Status UseAna();
  void AnaFailed(const Error& reason);
  void Settle();
  std::string NamespaceName() const;

  const AssociationConfig config_;
  AssociationOwner& owner_;
  fabrics::QueuePair* admin_ = nullptr;
  QueueLogin login_;
  Phase phase_ = Phase::kIdle;
  Step step_ = Step::kNone;   // in flight, or to be sent at send_at_ns_
  uint32_t step_number_ = 0;  // tells an answer of an earlier one, left behind by End
  bool waiting_ = false;      // step_ is to be sent at send_at_ns_
  uint64_t host_ns_ = 0;      // the last Tick's time
  uint64_t now_ns_ = 0;       // as kTickCountsNs has it; so are all times below
  uint64_t send_at_ns_ = 0;
  uint64_t step_deadline_ns_ = 0;
  uint64_t phase_deadline_ns_ = 0;  // of connecting, setup, shutdown
  uint64_t ready_deadline_ns_ = 0;
  bool enabled_ = false;   // CC.EN has been set
  uint64_t login_ns_ = 0;  // when it began
  uint64_t keep_alives_answered_ = 0;
  uint64_t keep_alive_at_ns_ = 0;  // 0: not yet
  uint64_t keep_alive_sent_ns_ = 0;
  bool keep_alive_out_ = false;
  std::array<EventSlot, kEventRequestsMax> events_{};
  uint32_t events_armed_max_ = 0;
  uint32_t events_in_window_ = 0;
  uint64_t window_end_ns_ = 0;
  uint64_t events_seen_ = 0;
  bool refresh_wanted_ = false;
  bool recheck_asked_ = false;  // since the refresh under way began
  bool rechecks_ = false;       // it was asked for, or one before that came to nothing
  bool changed_list_wanted_ = false;
  uint64_t refresh_at_ns_ = 0;  // not before
  uint64_t recheck_at_ns_ = 0;  // without being told; 0: never
  uint32_t refresh_tries_ = 0;

  uint32_t listed_ = 0;     // in memory_->ids
  uint32_t list_at_ = 0;    // of these, the one that is looked at
  uint32_t looked_at_ = 0;  // of all pages
  uint32_t ana_tries_ = 0;
  std::string why_not_;  // the first of those looked at that were not the one
  fabrics::Capabilities capabilities_;
  AssociationInfo info_;   // as the owner knows it
  AssociationInfo fresh_;  // as it is being read
  std::unique_ptr<Memory> memory_;
};

}  // namespace cleat::nvme::host
