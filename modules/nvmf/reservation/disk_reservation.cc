// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/reservation/disk_reservation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cleat::modules {

using nvme::host::LifeId;
using nvme::host::ReservationReport;
using nvme::host::ShutOutEnd;
using nvme::host::ShutOutResult;

namespace {

// What a target says, and not that there is none.
bool IsRefusal(const Error& error) {
  return error.code != ErrorCode::kUnavailable && error.code != ErrorCode::kDeadlineExceeded &&
         error.code != ErrorCode::kCancelled;
}

}  // namespace

DiskReservation::DiskReservation(uint64_t family, std::string disk, const IoQueueTarget& target,
                                 Reactor& control, DiskReservationOwner& owner)
    : family_(family), disk_(std::move(disk)), target_(target), control_(control), owner_(owner) {
  CLEAT_CHECK(family != 0);
}

// ---- Lives that begin and end

void DiskReservation::Begin(const DiskPath& path, uint16_t queue) {
  CLEAT_CHECK(!Has(path.life()) && queue != 0);
  nvme::host::ReservationConfig config;
  config.who = path.where();
  config.nsid = path.info().nsid;
  config.family = family_;
  config.life = path.life();
  config.registrants_persist = path.info().space.registrants_persist;
  PathReservationOwner& self = *this;
  lives_.push_back({.address = path.index(),
                    .part = std::make_unique<PathReservation>(std::move(config), target_, path.IdFor(queue),
                                                              control_, self)});
  if (active_ && !leaving_) Join(lives_.back());
}

void DiskReservation::Join(Life& life) {
  life.part->Join();
}

// What may be a registrant takes up room at the target, and keeps others out.
void DiskReservation::End(LifeId id) {
  const Life* const ended = Find(id);
  if (ended == nullptr) return;
  const bool may_be_registered = ended->part->may_be_registered();
  const uint32_t address = ended->address;
  std::erase_if(lives_, [id](const Life& life) { return life.part->life() == id; });
  for (Dead& dead : dead_) {
    dead.cannot.erase(id);
    if (dead.over == id) dead.over = 0;
  }
  if (may_be_registered) AddDead(id, false, address);
  to_look_.erase(id);
  Settle(id);
  StepSoon();
  if (leaving_) LeaveByEach();
}

void DiskReservation::SetActive(bool others_had_it) {
  if (std::exchange(active_, true)) return;
  StepSoon();
  // A disk that was refused is answered anew by its next life, and not before.
  awaits_successor_ = lives_.empty() && refusal_;
  const bool anew = std::exchange(has_left_, false) || others_had_it;
  for (Life& life : lives_) {
    const LifeId id = life.part->life();
    if (life.part->joined() && !anew) continue;
    unsettled_.insert(id);
    if (!life.part->begun()) {
      Join(life);
    } else if (anew) {
      awaits_successor_ = true;
      owner_.LifeShutOut(id, {ErrorCode::kFailedPrecondition, disk_ + ": others may have had it meanwhile"});
    }
  }
}

void DiskReservation::SetInactive() {
  active_ = false;
  leaving_ = false;
  unsettled_.clear();
  awaits_successor_ = false;
  to_look_.clear();
  step_.Cancel();
}

void DiskReservation::Settle(LifeId life) {
  if (unsettled_.erase(life) > 0) owner_.ReservationChanged();
}

void DiskReservation::ShutOutUnsettled() {
  awaits_successor_ = false;
  for (const LifeId life : unsettled_) {
    owner_.LifeShutOut(life, {ErrorCode::kDeadlineExceeded,
                              disk_ + ": a path has not joined the namespace's reservation in time"});
  }
}

bool DiskReservation::HasJoined() const {
  return std::any_of(lives_.begin(), lives_.end(), [this](const Life& life) {
    return life.part->joined() && !unsettled_.contains(life.part->life());
  });
}

void DiskReservation::Look(LifeId life) {
  if (!active_) return;
  to_look_.insert(life);
  StepSoon();
}

void DiskReservation::SetInDoubt(std::span<const LifeId> lives) {
  for (Dead& dead : dead_) dead.in_doubt = std::find(lives.begin(), lives.end(), dead.life) != lives.end();
  // A life that is dead by a person's word, and was never seen at a target, takes up no room that is known of.
  std::erase_if(dead_, [](const Dead& dead) { return !dead.in_doubt && dead.address == kAnyAddress; });
  for (const LifeId life : lives) AddDead(life, true, kAnyAddress);
  StepSoon();
}

std::string DiskReservation::WhyNotProved() const {
  const auto found = std::find_if(dead_.begin(), dead_.end(),
                                  [](const Dead& dead) { return dead.in_doubt && !dead.why_not.empty(); });
  return found == dead_.end() ? std::string() : found->why_not;
}

const DiskReservation::Life* DiskReservation::Find(LifeId id) const {
  const auto found =
      std::find_if(lives_.begin(), lives_.end(), [id](const Life& life) { return life.part->life() == id; });
  return found == lives_.end() ? nullptr : &*found;
}

