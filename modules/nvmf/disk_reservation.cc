// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/disk_reservation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace cleat::modules {

using nvme::host::LifeId;
using nvme::host::ShutOutEnd;
using nvme::host::ShutOutResult;

namespace {

constexpr const char* kNeeded = "what a broken path left was shut out less than two minutes ago";

}  // namespace

DiskReservation::DiskReservation(Config config, const IoQueueTarget& target, Reactor& control,
                                 DiskReservationOwner& owner)
    : config_(std::move(config)), target_(target), control_(control), owner_(owner) {
  CLEAT_CHECK(config_.family != 0);
}

// ---- Lives that begin and end

void DiskReservation::Begin(const DiskPath& path, uint16_t queue) {
  CLEAT_CHECK(Find(path.life()) == nullptr && queue != 0);
  if (leaving_) return;
  nvme::host::ReservationConfig config;
  config.who = path.where();
  config.nsid = path.info().nsid;
  config.family = config_.family;
  config.life = path.life();
  config.registrants_persist = path.info().space.registrants_persist;
  PathReservationOwner& self = *this;
  paths_.push_back(
      std::make_unique<PathReservation>(std::move(config), target_, path.IdFor(queue), control_, self));
  paths_.back()->Join();
}

// A life that was joined takes up room at the target.
void DiskReservation::End(LifeId life) {
  const PathReservation* const ended = Find(life);
  const bool was_joined = ended != nullptr && ended->joined();
  std::erase_if(paths_, [life](const auto& path) { return path->life() == life; });
  for (Dead& dead : dead_) {
    dead.cannot.erase(life);
    if (dead.over == life) dead.over = 0;
  }
  if (was_joined) AddDead(life, false);
  LookedAt(life);
  StepSoon();
}

void DiskReservation::SetActive(bool active) {
  if (active && !active_) {
    was_active_ = true;
    for (const auto& path : paths_) Look(path->life());
  }
  active_ = active;
  StepSoon();
}

// Whatever else a life is busy with ends with a report, too.
void DiskReservation::Look(LifeId life) {
  PathReservation* const path = Find(life);
  if (path == nullptr || leaving_ || !path->joined() || path->busy()) return;
  looked_at_.insert(life);
  path->See();
}

void DiskReservation::LookedAt(LifeId life) {
  if (looked_at_.erase(life) > 0 && looked_at_.empty()) owner_.LooksEnded();
}

void DiskReservation::AddOver(std::span<const LifeId> lives) {
  for (const LifeId life : lives) AddDead(life, false);
  // The engine before may have proved something a moment ago.
  if (!lives.empty()) shut_out_ns_ = control_.now_ns();
  StepSoon();
}

void DiskReservation::SetInDoubt(std::span<const LifeId> lives) {
  for (Dead& dead : dead_) dead.in_doubt = std::find(lives.begin(), lives.end(), dead.life) != lives.end();
  for (const LifeId life : lives) AddDead(life, true);
  StepSoon();
}

std::string DiskReservation::WhyNotProved(LifeId life) const {
  const auto found =
      std::find_if(dead_.begin(), dead_.end(), [life](const Dead& dead) { return dead.life == life; });
  return found == dead_.end() ? std::string() : found->why_not;
}

PathReservation* DiskReservation::Find(LifeId life) const {
  const auto found =
      std::find_if(paths_.begin(), paths_.end(), [life](const auto& path) { return path->life() == life; });
  return found == paths_.end() ? nullptr : found->get();
}

DiskReservation::Dead* DiskReservation::FindDead(LifeId life) {
  const auto found =
      std::find_if(dead_.begin(), dead_.end(), [life](const Dead& dead) { return dead.life == life; });
  return found == dead_.end() ? nullptr : &*found;
}

void DiskReservation::AddDead(LifeId life, bool in_doubt) {
  if (Find(life) != nullptr) return;
  if (Dead* const known = FindDead(life)) {
    known->in_doubt = known->in_doubt || in_doubt;
    return;
  }
  if (dead_.size() >= kDeadMax) return;
  dead_.push_back({.life = life, .in_doubt = in_doubt, .cannot = {}, .why_not = {}});
}

void DiskReservation::Forget(LifeId life) {
  std::erase_if(dead_, [life](const Dead& dead) { return dead.life == life; });
}

// ---- What lives say

void DiskReservation::Joined(LifeId life, const Status& status) {
  if (!status) return owner_.LifeShutOut(life, status.error());
  if (leaving_) return LeaveBy(*Find(life));
  owner_.LifeJoined(life);
  StepSoon();
}

void DiskReservation::Seen(LifeId life, const Result<nvme::host::ReservationReport>& report) {
  PathReservation* const path = Find(life);
  if (!path->joined()) {
    return owner_.LifeShutOut(life, report ? Error(ErrorCode::kFailedPrecondition,
                                                   config_.disk + ": this host is no registrant any more")
                                           : report.error());
  }
  LookedAt(life);
  if (leaving_) return LeaveBy(*path);
  StepSoon();
}

