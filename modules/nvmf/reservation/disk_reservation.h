// SPDX-License-Identifier: Apache-2.0
// A disk's part in the reservation of its namespace, over all of its paths. While the disk is this engine's each life is a registrant before
// it writes, and lives that are over are shut out by one that is joined, so that a target which can prove that nothing of them will be
// executed does so.
//
// Only the engine that has the disk has registrants, and no two have it (kept_doubt_log.h). So whatever else of the family a report names
// is over, be it of this engine, of one that was killed, or of one that has given the disk away; an engine that stands by joins when it
// acquires the disk. One that gets the disk back begins each life anew: the engine that had it meanwhile has shut them out, or does so
// yet, with a command that is on its way.
//
// A proof is tried over each path in turn: a life is a registrant of the process alone that it came to. Where no path can give it, the life
// stays in doubt, and each path that comes is asked again.
//
// When the disk is detached, or its VM migrates, each life unregisters, so that another host may have the namespace. What was proved dead is
// so only while the reservation is held, and what is in doubt must not hit another host's data: in these cases the registrations stay.
//
// Ownership: the disk's core owns it, on the control reactor. The owner is called from timers and from callbacks of queues, and may call each
// method from there. Limits: kDeadMax lives that wait to be shut out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "modules/nvmf/channel/io_queue.h"
#include "modules/nvmf/path/disk_path.h"
#include "modules/nvmf/reservation/path_reservation.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/reservation/reservation.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class DiskReservationOwner {
 public:
  // A life that was begun is joined: no other host's write comes after this.
  virtual void LifeJoined(nvme::host::LifeId life) = 0;
  // The life can't be used, or not any more, and has to end: soon, and not within this.
  virtual void LifeShutOut(nvme::host::LifeId life, const Error& why) = 0;
  // The target has proved it: nvme::host::Proof::kPreempted. That holds for as long as the reservation is held.
  virtual void ProvedDead(nvme::host::LifeId life) = 0;
  // Whether no reactor can send anything of a life that is over.
  virtual bool MayBeShutOut(nvme::host::LifeId life) const = 0;
  // Something was proved so lately that the reservation has to be held.
  virtual bool IsReservationNeeded() const = 0;
  // IsSettled or IsLeaving may say something else now.
  virtual void ReservationChanged() = 0;

 protected:
  ~DiskReservationOwner() = default;
};

class DiskReservation final : private PathReservationOwner {
 public:
  // A proof that was not to be had, or a look, is asked for again after a pause that doubles.
  static constexpr uint64_t kPauseMinNs = kNsPerSecond;
  static constexpr uint64_t kPauseMaxNs = 30 * kNsPerSecond;
  static constexpr size_t kDeadMax = 512;

  // All outlive it. `family`: not 0. `disk`: begins lines of the log.
  DiskReservation(uint64_t family, std::string disk, const IoQueueTarget& target, Reactor& control,
                  DiskReservationOwner& owner);

  // A life has begun, with an I/O queue for this. It joins at once where the disk is this engine's, and otherwise when it becomes so.
  void Begin(const DiskPath& path, uint16_t queue);
  bool Has(nvme::host::LifeId life) const { return Find(life) != nullptr; }
  // The life is over.
  void End(nvme::host::LifeId life);

  // The disk is this engine's: each life joins. One that had joined before goes on, or ends where others had the disk meanwhile.
  void SetActive(bool others_had_it);
  // The disk is another engine's, or nobody's.
  void SetInactive();
  bool active() const { return active_; }
  // Whether each life that there was when the disk became this engine's has joined, or has ended; and where it had to begin anew, whether any
  // that followed has joined, or was refused.
  bool IsSettled() const { return unsettled_.empty() && !awaits_successor_; }
  // Lives that are not are shut out: nobody waits for them, or for those that follow, any longer.
  void ShutOutUnsettled();
  // Whether any life may write.
  bool HasJoined() const;
  // Why none was let in since the disk became this engine's, where a target refused it.
  const std::optional<Error>& refusal() const { return refusal_; }

