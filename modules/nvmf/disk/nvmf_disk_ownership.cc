// SPDX-License-Identifier: Apache-2.0
// The disk's owner: this engine, another one of this host, or another host.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "modules/nvmf/disk/nvmf_disk.h"

namespace cleat::modules {
namespace {

constexpr uint64_t kOwnPauseMinNs = kNsPerMs;
constexpr uint64_t kOwnPauseMaxNs = 20 * kNsPerMs;

}  // namespace

// Channels may be here already, with an I/O queue each; until they have a table they write nothing.
Task<Status> NvmfDisk::Acquire() {
  CLEAT_CO_TRY(co_await Own());
  if (reservation_) {
    Status joined = co_await JoinReservation();
    if (!joined) {
      if (doubt_.is_first()) doubt_.GiveUp();
      doubt_.Yield();
      co_return joined;
    }
  }
  if (doubt_.MayPublish()) co_return Ok{};
  std::vector<uint32_t> rows;
  for (const Link& link : links_) rows.push_back(link.number);
  doubt_.Take(rows, geometry_.size_bytes, Accepts());
  while (!doubt_.ledger().IsObeyed()) co_await changed_.Wait();
  co_return Ok{};
}

// An engine that had the disk may be on its way out.
Task<Status> NvmfDisk::Own() {
  const uint64_t give_up_ns = control_.now_ns() + own_wait_ns_;
  for (uint64_t pause_ns = kOwnPauseMinNs;; pause_ns = std::min(2 * pause_ns, kOwnPauseMaxNs)) {
    Status owned = doubt_.TryOwn();
    if (owned || owned.error().code != ErrorCode::kUnavailable || control_.now_ns() >= give_up_ns)
      co_return owned;
    co_await control_.SleepFor(pause_ns);
  }
}

// Paths that are slow to join are waited for a moment where another one has joined; they come back by themselves.
Task<Status> NvmfDisk::JoinReservation() {
  const bool others_had_it = doubt_.may_have_changed_hands();
  reservation_->SetActive(others_had_it);
  const uint64_t begun_ns = control_.now_ns();
  {
    const Deadline deadline(control_, changed_, begun_ns + kSlowJoinNs);
    while (!reservation_->IsSettled() && !deadline.passed()) co_await changed_.Wait();
  }
  {
    const Deadline deadline(control_, changed_, begun_ns + kJoinNs);
    while (!reservation_->IsSettled() && !reservation_->HasJoined() && !deadline.passed())
      co_await changed_.Wait();
  }
  reservation_->ShutOutUnsettled();
  while (!reservation_->IsSettled()) co_await changed_.Wait();
  if (reservation_->HasJoined() || !reservation_->refusal()) co_return Ok{};
  reservation_->SetInactive();
  co_return *reservation_->refusal();
}

// An upgrade hands the disk over at once.
Task<Status> NvmfDisk::Release() {
  const bool is_to_other_host = parting_ == block::Device::Parting::kToOtherHost;
  if (IsToLeave()) {
    Status left;
    if (reservation_ && reservation_->active()) left = co_await LeaveReservation();
    if (!left && is_to_other_host) {
      reservation_->StopLeaving();
      co_return left;
    }
    if (left && reservation_ && reservation_->active() && !is_to_other_host) LogNotAsked();
    if (!left) {
      spdlog::warn(
          "{}; before another host writes, attach the disk here once more, and detach it two minutes later",
          left.error().message);
    }
    doubt_.GiveUp();
  }
  if (reservation_) reservation_->SetInactive();
  doubt_.Yield();
  co_return Ok{};
}

// What an engine before may have registered by them keeps other hosts from writing.
void NvmfDisk::LogNotAsked() const {
  const std::string paths = reservation_->NotAsked();
  if (paths.empty()) return;
  spdlog::warn(
      "{}: this host may stay registered at its target: nobody knows what that has by a path that is down: "
      "{}",
      options_.shape.name, paths);
}

// An attach that fails leaves too, unless a guest may have been on the disk before this engine.
bool NvmfDisk::IsToLeave() const {
  using Parting = block::Device::Parting;
  return parting_ == Parting::kDetached || parting_ == Parting::kToOtherHost ||
         (parting_ == Parting::kAttachFailed && doubt_.is_first());
}

Task<Status> NvmfDisk::LeaveReservation() {
  const Deadline deadline(control_, changed_, control_.now_ns() + kLeaveNs);
  if (parting_ != block::Device::Parting::kToOtherHost) {
    while (!links_.empty() && !deadline.passed())
      co_await changed_.Wait();  // channels that were closed just now
  }
  reservation_->Leave(!doubt_.ledger().lives().empty());
  while (reservation_->IsLeaving() && !deadline.passed()) co_await changed_.Wait();
  co_return reservation_->EndLeave();
}

}  // namespace cleat::modules
