// SPDX-License-Identifier: Apache-2.0
// A life's part in the reservation of a disk's namespace: it keeps other hosts from writing, and it can prove that a dead life's commands
// will not be executed any more. A target that removes a registrant by Preempt and Abort executes none of its later commands, and succeeds
// when those under way are over. Which targets do: docs/nvmeof.md.
//
// Each life is a host of its own to the target, by an identifier (HostIdOf) that its association connects with, as SPDK and others wait for
// the commands of *other* hosts only. The reservation is Write Exclusive - All Registrants: all lives of a disk write, nobody else does.
//
// Each life also has a key of its own (KeyOf). With that type a preemption removes every registrant that has the key it names, the one
// that asks for it included, and with key 0 all but that one (base 8.19): a shared key could not shut out a dead life alone.
//
// What a dead path left can also be one of these commands. So a life sends Register at most once, and nobody sends Release: executed late,
// they would let a dead life back in, or take the reservation from all the others.
//
// Source: NVM Express Base Specification 2.0 ("base"), 8.19. Ownership and thread: the disk's core makes one for each life and drives it,
// on one thread; it outlives its command. Pure: time comes in by Tick. Hostile targets: each command has a deadline, reports are bounded.
// No memory is taken after the constructor but for what a report says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/result.h"
#include "nvme/fabrics/capsule.h"
#include "nvme/fabrics/names.h"
#include "nvme/fabrics/queues/queue_pair.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/reservation/reservation_commands.h"

namespace cleat::nvme::host {

// The host identifier of a life, as the target knows it: the family's number, then the life's. A family are all lives of one host in one
// subsystem, also of engines before: 64 bits, never 0, that no other host has. Registrants are a namespace's, and a namespace is one disk's.
fabrics::Uuid HostIdOf(uint64_t family, LifeId life);
// nullopt: a host that is not of the family.
std::optional<LifeId> LifeOf(const fabrics::Uuid& host_id, uint64_t family);
constexpr uint64_t KeyOf(LifeId life) {
  return life;
}

struct ReservationConfig {
  std::string who;  // begins errors: "subsystems/a at 10.0.0.1:4420, namespace 5"
  uint32_t nsid = 0;
  uint64_t family = 0;
  LifeId life = 0;                   // not 0, as it is a key too
  bool registrants_persist = false;  // NamespaceInfo's
  uint64_t command_timeout_ns = 10'000'000'000;
  // For Preempt and Abort, which waits: SPDK's target gives up after 10 s, and its answer is worth having.
  uint64_t abort_timeout_ns = 30'000'000'000;
};

enum class ShutOutEnd : uint8_t {
  kProved,  // while the reservation is held nothing of the life will be executed: Proof::kPreempted
  kNotYet,  // no proof; the life may be a registrant still, so that another try may prove it
  kNever,   // no proof over this path: the target behind it has no such registrant, or has it no more
};
struct ShutOutResult {
  ShutOutEnd end = ShutOutEnd::kNotYet;
  std::string reason;  // why there is no proof
};

// The listener. Called from within the reservation's methods; may begin the next task from there, and may not destroy it.
class ReservationOwner {
 public:
  // The command goes to an I/O queue of the life. Completed or Unanswered has to follow, with the command's cookie; not from within this.
  virtual void SendReservation(LifeId life, const fabrics::QueuedCommand& command) = 0;
  // Each task ends with one of these, once. An error of Joined: the life may not write, and ends; kFailedPrecondition: another host has the
  // namespace.
  virtual void Joined(LifeId life, const cleat::Status& status) = 0;
  virtual void Seen(LifeId life, const Result<ReservationReport>& report) = 0;
  virtual void ShutOutEnded(LifeId life, LifeId dead, const ShutOutResult& result) = 0;
  virtual void Left(LifeId life, const cleat::Status& status) = 0;

 protected:
  ~ReservationOwner() = default;
};

class Reservation {
 public:
  // How much of the time between two Ticks counts at most, so that a host that stood still blames no target; as an association has it.
  static constexpr uint64_t kTickCountsNs = 200'000'000;
  // Acquires while the reservation comes and goes, and reports that are asked for again after a preemption.
  static constexpr uint32_t kHoldTriesMax = 3;
  static constexpr uint32_t kReportTriesMax = 3;

