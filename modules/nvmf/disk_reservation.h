// SPDX-License-Identifier: Apache-2.0
// A disk's part in the reservation of its namespace, over all of its paths: each life joins before it is used, and lives that are over are
// shut out by one that is joined, so that a target which can prove that nothing of them will be executed does so. Lives of engines before
// are known from reports, which say who else of the family is registered.
//
// A proof is tried over each path in turn: a life is a registrant of the process alone that it came to. Where no path can give it, the life
// stays in doubt, and each path that comes is asked again.
//
// At the disk's end each life unregisters, so that another host may have the namespace. What was proved dead is so only while the reservation is
// held, and what is in doubt must not hit another host's data: in these cases the registrations stay, and the disk's next life removes them.
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
#include "modules/nvmf/disk_path.h"
#include "modules/nvmf/io_queue.h"
#include "modules/nvmf/path_reservation.h"
#include "nvme/host/doubt/doubt.h"
#include "nvme/host/reservation/reservation.h"
#include "reactor/reactor.h"

namespace cleat::modules {

class DiskReservationOwner {
 public:
  // A life that was begun is joined: no other host's write comes after this.
  virtual void LifeJoined(nvme::host::LifeId life) = 0;
  // The life can't be used, or not any more, and has to end.
  virtual void LifeShutOut(nvme::host::LifeId life, const Error& why) = 0;
  // The target has proved it: nvme::host::Proof::kPreempted.
  virtual void ProvedDead(nvme::host::LifeId life) = 0;
  // Whether no reactor can send anything of a life that is over.
  virtual bool MayBeShutOut(nvme::host::LifeId life) const = 0;
  // Of a disk that leaves: the life has, or does not.
  virtual void LifeLeft(nvme::host::LifeId life) = 0;
  // looks() is 0 now.
  virtual void LooksEnded() = 0;

 protected:
  ~DiskReservationOwner() = default;
};

class DiskReservation final : private PathReservationOwner {
 public:
  // A proof that was not to be had is asked for again after a pause that doubles.
  static constexpr uint64_t kPauseMinNs = kNsPerSecond;
  static constexpr uint64_t kPauseMaxNs = 30 * kNsPerSecond;
  static constexpr size_t kDeadMax = 512;

  struct Config {
    uint64_t family = 0;          // not 0
    bool proves = false;          // what was shut out is taken for dead
    uint64_t proof_needs_ns = 0;  // NvmfOptions'
    std::string disk;             // begins lines of the log
  };
  // All outlive it.
  DiskReservation(Config config, const IoQueueTarget& target, Reactor& control, DiskReservationOwner& owner);

  // A life has begun: it joins, over an I/O queue of its own.
  void Begin(const DiskPath& path, uint16_t queue);
  // The life is over.
  void End(nvme::host::LifeId life);
  // Whether the disk is this engine's: only then others of the family are shut out. As it becomes so, each life sees whether it is joined
  // still: another engine that had the disk meanwhile may have shut it out.
  void SetActive(bool active);
  bool active() const { return active_; }
  bool was_active() const { return was_active_; }  // at any time
  // Lives that are being looked at, and have not ended.
  size_t looks() const { return looked_at_.size(); }
  // A command of the life has met a reservation. Where it is no registrant any more, it ends, and the next one joins.
  void Look(nvme::host::LifeId life);
  // Lives of engines that are gone: they are shut out. Lives that nobody names may be a living engine's, which stands by, and stay.
  void AddOver(std::span<const nvme::host::LifeId> lives);
  // All lives that have left something in doubt and can't send any more.
  void SetInDoubt(std::span<const nvme::host::LifeId> lives);

  // Of a disk that is this engine's, with nothing in doubt or something; or of one that is not, whose registrations keep nobody out by
  // themselves.
  enum class Leaving : uint8_t { kOwner, kOwnerInDoubt, kUnused };
  // The disk ends, and nothing is under way: each life that is joined leaves, once lives that are over are shut out; none joins any more. Where
  // this host has to stay registered the log says why. Once.
  void Leave(Leaving leaving);
  // Lives that the target has as registrants, as far as is known.
  std::vector<nvme::host::LifeId> registered() const;
  // Whether a life is busy with leaving.
  bool IsLeaving() const;
  // It is not waited for any longer.
  void EndLeave();

  // Why the life is not proved dead, for people; empty: it is being tried, or nobody knows it.
  std::string WhyNotProved(nvme::host::LifeId life) const;

 private:
  // A life that is to be shut out.
  struct Dead {
    nvme::host::LifeId life = 0;
    bool in_doubt = false;                // else it only takes up room at the target
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

  PathReservation* Find(nvme::host::LifeId life) const;
  Dead* FindDead(nvme::host::LifeId life);
  void AddDead(nvme::host::LifeId life, bool in_doubt);
  void Forget(nvme::host::LifeId dead);
  void LookedAt(nvme::host::LifeId life);
  void StepSoon();
  void Step();
  Dead* NextFor(const PathReservation& path, uint64_t& soonest_ns);
  bool IsNeeded() const;
  void LeaveBy(PathReservation& path);
  void ShutOutBy(PathReservation& path, Dead& dead);
  void Stay(const std::string& why);
  void NotProved(Dead& dead, nvme::host::LifeId over, const nvme::host::ShutOutResult& result);

  const Config config_;
  const IoQueueTarget& target_;
  Reactor& control_;
  DiskReservationOwner& owner_;
  bool active_ = false;
  bool was_active_ = false;
  std::set<nvme::host::LifeId> looked_at_;
  std::optional<Leaving> leaving_;
  bool stays_ = false;                                   // registered, though leaving
  std::optional<uint64_t> shut_out_ns_;                  // when a life was last
  std::vector<std::unique_ptr<PathReservation>> paths_;  // of lives that have begun
  std::vector<Dead> dead_;
  PauseTimer step_{*this};
};

}  // namespace cleat::modules
