// SPDX-License-Identifier: Apache-2.0
#include "modules/nvmf/disk/disk_doubt.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "modules/nvmf/path/nvmf_path.h"

namespace cleat::modules {

using nvme::host::LifeId;

DiskDoubt::DiskDoubt(std::string disk, nvme::host::ProofPolicy proofs, Reactor& control,
                     DiskDoubtOwner& owner)
    : disk_(std::move(disk)), control_(control), owner_(owner), ledger_(proofs) {}

Status DiskDoubt::MapLog(const UniqueFd& file) {
  CLEAT_ASSIGN(log_, KeptDoubtLog::Map(file, disk_));
  return Ok{};
}

Status DiskDoubt::TryOwn() {
  if (log_ == nullptr || log_->is_owned()) return Ok{};
  CLEAT_TRY(log_->TryOwn());
  held_until_ns_ = std::max(held_until_ns_, log_->log().reservation_held_until() * kNsPerSecond);
  return Ok{};
}

void DiskDoubt::GiveUp() {
  if (log_ != nullptr && log_->is_owned()) log_->GiveUp();
}

// The log has room for half of a revision. Only an attachment whose revision is a multiple of 2^32 away from that of the mark would be taken for it.
void DiskDoubt::SetLeaving(uint64_t attachment) {
  if (log_ != nullptr && log_->is_owned()) log_->SetLeaving(static_cast<uint32_t>(attachment));
}

bool DiskDoubt::IsLeaving(uint64_t attachment) const {
  const uint32_t leaving = log_ == nullptr ? 0 : log_->log().leaving();
  return leaving != 0 && leaving == static_cast<uint32_t>(attachment);
}

void DiskDoubt::Take(std::span<const uint32_t> rows, uint64_t disk_bytes, bool accepts) {
  if (MayPublish()) return;
  LogFound(log_->Take(ledger_, DrawLife(), owner_.LivingLives()), disk_bytes, accepts);
  StoreLives();
  for (const uint32_t row : rows) log_->OpenRow(row);
  published_version_ = 0;
  Publish();
}

void DiskDoubt::Yield() {
  Publish();
  if (log_ == nullptr) return;
  // Lives that go on have nothing under way, and would be taken for some that are over.
  if (log_->is_taken()) log_->StoreLives(ledger_.lives());
  log_->Yield();
}

// The log has whole seconds.
void DiskDoubt::HoldReservationUntil(uint64_t until_ns) {
  held_until_ns_ = until_ns;
  if (log_ != nullptr) log_->HoldReservationUntil(static_cast<uint32_t>(until_ns / kNsPerSecond + 1));
}

bool DiskDoubt::IsReservationNeeded() const {
  return control_.now_ns() < held_until_ns_;
}

void DiskDoubt::Stop() {
  stopped_ = true;
  word_later_.Cancel();
}

void DiskDoubt::PublishSoon() {
  if (!publish_soon_.pending()) control_.AddTimer(publish_soon_, control_.now_ns());
}

void DiskDoubt::Publish() {
  publish_soon_.Cancel();
  if (!MayPublish()) return;
  if (std::exchange(published_version_, ledger_.version()) == ledger_.version()) return;
  if (log_ != nullptr) log_->Store(ledger_);
  StoreLives();
  owner_.DoubtPublished();
  AwaitWord();
}

void DiskDoubt::OpenRow(uint32_t reactor) {
  if (log_ != nullptr) log_->OpenRow(reactor);
}

// Lives that may leave something from now on, and lives that have.
void DiskDoubt::StoreLives() {
  if (log_ == nullptr || !log_->is_taken()) return;
  std::vector<LifeId> lives = ledger_.lives();
  for (const LifeId life : owner_.LivingLives()) {
    // Both, where not all reactors have reported its end.
    if (std::find(lives.begin(), lives.end(), life) == lives.end()) lives.push_back(life);
  }
  log_->StoreLives(lives);
}

Status DiskDoubt::ConfirmDead() {
  const std::vector<LifeId> living = owner_.LivingLives();
  Status all;
  for (const LifeId life : ledger_.lives()) {
    if (std::find(living.begin(), living.end(), life) != living.end()) continue;
    const Status proved = ledger_.Proved(life, nvme::host::Proof::kOperatorConfirmed);
    if (!proved) all = Error(proved.error().code, disk_ + ": " + proved.error().message);
  }
  Publish();
  return all;
}

// ---- The word that comes by the log

void DiskDoubt::AwaitWord() {
  if (log_ == nullptr || ledger_.ghosts() == 0 || stopped_ || word_later_.pending()) return;
  control_.AddTimer(word_later_, control_.now_ns() + kWordNs);
}

// Another process has written it, and it is of no effect once more is in doubt than it was about (DoubtLog::Confirm).
void DiskDoubt::LookForWord() {
  if (!log_->is_taken()) return;  // the engine that takes it looks
  if (log_->log().IsConfirmed()) {
    // What a reactor has not reported yet is tried again as long as it has the same number.
    const Status confirmed = ConfirmDead();
    if (confirmed) {
      LogConfirmed();
    } else if (!log_->log().IsConfirmed()) {
      spdlog::warn("{}: the operator's word for what is in doubt holds in part: {}", disk_,
                   confirmed.error().message);
    }
  }
  AwaitWord();
}

// ---- What people hear

void DiskDoubt::LogConfirmed() const {
  spdlog::warn("{}: what was in doubt is dead, as an operator says: writes over it go on", disk_);
}

void DiskDoubt::LogFound(const KeptDoubtLog::Found& found, uint64_t disk_bytes, bool accepts) const {
  const char* const writes = accepts ? "writes do not wait for that, as the disk accepts it"
                                     : "writes over them wait for that, reads do not";
  if (found.was_confirmed) LogConfirmed();
  if (found.unreadable) {
    spdlog::warn("{}: all of it is in doubt: {}; {}", disk_, found.unreadable->message, writes);
  } else if (found.ranges > 0) {
    spdlog::warn(
        "{}: {} bytes are in doubt since an engine before (ranges: {}), until somebody confirms that its "
        "targets have dropped what that engine sent; {}",
        disk_, std::min(found.bytes, disk_bytes), found.ranges, writes);
  }
}

}  // namespace cleat::modules
