// SPDX-License-Identifier: Apache-2.0
// In place of src/control/state/writes/store_writes.cc: stores changes too late, or in the wrong order.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "control/state/writes/store_writes.h"
#include "host_defect.h"

namespace cleat::sim {

HostDefect planted = HostDefect::kNone;

}  // namespace cleat::sim

namespace cleat::control {
namespace {

using sim::HostDefect;
using sim::planted;

bool Meet(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& name) { return b.contains(name); });
}

bool IsHeldBack() {
  return planted == HostDefect::kShownBeforeStored || planted == HostDefect::kToldBeforeStored;
}

// The change that was shown and not stored yet.
struct HeldBack {
  Store* store = nullptr;
  StoreChange change;
};
HeldBack held_back;
bool lost = false;  // one that was shown could not be stored

Status StoreHeldBack() {
  if (held_back.store == nullptr) return Ok{};
  const HeldBack late = std::exchange(held_back, {});
  Status status = late.store->Apply(late.change);
  lost |= !status.ok();
  return status;
}

// Names of one disk alone: of its update, or of a creation that finds it there.
bool IsOfOneDisk(const WriteNames& names) {
  return !names.everything && names.needs.empty() && names.changes.size() == 1 &&
         names.changes.begin()->starts_with("disks/");
}

bool IsUpdateOfDisk(const WriteNames& names, const StoreChange& change) {
  if (!IsOfOneDisk(names) || change.size() != 1) return false;
  const auto* const row = std::get_if<DiskRow>(&change.front());
  return row != nullptr && row->revision != row->intent_revision && !row->deleting;
}

// The first of two changes of one disk waits a moment for the second, which is stored before it.
struct First {
  std::string disk;
  bool overtaken = false;
  bool stored = false;
};
Mutex swap_mutex;
CondVar swapped;
First* first = nullptr;

template <typename StoreIt>
Status StoreSwapped(const std::string& disk, StoreIt store_it) {
  const MutexLock lock(swap_mutex);
  if (first != nullptr && first->disk == disk && !first->overtaken) {
    First& before = *first;
    before.overtaken = true;
    Status status = store_it();
    before.stored = true;
    swapped.NotifyAll();
    swapped.WaitUntil(swap_mutex, std::chrono::steady_clock::now());  // the first is shown first
    return status;
  }
  if (first != nullptr) return store_it();
  First mine{.disk = disk};
  first = &mine;
  swapped.WaitUntil(swap_mutex, std::chrono::steady_clock::now());
  while (mine.overtaken && !mine.stored) swapped.Wait(swap_mutex);
  first = nullptr;
  return store_it();
}

}  // namespace

bool WriteNames::ConflictsWith(const WriteNames& other) const {
  if (everything || other.everything) return true;
  return Meet(changes, other.changes) || Meet(changes, other.needs) || Meet(needs, other.changes);
}

StoreWrites::StoreWrites(Store& store, StateMutex& mutex, const Tables& tables)
    : store_(store),
      mutex_(mutex),
      tables_(tables),
      commits_([this](std::span<const StoreChange* const> changes) { return store_.Apply(changes); }) {
  held_back = {};  // of a life before
  lost = false;
}

bool StoreWrites::IsFree(const WriteNames& names) const {
  return std::none_of(under_way_.begin(), under_way_.end(), [&](const WriteNames* other) {
    if (planted == HostDefect::kTwoChangesSwapped && IsOfOneDisk(names) && IsOfOneDisk(*other)) return false;
    return names.ConflictsWith(*other);
  });
}

void StoreWrites::Await(const WriteNames& names) {
  const auto place = waiting_.insert(waiting_.end(), &names);
  const auto is_turn = [&]() CLEAT_REQUIRES(holds_state) {
    return IsFree(names) && std::none_of(waiting_.begin(), place, [&](const WriteNames* other) {
             return names.ConflictsWith(*other);
           });
  };
  while (!is_turn()) mutex_.Wait(changed_);
  waiting_.erase(place);
  if (!waiting_.empty()) changed_.NotifyAll();
}

template <typename Work>
Status StoreWrites::RunUnlocked(const WriteNames& names, Work work) {
  const auto place = under_way_.insert(under_way_.end(), &names);
  Status status;
  {
    const StateUnlock unlocked(mutex_);
    status = work();
  }
  under_way_.erase(place);
  changed_.NotifyAll();
  return status;
}

Status StoreWrites::Write(const WriteNames& names, const StoreChange& change) {
  if (IsHeldBack()) {
    CLEAT_TRY(StoreHeldBack());
    held_back = {.store = &store_, .change = change};
    return Ok{};
  }
  return RunUnlocked(names, [&] {
    const bool swappable = planted == HostDefect::kTwoChangesSwapped && IsUpdateOfDisk(names, change);
    const auto store_it = [&] { return commits_.Write(change); };
    return swappable ? StoreSwapped(*names.changes.begin(), store_it) : store_it();
  });
}

Status StoreWrites::WriteAndCutLog(const WriteNames& names, const StoreChange& change) {
  return Write(names, change);
}

}  // namespace cleat::control

bool cleat::sim::StoreWhatIsHeldBack() {
  return control::StoreHeldBack().ok() && !control::lost;
}
