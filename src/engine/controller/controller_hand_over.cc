// SPDX-License-Identifier: Apache-2.0
// How a controller goes to another engine, or comes from one: docs/upgrade.md has the state machine.
#include <spdlog/spdlog.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "engine/controller/controller.h"
#include "observe/carried_counters.h"
#include "reactor/for_each_concurrently.h"

namespace cleat::engine {

// With a cluster each takes milliseconds, and a guest waits.
Task<Status> Controller::AcquireAll() {
  const auto acquire = [](const std::unique_ptr<Target>& target) -> Task<Status> {
    if (target->disk == nullptr) co_return Ok{};
    Status acquired = co_await target->disk->Acquire();
    if (acquired && !target->disk->fenced().empty()) {
      co_return Error(ErrorCode::kUnavailable, target->disk->fenced());
    }
    co_return acquired;
  };
  Status acquired = co_await ForEachConcurrently(context_.control, targets_, acquire);
  if (!acquired) {
    co_await ReleaseAll();
  }
  co_return acquired;
}

Task<void> Controller::ReleaseAll() {
  const auto release = [](const std::unique_ptr<Target>& target) -> Task<void> {
    if (target->disk == nullptr) co_return;
    target->disk->acquire_pending = false;   // who acquires it next learns anew whether it is leaving
    (void)co_await target->disk->Release();  // whoever acquires it finds out, and the log has it
  };
  co_await ForEachConcurrently(context_.control, targets_, release);
}

// Attachments in another state than `from` - not open yet, or not any more - stay as they are. A disk may have been fenced
// since it was acquired.
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
    if (target->disk == nullptr || !target->disk->acquire_pending) continue;
    return Error(ErrorCode::kFailedPrecondition,
                 spec_.name + ": " + target->disk->spec.disk.name +
                     " is being migrated: try again when its VM runs here, or the disk was detached");
  }
  return std::nullopt;
}

Task<Result<Yielded>> Controller::Yield(uint64_t deadline_ns) {
  std::vector<AsyncMutex::Guard> guards;
  if (auto busy = TryLockAll(guards)) co_return std::move(*busy);
  Yielded yielded;
  if (!stands_by_) {
    auto connections = co_await guest_device_->Yield(deadline_ns);
    if (!connections) {
      co_return Error(connections.error().code,
                      spec_.name + " can't be handed over now: " + connections.error().message);
    }
    yielded.connections = std::move(connections).value();
    guest_device_->StandBy();
    stands_by_ = true;
    co_await ReleaseAll();
    SetStates(AttachmentState::kActive, AttachmentState::kStandby);
    spdlog::info("{}: yielded; it stands by", spec_.name);
  }
  for (const auto& target : targets_) {
    if (target->disk != nullptr)
      yielded.hand_over.disks.push_back(
          {target->disk->spec.target, target->disk->SaveUse(), target->disk->Cells()});
  }
  co_return yielded;
}

Task<Status> Controller::Take(const HandOver& hand_over, UniqueFd connections) {
  std::vector<AsyncMutex::Guard> guards;
  if (auto busy = TryLockAll(guards)) co_return std::move(*busy);
  if (!stands_by_) co_return Ok{};
  Status taken = co_await AcquireAll();
  if (!taken) co_return Error(taken.error().code, spec_.name + " can't be taken: " + taken.error().message);
  for (const DiskHandOver& used : hand_over.disks) {
    if (used.target >= targets_.size() || targets_[used.target]->disk == nullptr) continue;
    targets_[used.target]->disk->RestoreUse(used.use);
    // No engine yields what another host is to have; an older one may have left the mark of a migration that is over.
    targets_[used.target]->disk->StayHere();
  }
  co_await guest_device_->Acquired();
  taken = guest_device_->Serve(std::move(connections));
  if (!taken) {
    co_await ReleaseAll();
    co_return taken;
  }
  stands_by_ = false;
  SetStates(AttachmentState::kStandby, AttachmentState::kActive);
  if (!ownership_.owned()) ownership_.GoOnReleasing();
  spdlog::info("{}: taken; it is served here", spec_.name);
  co_return Ok{};
}

// Read on a thread of its own: it takes a while where there are thousands of disks and nobody says where to look, and the
// guest, which connects just now, needs this one.
Task<void> Controller::ImportCounters(UniqueFd counters, const HandOver& hand_over) {
  using Carried = Result<std::map<uint32_t, observe::CarriedCounters>>;
  const std::string name = spec_.name;
  std::vector<uint64_t> cells;
  for (const DiskHandOver& disk : hand_over.disks)
    cells.insert(cells.end(), disk.cells.begin(), disk.cells.end());
  const std::function<Carried()> read = [&counters, &name, &cells] {
    return observe::ReadCarriedCounters(std::move(counters), name, cells);
  };
  Carried carried = Error(ErrorCode::kUnavailable, "they were not read");
  if (context_.reading == nullptr) {
    carried = read();
  } else {
    auto call = context_.reading->Run(read);
    carried = co_await call;
  }
  if (!carried) {
    spdlog::warn("{}: counters begin anew: {}", spec_.name, carried.error().message);
    co_return;
  }
  for (const auto& [number, counted] : *carried) {
    if (number >= targets_.size()) continue;
    Target& target = *targets_[number];
    const auto guard = co_await target.operations.Lock();
    if (target.disk == nullptr) continue;
    co_await target.disk->ImportCounters(counted);
  }
}

}  // namespace cleat::engine