DiskReservation::Life* DiskReservation::Find(LifeId id) {
  return const_cast<Life*>(std::as_const(*this).Find(id));
}

DiskReservation::Dead* DiskReservation::FindDead(LifeId life) {
  const auto found =
      std::find_if(dead_.begin(), dead_.end(), [life](const Dead& dead) { return dead.life == life; });
  return found == dead_.end() ? nullptr : &*found;
}

void DiskReservation::AddDead(LifeId life, bool in_doubt, uint32_t address) {
  if (Has(life)) return;
  if (Dead* const known = FindDead(life)) {
    known->in_doubt = known->in_doubt || in_doubt;
    if (address != kAnyAddress) known->address = address;
    return;
  }
  if (dead_.size() >= kDeadMax) return;
  dead_.push_back({.life = life, .in_doubt = in_doubt, .address = address, .cannot = {}, .why_not = {}});
}

void DiskReservation::Forget(LifeId life) {
  std::erase_if(dead_, [life](const Dead& dead) { return dead.life == life; });
}

// ---- What lives say

void DiskReservation::Joined(LifeId id, const Status& status) {
  if (status || IsRefusal(status.error())) awaits_successor_ = false;
  if (!status) {
    if (IsRefusal(status.error())) refusal_ = status.error();
    return owner_.LifeShutOut(id, status.error());
  }
  if (!active_) {
    return owner_.LifeShutOut(
        id, {ErrorCode::kCancelled, disk_ + ": it was given away while a path was being registered"});
  }
  refusal_.reset();
  owner_.LifeJoined(id);
  Settle(id);
  if (leaving_) return LeaveBy(*Find(id));
  Look(id);
}

void DiskReservation::Seen(LifeId id, const Result<ReservationReport>& report) {
  Life& life = *Find(id);
  if (!life.part->joined()) {
    return owner_.LifeShutOut(
        id, report ? Error(ErrorCode::kFailedPrecondition, disk_ + ": this host is no registrant any more")
                   : report.error());
  }
  if (report) {
    to_look_.erase(id);
    if (leaving_) asked_.insert(life.address);
    AddOthers(life, *report);
    Settle(id);
  } else {
    look_at_ns_ = control_.now_ns() + kPauseMinNs;
  }
  if (leaving_) return report ? LeaveBy(life) : owner_.ReservationChanged();
  StepSoon();
}

// A report that comes late, when another engine may have the disk, says nothing of who is over.
void DiskReservation::AddOthers(const Life& life, const ReservationReport& report) {
  if (!active_) return;
  for (const nvme::host::Registrant& other : report.registrants) {
    const std::optional<LifeId> id = nvme::host::LifeOf(other.host_id, family_);
    if (id) AddDead(*id, false, life.address);
  }
}

void DiskReservation::ShutOutEnded(LifeId id, LifeId dead, const ShutOutResult& result) {
  Dead* const found = FindDead(dead);
  if (found != nullptr) found->over = 0;
  if (!active_) return;  // the log is another engine's
  if (found != nullptr && result.end == ShutOutEnd::kProved) {
    Forget(dead);
    owner_.ProvedDead(dead);
  } else if (found != nullptr) {
    NotProved(*found, id, result);
  }
  Life* const life = Find(id);
  if (life != nullptr && !life->part->joined())
    return owner_.LifeShutOut(id, {ErrorCode::kFailedPrecondition, result.reason});
  if (life != nullptr && leaving_) return LeaveBy(*life);
  StepSoon();
}

// What only takes up room is gone where the target that it came to does not have it.
void DiskReservation::NotProved(Dead& dead, LifeId over, const ShutOutResult& result) {
  if (dead.in_doubt && dead.why_not != result.reason)
    spdlog::warn("{}: writes stay in doubt: {}; tried again", disk_, result.reason);
  dead.why_not = result.reason;
  if (result.end == ShutOutEnd::kNever) {
    const Life* const asked = Find(over);
    if (!dead.in_doubt && asked != nullptr && asked->address == dead.address) return Forget(dead.life);
    dead.cannot.insert(over);
    return;
  }
  dead.pause_ns = std::clamp(2 * dead.pause_ns, kPauseMinNs, kPauseMaxNs);
  dead.not_before_ns = control_.now_ns() + dead.pause_ns;
}

void DiskReservation::Left(LifeId life, const Status& status) {
  if (!leaving_ && active_)
    return owner_.LifeShutOut(life, {ErrorCode::kCancelled, disk_ + ": it stays on this host"});
  if (!status) Stay(status.error().message);
  owner_.ReservationChanged();
}

void DiskReservation::ReservationBroken(LifeId life, const Error& reason) {
  owner_.LifeShutOut(life, reason);
}

// ---- The end

