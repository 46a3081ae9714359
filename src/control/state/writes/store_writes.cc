// SPDX-License-Identifier: Apache-2.0
#include "control/state/writes/store_writes.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "control/model/change_recorder.h"
#include "control/state/writes/object_changes.h"

namespace cleat::control {
namespace {

bool Meet(const std::set<std::string>& a, const std::set<std::string>& b) {
  return std::any_of(a.begin(), a.end(), [&](const std::string& name) { return b.contains(name); });
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
      commits_([this](std::span<const StoreChange* const> changes) { return store_.Apply(changes); }) {}

bool StoreWrites::IsFree(const WriteNames& names) const {
  return std::none_of(under_way_.begin(), under_way_.end(),
                      [&](const WriteNames* other) { return names.ConflictsWith(*other); });
}

void StoreWrites::Await(const WriteNames& names) {
  const auto place = waiting_.insert(waiting_.end(), &names);
  const auto is_turn = [&]() CLEAT_REQUIRES(holds_state) {
    return IsFree(names) && std::none_of(waiting_.begin(), place, [&](const WriteNames* other) {
             return names.ConflictsWith(*other);
           });
  };
  threads_.insert(std::this_thread::get_id());
  while (!is_turn()) mutex_.Wait(changed_);
  threads_.erase(std::this_thread::get_id());
  waiting_.erase(place);
  // Waiters behind this one may go on if nothing is written after all.
  if (!waiting_.empty()) changed_.NotifyAll();
}

template <typename Work>
Status StoreWrites::RunUnlocked(const WriteNames& names, Work work) {
  CLEAT_CHECK(IsFree(names));
  const auto place = under_way_.insert(under_way_.end(), &names);
  threads_.insert(std::this_thread::get_id());
  Status status;
  {
    const StateUnlock unlocked(mutex_);
    status = work();
  }
  threads_.erase(std::this_thread::get_id());
  under_way_.erase(place);
  changed_.NotifyAll();
  return status;
}

template <typename Work>
Status StoreWrites::RunRecorded(const WriteNames& names, const StoreChange& change, Work work) {
  const std::shared_ptr<ChangeRecorder> recorder = ChangeRecorder::Current();
  ObjectChanges changes;
  if (recorder != nullptr) changes = ChangesOf(tables_, store_.number(), change);
  return RunUnlocked(names, [&]() -> Status {
    if (!changes.empty()) CLEAT_TRY(recorder->Announce(changes));
    CLEAT_TRY(work());
    if (!changes.empty()) recorder->Made(std::move(changes));
    last_requests_.Note(ObjectsOf(change));
    return Ok{};
  });
}

Status StoreWrites::Write(const WriteNames& names, const StoreChange& change) {
  return RunRecorded(names, change, [&] { return commits_.Write(change); });
}

Status StoreWrites::WriteAndCutLog(const WriteNames& names, const StoreChange& change) {
  return RunRecorded(names, change, [&] {
    Status status = commits_.Write(change);
    if (status.ok()) store_.CutLog();
    return status;
  });
}

}  // namespace cleat::control