void DiskReservation::ShutOutEnded(LifeId life, LifeId dead, const ShutOutResult& result) {
  Dead* const found = FindDead(dead);
  if (found != nullptr) found->over = 0;
  if (found != nullptr && result.end == ShutOutEnd::kProved) {
    const bool was_in_doubt = found->in_doubt;
    Forget(dead);
    if (was_in_doubt) shut_out_ns_ = control_.now_ns();
    if (was_in_doubt) owner_.ProvedDead(dead);
  } else if (found != nullptr) {
    NotProved(*found, life, result);
  }
  PathReservation* const path = Find(life);
  if (path != nullptr && !path->joined())
    return owner_.LifeShutOut(life, {ErrorCode::kFailedPrecondition, result.reason});
  if (path != nullptr && leaving_) return LeaveBy(*path);
  StepSoon();
}

// What only took up room at the target has none there any more, or keeps it.
void DiskReservation::NotProved(Dead& dead, LifeId over, const ShutOutResult& result) {
  if (!dead.in_doubt) return Forget(dead.life);
  if (dead.why_not != result.reason)
    spdlog::warn("{}: writes stay in doubt: {}; tried again", config_.disk, result.reason);
  dead.why_not = result.reason;
  if (result.end == ShutOutEnd::kNever) {
    dead.cannot.insert(over);
    return;
  }
  dead.pause_ns = std::clamp(2 * dead.pause_ns, kPauseMinNs, kPauseMaxNs);
  dead.not_before_ns = control_.now_ns() + dead.pause_ns;
}

void DiskReservation::Left(LifeId life, const Status& status) {
  if (!status) Stay(status.error().message);
  owner_.LifeLeft(life);
}

void DiskReservation::ReservationBroken(LifeId life, const Error& reason) {
  owner_.LifeShutOut(life, reason);
}

// ---- The end

void DiskReservation::Leave(Leaving leaving) {
  CLEAT_CHECK(!leaving_);
  leaving_ = leaving;
  step_.Cancel();
  if (leaving == Leaving::kOwnerInDoubt)
    return Stay("writes are in doubt, which must not hit what others write");
  if (IsNeeded()) return Stay(kNeeded);
  for (const auto& path : paths_) {
    if (!path->busy()) LeaveBy(*path);
  }
}

void DiskReservation::EndLeave() {
  if (IsLeaving()) return Stay("no answer yet, and the disk is detached without");
  if (!dead_.empty()) Stay("a path that broke is registered, and no other one leads there now");
}

bool DiskReservation::IsLeaving() const {
  return leaving_ && !stays_ &&
         std::any_of(paths_.begin(), paths_.end(), [](const auto& path) { return path->busy(); });
}

// Whether something was proved that holds only as long as the reservation does.
bool DiskReservation::IsNeeded() const {
  return leaving_ != Leaving::kUnused && config_.proves && shut_out_ns_ &&
         control_.now_ns() - *shut_out_ns_ < config_.proof_needs_ns;
}

// What broken paths have left goes first, as somebody has to be there for it.
void DiskReservation::LeaveBy(PathReservation& path) {
  uint64_t soonest_ns = UINT64_MAX;
  if (IsNeeded()) Stay(kNeeded);
  Dead* const dead =
      path.joined() && !stays_ && leaving_ == Leaving::kOwner ? NextFor(path, soonest_ns) : nullptr;
  if (dead != nullptr) return ShutOutBy(path, *dead);
  if (path.joined() && !stays_) return path.Leave();
  owner_.LifeLeft(path.life());
}

// Told once, and not where another engine has the disk.
void DiskReservation::Stay(const std::string& why) {
  if (std::exchange(stays_, true) || leaving_ == Leaving::kUnused) return;
  spdlog::warn(
      "{}: this host stays registered at its target: {}; before another host writes, attach the disk here "
      "once more, and detach it two minutes later",
      config_.disk, why);
}

std::vector<LifeId> DiskReservation::registered() const {
  std::vector<LifeId> lives;
  for (const auto& path : paths_) {
    if (path->joined()) lives.push_back(path->life());
  }
  for (const Dead& dead : dead_) lives.push_back(dead.life);
  return lives;
}

// ---- Shutting out

void DiskReservation::StepSoon() {
  step_.Cancel();
  control_.AddTimer(step_, control_.now_ns());
}

void DiskReservation::Step() {
  if (!active_ || leaving_ || dead_.empty()) return;
  uint64_t soonest_ns = UINT64_MAX;
  for (const auto& path : paths_) {
    if (!path->joined() || path->busy()) continue;
    Dead* const dead = NextFor(*path, soonest_ns);
    if (dead == nullptr) continue;
    ShutOutBy(*path, *dead);
  }
  if (soonest_ns != UINT64_MAX && !step_.pending()) control_.AddTimer(step_, soonest_ns);
}

void DiskReservation::ShutOutBy(PathReservation& path, Dead& dead) {
  dead.over = path.life();
  path.ShutOut(dead.life);
}

// Lives in doubt come first: somebody waits. One that a reactor may still send for is none yet.
DiskReservation::Dead* DiskReservation::NextFor(const PathReservation& path, uint64_t& soonest_ns) {
  Dead* next = nullptr;
  for (Dead& dead : dead_) {
    if (dead.over != 0 || dead.cannot.contains(path.life()) || !owner_.MayBeShutOut(dead.life)) continue;
    if (dead.not_before_ns > control_.now_ns()) {
      soonest_ns = std::min(soonest_ns, dead.not_before_ns);
    } else if (next == nullptr || (dead.in_doubt && !next->in_doubt)) {
      next = &dead;
    }
  }
  return next;
}

}  // namespace cleat::modules