  // A command of the life has met a reservation. Where it is no registrant any more, it ends, and the next one joins.
  void Look(nvme::host::LifeId life);
  // All lives that have left something in doubt and can't send any more.
  void SetInDoubt(std::span<const nvme::host::LifeId> lives);

  // Another host is to have the disk, and nothing is under way: each life that is joined leaves, once lives that are over are shut out; none
  // joins any more. EndLeave follows, then StopLeaving or SetInactive.
  void Leave(bool is_in_doubt);
  // Whether a life is busy with leaving.
  bool IsLeaving() const;
  // The time for leaving is over. kAborted: this host is registered still, and why.
  Status EndLeave();
  // After Leave: the paths that nobody could ask what their targets have; for people, empty: none.
  std::string NotAsked() const;
  // The disk stays this engine's: lives join as before, each that has left by one that follows it.
  void StopLeaving();

  // Why a life that left something in doubt is not proved dead yet, for people; empty: each is just being tried, or there is none.
  std::string WhyNotProved() const;

 private:
  static constexpr uint32_t kAnyAddress = UINT32_MAX;
  struct Life {
    uint32_t address = 0;    // its path's
    bool last_look = false;  // before it leaves: whom the target has now is known
    std::unique_ptr<PathReservation> part;
  };
  // A life that is to be shut out.
  struct Dead {
    nvme::host::LifeId life = 0;
    bool in_doubt = false;                // else it only takes up room at the target
    uint32_t address = kAnyAddress;       // that it came by, or was seen at
    nvme::host::LifeId over = 0;          // the life over which it is being shut out; 0: it is not
    std::set<nvme::host::LifeId> cannot;  // living ones, over which there is no proof
    uint64_t not_before_ns = 0;
    uint64_t pause_ns = 0;  // the last one
    std::string why_not;
  };
  struct PauseTimer : Timer {
    explicit PauseTimer(DiskReservation& r)
        : Timer([](Timer& timer) { static_cast<PauseTimer&>(timer).reservation.Step(); }), reservation(r) {}
    DiskReservation& reservation;
  };

  // ---- PathReservationOwner
  void Joined(nvme::host::LifeId life, const Status& status) override;
  void Seen(nvme::host::LifeId life, const Result<nvme::host::ReservationReport>& report) override;
  void ShutOutEnded(nvme::host::LifeId life, nvme::host::LifeId dead,
                    const nvme::host::ShutOutResult& result) override;
  void Left(nvme::host::LifeId life, const Status& status) override;
  void ReservationBroken(nvme::host::LifeId life, const Error& reason) override;

  const Life* Find(nvme::host::LifeId life) const;
  Life* Find(nvme::host::LifeId life);
  void Join(Life& life);
  void Settle(nvme::host::LifeId life);
  void AddOthers(const Life& life, const nvme::host::ReservationReport& report);

  Dead* FindDead(nvme::host::LifeId life);
  void AddDead(nvme::host::LifeId life, bool in_doubt, uint32_t address);
  void Forget(nvme::host::LifeId dead);
  void StepSoon();
  void Step();
  Dead* NextFor(const Life& life, uint64_t& soonest_ns);
  void ShutOutBy(Life& life, Dead& dead);
  void NotProved(Dead& dead, nvme::host::LifeId over, const nvme::host::ShutOutResult& result);

  void LeaveByEach();
  void LeaveBy(Life& life);
  bool IsReadyToLeave() const;
  void Stay(const std::string& why);

  const uint64_t family_;
  const std::string disk_;
  const IoQueueTarget& target_;
  Reactor& control_;
  DiskReservationOwner& owner_;
  bool active_ = false;
  std::vector<Life> lives_;  // that have begun, and not ended
  std::set<nvme::host::LifeId> unsettled_;
  std::set<uint32_t> asked_;  // addresses that have said, since Leave, whom their target has
  bool awaits_successor_ = false;
  std::set<nvme::host::LifeId> to_look_;
  uint64_t look_at_ns_ = 0;
  std::optional<Error> refusal_;
  std::vector<Dead> dead_;
  bool leaving_ = false;
  std::string why_stays_;  // registered, though leaving; empty: it does not
  bool has_left_ = false;  // since it was active
  PauseTimer step_{*this};
};

}  // namespace cleat::modules
