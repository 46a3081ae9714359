// SPDX-License-Identifier: Apache-2.0
#include "engine/controller/disk_ownership.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "reactor/for_each_concurrently.h"

namespace cleat::engine {
namespace {

constexpr const char* kReleasedMessage =
    "given up to the host that its VM migrates to: taken back if the guest's rings start here again";

// Whether the guest has to wait for it. One that was shut out fails every request, which is no reason to stop the guest.
bool IsAcquirePending(const AttachedDisk& disk) {
  return disk.acquire_pending && disk.state != AttachmentState::kFenced &&
         disk.state != AttachmentState::kClosing;
}

}  // namespace

DiskOwnership::DiskOwnership(ControllerContext& context, const ControllerSpec& spec,
                             const std::vector<std::unique_ptr<Target>>& targets,
                             std::function<void()> on_change)
    : context_(context),
      spec_(spec),
      targets_(targets),
      on_change_(std::move(on_change)),
      idle_(context.control) {}

DiskOwnership::~DiskOwnership() {
  CLEAT_CHECK(!running_);
}

bool DiskOwnership::owned() const {
  return std::none_of(targets_.begin(), targets_.end(), [](const auto& target) {
    return target->disk != nullptr && IsAcquirePending(*target->disk);
  });
}

void DiskOwnership::AcquireAsync(std::function<void()> on_owned) {
  wanted_ = true;
  on_owned_ = std::move(on_owned);
  waiting_ = !owned();
  if (waiting_) Kick();
}

void DiskOwnership::CancelAcquire() {
  wanted_ = false;
  on_owned_ = {};
  Kick();
}

void DiskOwnership::HandOff() {
  wanted_ = false;
  on_owned_ = {};
  for (const auto& target : targets_) {
    AttachedDisk* disk = target->disk.get();
    if (disk != nullptr && disk->state == AttachmentState::kActive) disk->acquire_pending = true;
  }
  Kick();
}

std::string DiskOwnership::pending_reason() const {
  if (owned()) return {};
  if (!failure_.empty()) return failure_ + "; tried again until it is free";
  std::string disks;
  for (const auto& target : targets_) {
    if (target->disk == nullptr || !IsAcquirePending(*target->disk)) continue;
    disks += (disks.empty() ? "" : ", ") + target->disk->spec.disk.name;
  }
  return disks + " is being taken over";
}

// ---- The work

void DiskOwnership::Kick() {
  retry_ns_ = kRetryMinNs;
  if (pause_ != nullptr) pause_->Cancel();
  if (running_ || closing_.cancelled()) return;
  running_ = true;
  idle_.Reset();
  Spawn(Run());
}

Task<void> DiskOwnership::Run() {
  co_await context_.control.Yield();  // whoever kicked goes on first
  while (!closing_.cancelled()) {
    if (wanted_ && !owned()) {
      co_await AcquireAll();
    } else if (AnyInVain()) {
      const Status released = co_await ForEachPending(&DiskOwnership::ReleaseUnlessWanted);
      if (!released && !wanted_) co_await Pause();
    } else {
      break;
    }
  }
  failure_.clear();
  running_ = false;
  idle_.Set();
  // Also when the disk that was waited for was detached.
  if (wanted_ && std::exchange(waiting_, false)) {
    on_change_();
    on_owned_();
  }
}

// Disks are owned for whom nobody waits any more.
bool DiskOwnership::AnyInVain() const {
  return std::any_of(targets_.begin(), targets_.end(), [](const auto& target) {
    return target->disk != nullptr && IsAcquirePending(*target->disk) && target->disk->owned();
  });
}

Task<void> DiskOwnership::AcquireAll() {
  const Status acquired = co_await ForEachPending(&DiskOwnership::AcquireOne);
  if (!wanted_) co_return;  // Run releases them again
  if (acquired) {
    TakeAll();
    co_return;
  }
  if (failure_ != acquired.error().message) {
    failure_ = acquired.error().message;
    spdlog::warn("{}: rings wait for the disks' ownership: {}; tried again", spec_.name, failure_);
    on_change_();
  }
  (void)co_await ForEachPending(&DiskOwnership::ReleaseOne);
  if (wanted_) co_await Pause();
}

// Before the next attempt, unless something has changed by then.
Task<void> DiskOwnership::Pause() {
  if (closing_.cancelled()) co_return;
  CancelToken pause;
  pause_ = &pause;
  co_await context_.control.SleepFor(retry_ns_, &pause);
  pause_ = nullptr;
  retry_ns_ = std::min(2 * retry_ns_, kRetryMaxNs);
}

// A disk that was attached meanwhile is still to be acquired: then owned() isn't true yet.
void DiskOwnership::TakeAll() {
  for (const auto& target : targets_) {
    AttachedDisk* disk = target->disk.get();
    if (disk == nullptr || !IsAcquirePending(*disk) || !disk->owned()) continue;
    disk->StayHere();
    const bool fenced = !disk->fenced().empty();  // since it was acquired
    SetState(*disk, fenced ? AttachmentState::kFenced : AttachmentState::kActive, disk->fenced().c_str());
  }
  if (owned()) spdlog::info("{}: disks acquired: this engine owns them", spec_.name);
}

Task<Status> DiskOwnership::ForEachPending(DiskTask task) {
  const auto run = [this, task](const std::unique_ptr<Target>& target) -> Task<Status> {
    if (target->disk == nullptr) co_return Ok{};
    const auto guard = co_await target->operations.Lock(&closing_);
    if (!guard || target->disk == nullptr || !IsAcquirePending(*target->disk)) co_return Ok{};
    Status done = co_await (this->*task)(*target);
    co_return done;
  };
  Status done = co_await ForEachConcurrently(context_.control, targets_, run);
  co_return done;
}

Task<Status> DiskOwnership::AcquireOne(Target& target) {
  AttachedDisk& disk = *target.disk;
  disk.SetAcquireTimeout(kAcquireTimeoutNs);
  Status acquired = co_await disk.Acquire();
  disk.SetAcquireTimeout(std::nullopt);  // a hand-over, which may come later, does not ask again
  CLEAT_CO_TRY(acquired);
  // Before the guest asks for what the last host let it grow to.
  const ResizeSpec grown{disk.spec.disk.name, disk.grown_bytes()};
  if (grown.size_bytes <= disk.spec.disk.size_bytes) co_return acquired;
  Status resized = co_await disk.Resize(grown);
  CLEAT_CO_TRY(resized);
  co_await guest_device_->Resized(disk);
  co_return resized;
}

// What can't be given up yet - the storage may still do something for this host - is the guest's as before, if it comes back.
Task<Status> DiskOwnership::ReleaseOne(Target& target) {
  AttachedDisk& disk = *target.disk;
  Status released = co_await disk.ReleaseToOtherHost();
  if (disk.state != AttachmentState::kActive) co_return released;
  if (!disk.owned()) {
    SetState(disk, AttachmentState::kReleased, kReleasedMessage);
    spdlog::info("{}: released by {}: its VM migrates to another host", disk.spec.disk.name, spec_.name);
  } else if (disk.message != released.error().message) {
    spdlog::warn("{}; {} gives it to the host that its VM migrates to as soon as it can",
                 released.error().message, spec_.name);
    SetState(disk, AttachmentState::kActive, released.error().message.c_str());
  }
  co_return released;
}

// The guest may have come back while the target's mutex was waited for: no other host is to get the disk then.
Task<Status> DiskOwnership::ReleaseUnlessWanted(Target& target) {
  if (wanted_) co_return Ok{};
  co_return co_await ReleaseOne(target);
}

void DiskOwnership::SetState(AttachedDisk& disk, AttachmentState state, const char* message) {
  disk.state = state;
  disk.message = message;
  context_.on_attachment_changed(spec_.name, disk.spec.target);
}

Task<void> DiskOwnership::Close() {
  wanted_ = false;
  on_owned_ = {};
  closing_.Cancel();
  if (pause_ != nullptr) pause_->Cancel();
  if (running_) co_await idle_.Wait();
}

}  // namespace cleat::engine