  Reservation(ReservationConfig config, ReservationOwner& owner);
  ~Reservation();
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // ---- Tasks, one at a time: while not busy()
  // Once, before the life's first write: it becomes a registrant, and the reservation is held. Refused where a host that is not of the
  // family is a registrant, whether it holds anything or not: it would be let in too.
  void Join(uint64_t now_ns);
  // A report of who is there, without a change.
  void See();
  // Another life of the family is over, no socket of this host can send anything of it any more, and it shall be proved dead. Afterwards
  // it is no registrant, unless the result is kNotYet.
  void ShutOut(LifeId dead);
  // The orderly end, when nothing of the life is under way or in doubt: it is no registrant any more. The last one of the family takes the
  // reservation along, and with it what ShutOut has proved: what a target has not read by then of a dead life, it executes.
  void Leave();

  void Tick(uint64_t now_ns);
  void Completed(uint64_t cookie, const fabrics::CompletionEntry& entry, uint64_t data_bytes);
  // The queue ended before the command was answered: the object is of no more use.
  void Unanswered(uint64_t cookie);

  bool busy() const { return step_ != Step::kNone; }
  // The life is a registrant, and the reservation is held, says the last report. False after true: somebody has shut this life out, or taken
  // the reservation away, and its writes are safe from nobody.
  bool joined() const { return joined_; }
  bool begun() const { return begun_; }
  // Whether the target may have the life as a registrant, as far as this life has heard.
  bool may_be_registered() const { return registered_; }
  // Whether the memory of a command is still in use: the object has to stay.
  bool in_flight() const { return in_flight_; }

 private:
  enum class Step : uint8_t {
    kNone,
    kLook,      // Join: who is there?
    kRegister,  // Join
    kCheck,     // Join: who is there now, and is the reservation held?
    kAcquire,   // Join
    kBackOut,   // Join has failed with failed_: unregister
    kSee,
    kFind,     // ShutOut: is the dead life a registrant?
    kPreempt,  // ShutOut
    kConfirm,  // ShutOut: has it gone, and is all else as it was?
    kLeave,
  };
  struct Memory;
  using Entry = fabrics::CompletionEntry;

  static const char* NameOf(Step step);
  static bool IsReport(Step step);
  void Begin(Step step);
  void Send(Step step);
  Command CommandOf(Step step) const;
  void Break(const Error& reason);
  void EndTask(const Error& reason);
  Error StatusError(Step step, nvme::Status status) const;
  Error RegisterError(nvme::Status status) const;

  void TookReport(Step step, const Result<ReservationReport>& report);
  void TookChange(Step step, nvme::Status status);
  Result<ReservationReport> ReportOf(const Entry& entry, uint64_t data_bytes) const;
  void TookLook(const Result<ReservationReport>& report);
  void TookCheck(const Result<ReservationReport>& report);
  void TookFind(const Result<ReservationReport>& report);
  void TookConfirm(const Result<ReservationReport>& report);
  cleat::Status CheckOthers(const ReservationReport& report) const;
  cleat::Status CheckOwn(const ReservationReport& report);
  void FailJoin(const Error& reason);
  void EndJoin(const cleat::Status& status);
  void EndShutOut(ShutOutEnd end, std::string reason);

  const ReservationConfig config_;
  const fabrics::Uuid host_id_;
  ReservationOwner& owner_;
  Step step_ = Step::kNone;
  bool over_ = false;  // it has not joined, has left, or its command was not answered
  bool begun_ = false;
  bool joined_ = false;
  bool found_own_ = false;   // a registrant of this life's identifier was there before Register
  bool registered_ = false;  // Register was sent, and nothing has said since that this life is none
  size_t registrants_ = 0;   // before it
  bool in_flight_ = false;
  uint64_t command_number_ = 0;  // the cookie: tells an answer that comes too late
  uint64_t host_ns_ = 0;         // the last Tick's time
  uint64_t now_ns_ = 0;          // as kTickCountsNs has it
  uint64_t deadline_ns_ = 0;
  uint32_t tries_ = 0;
  LifeId dead_ = 0;
  uint64_t dead_key_ = 0;
  std::optional<Error> failed_;  // what became of Join before kBackOut, of the preemption before kConfirm
  std::unique_ptr<Memory> memory_;
};

}  // namespace cleat::nvme::host
