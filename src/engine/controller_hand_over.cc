// SPDX-License-Identifier: Apache-2.0
// How a controller goes to another engine, or comes from one: docs/upgrade.md has the state machine.
#include <spdlog/spdlog.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

#include "engine/controller.h"
#include "observe/past.h"

namespace cleat::engine {

Task<void> Controller::AcquireBesides(AttachedDisk& disk, Status* first_error, Gate::Holder /*inside*/) {
  auto acquire = disk.Acquire();
  Status acquired = co_await std::move(acquire);
  if (acquired && !disk.fenced().empty()) acquired = Error(ErrorCode::kUnavailable, disk.fenced());
  if (!acquired && *first_error) *first_error = std::move(acquired);
}

Task<void> Controller::ReleaseBesides(AttachedDisk& disk, Gate::Holder /*inside*/) {
  auto release = disk.Release();
  (void)co_await std::move(release);  // whoever acquires it finds out, and the log has it
}

// Side by side: with a cluster each takes milliseconds, and a guest waits.
Task<Status> Controller::AcquireAll() {
  Status first_error;
  Gate acquiring(context_.control);
  for (const auto& target : targets_) {
    if (target->disk != nullptr) Spawn(AcquireBesides(*target->disk, &first_error, Gate::Holder(acquiring)));
  }
  co_await acquiring.Close();
  if (!first_error) {
    auto release = ReleaseAll();
    co_await std::move(release);
  }
  co_return first_error;
}

Task<void> Controller::ReleaseAll() {
  Gate releasing(context_.control);
  for (const auto& target : targets_) {
    if (target->disk != nullptr) Spawn(ReleaseBesides(*target->disk, Gate::Holder(releasing)));
  }
  co_await releasing.Close();
}

// Those that are not open yet, or not any more, stay as they are. One may have been shut out since it was acquired.
void Controller::SetStates(AttachmentState from, AttachmentState to) {
  for (const auto& target : targets_) {
    if (target->disk == nullptr || target->disk->state != from) continue;
    const std::string fenced = to == AttachmentState::kActive ? target->disk->fenced() : std::string();
    SetState(*target->disk, fenced.empty() ? to : AttachmentState::kFenced, fenced);
  }
  Changed();
}

std::optional<Error> Controller::TryLockAll(std::vector<AsyncMutex::Guard>& guards) {
  for (const auto& target : targets_) {
    auto guard = target->operations.TryLock();
    if (!guard) {
      const std::string disk = target->disk == nullptr ? "a disk" : target->disk->spec.disk.name;
      return Error(ErrorCode::kFailedPrecondition,
                   spec_.name + ": " + disk + " is just being attached, detached or resized: try again");
    }
    guards.push_back(std::move(guard));
  }
  if (closed_) return Error(ErrorCode::kNotFound, spec_.name + " was deleted");
  for (const auto& target : targets_) {
    if (target->disk == nullptr || !target->disk->awaited) continue;
    return Error(ErrorCode::kFailedPrecondition,
                 spec_.name + ": " + target->disk->spec.disk.name +
                     " is being migrated: try again when its VM runs here, or the disk was detached");
  }
  return std::nullopt;
}

Task<Result<HandOver>> Controller::Yield(uint64_t deadline_ns) {
  std::vector<AsyncMutex::Guard> guards;
  if (auto busy = TryLockAll(guards)) co_return std::move(*busy);
  HandOver hand_over;
  if (!stands_by_) {
    auto yield = front_->Yield(deadline_ns);
    Status yielded = co_await std::move(yield);
    if (!yielded) {
      co_return Error(yielded.error().code,
                      spec_.name + " can't be handed over now: " + yielded.error().message);
    }
    front_->StandBy();
    stands_by_ = true;
    auto release = ReleaseAll();
    co_await std::move(release);
    SetStates(AttachmentState::kActive, AttachmentState::kStandby);
    spdlog::info("{}: yielded, stands by", spec_.name);
  }
  for (const auto& target : targets_) {
    if (target->disk != nullptr)
      hand_over.disks.push_back({target->disk->spec.target, target->disk->SaveUse(), target->disk->Cells()});
  }
  co_return hand_over;
}

Task<Status> Controller::Take(const HandOver& hand_over) {
  std::vector<AsyncMutex::Guard> guards;
  if (auto busy = TryLockAll(guards)) co_return std::move(*busy);
  if (!stands_by_) co_return Ok{};
  auto acquire = AcquireAll();
  Status taken = co_await std::move(acquire);
  if (!taken) co_return Error(taken.error().code, spec_.name + " can't be taken: " + taken.error().message);
  for (const DiskHandOver& used : hand_over.disks) {
    if (used.target < targets_.size() && targets_[used.target]->disk != nullptr)
      targets_[used.target]->disk->RestoreUse(used.use);
  }
  taken = front_->Serve();
  if (!taken) {
    auto release = ReleaseAll();
    co_await std::move(release);
    co_return taken;
  }
  stands_by_ = false;
  SetStates(AttachmentState::kStandby, AttachmentState::kActive);
  spdlog::info("{}: taken, serves", spec_.name);
  co_return Ok{};
}

// Read on a thread of its own: it takes a while where there are thousands of disks and nobody says where to look, and the
// guest, which connects just now, needs this one.
Task<void> Controller::GoOnFrom(UniqueFd counters, const HandOver& hand_over) {
  using Pasts = Result<std::map<uint32_t, observe::Past>>;
  const std::string name = spec_.name;
  std::vector<uint64_t> cells;
  for (const DiskHandOver& disk : hand_over.disks)
    cells.insert(cells.end(), disk.cells.begin(), disk.cells.end());
  const std::function<Pasts()> read = [&counters, &name, &cells] {
    return observe::ReadPast(std::move(counters), name, cells);
  };
  Pasts pasts = Error(ErrorCode::kUnavailable, "they were not read");
  if (context_.reading == nullptr) {
    pasts = read();
  } else {
    auto call = context_.reading->Run(read);
    pasts = co_await call;
  }
  if (!pasts) {
    spdlog::warn("{}: its counters begin anew: {}", spec_.name, pasts.error().message);
    co_return;
  }
  for (const auto& [number, past] : *pasts) {
    if (number >= targets_.size()) continue;
    Target& target = *targets_[number];
    const auto guard = co_await target.operations.Lock();
    if (target.disk == nullptr) continue;
    auto go_on = target.disk->GoOnFrom(past);
    co_await std::move(go_on);
  }
}

}  // namespace cleat::engine