void DiskReservation::Leave(bool is_in_doubt) {
  CLEAT_CHECK(active_ && !leaving_);
  leaving_ = true;
  has_left_ = true;
  why_stays_.clear();
  asked_.clear();
  step_.Cancel();
  if (is_in_doubt) return Stay("writes are in doubt, which must not hit what others write");
  for (Life& life : lives_) life.last_look = false;
  LeaveByEach();
}

void DiskReservation::LeaveByEach() {
  for (Life& life : lives_) {
    if (!life.part->busy()) LeaveBy(life);
  }
}

Status DiskReservation::EndLeave() {
  if (IsLeaving()) {
    Stay("no answer yet");
  } else if (asked_.empty() && !refusal_) {
    Stay("no path leads to its target now");
  } else if (std::any_of(lives_.begin(), lives_.end(),
                         [](const Life& life) { return life.part->joined(); })) {
    Stay("a path's target does not say whom it has");
  } else if (!dead_.empty()) {
    Stay("a path that broke is registered, and no other one leads there now");
  }
  if (why_stays_.empty()) return Ok{};
  return Error(ErrorCode::kAborted, disk_ + ": this host stays registered at its target: " + why_stays_);
}

void DiskReservation::StopLeaving() {
  leaving_ = false;
  has_left_ = false;
  for (Life& life : lives_) {
    if (life.part->busy() || life.part->joined()) continue;
    if (life.part->begun()) {
      owner_.LifeShutOut(life.part->life(), {ErrorCode::kCancelled, disk_ + ": it stays on this host"});
    } else {
      Join(life);
    }
  }
  StepSoon();
}

std::string DiskReservation::NotAsked() const {
  std::string who;
  for (uint32_t address = 0; address < target_.paths.size(); ++address) {
    if (asked_.contains(address)) continue;
    if (!who.empty()) who += ", ";
    who += target_.paths[address].who;
  }
  return who;
}

bool DiskReservation::IsLeaving() const {
  return leaving_ && why_stays_.empty() &&
         std::any_of(lives_.begin(), lives_.end(), [](const Life& life) { return life.part->busy(); });
}

// What is over and still registered goes first, as somebody has to be there for it.
void DiskReservation::LeaveBy(Life& life) {
  if (owner_.IsReservationNeeded()) Stay("what a broken path left was shut out less than two minutes ago");
  if (!why_stays_.empty() || !life.part->joined()) return owner_.ReservationChanged();
  if (!std::exchange(life.last_look, true)) return life.part->See();
  uint64_t soonest_ns = UINT64_MAX;
  if (Dead* const dead = NextFor(life, soonest_ns)) return ShutOutBy(life, *dead);
  if (!IsReadyToLeave()) return owner_.ReservationChanged();
  for (Life& each : lives_) {
    if (each.part->joined() && !each.part->busy()) each.part->Leave();
  }
}

// Together, so that another host does not have the namespace by one path while this one may have to stay by another.
bool DiskReservation::IsReadyToLeave() const {
  return std::all_of(lives_.begin(), lives_.end(), [this](const Life& life) {
    return !life.part->joined() || (asked_.contains(life.address) && !life.part->busy());
  });
}

// The first reason counts.
void DiskReservation::Stay(const std::string& why) {
  if (why_stays_.empty()) why_stays_ = why;
}

// ---- Looks, and who is shut out

void DiskReservation::StepSoon() {
  step_.Cancel();
  control_.AddTimer(step_, control_.now_ns());
}

void DiskReservation::Step() {
  if (!active_ || leaving_) return;
  uint64_t soonest_ns = UINT64_MAX;
  const bool may_look = control_.now_ns() >= look_at_ns_;
  if (!may_look && !to_look_.empty()) soonest_ns = look_at_ns_;
  for (Life& life : lives_) {
    if (!life.part->joined() || life.part->busy()) continue;
    if (may_look && to_look_.contains(life.part->life())) {
      life.part->See();
    } else if (Dead* const dead = NextFor(life, soonest_ns)) {
      ShutOutBy(life, *dead);
    }
  }
  if (soonest_ns != UINT64_MAX && !step_.pending()) control_.AddTimer(step_, soonest_ns);
}

void DiskReservation::ShutOutBy(Life& life, Dead& dead) {
  dead.over = life.part->life();
  life.part->ShutOut(dead.life);
}

// Lives in doubt come first: somebody waits. One that a reactor may still send for is none yet.
DiskReservation::Dead* DiskReservation::NextFor(const Life& life, uint64_t& soonest_ns) {
  Dead* next = nullptr;
  for (Dead& dead : dead_) {
    if (dead.over != 0 || dead.cannot.contains(life.part->life()) || !owner_.MayBeShutOut(dead.life))
      continue;
    if (dead.not_before_ns > control_.now_ns()) {
      soonest_ns = std::min(soonest_ns, dead.not_before_ns);
    } else if (next == nullptr || (dead.in_doubt && !next->in_doubt)) {
      next = &dead;
    }
  }
  return next;
}

}  // namespace cleat::modules
