// SPDX-License-Identifier: Apache-2.0
// How a change becomes durable. It is checked under the state's mutex, written without it, and then shown: the tables have what is durable
// and nothing else, while a slow disk under the store holds up nobody who only reads. Writes of several threads share a commit.
//
// Meanwhile nobody may change what the change was checked against. A write names what it changes and what it needs. Await returns when
// nothing under way is in the way of those names. Whoever comes first is served first, so that one who names much does not starve, and
// changes of one object keep the order in which they came:
//
//   const StateLock lock(core_.mutex);
//   const WriteNames names{.changes = {DiskName(id)}, .needs = {cluster}};
//   core_.writes.Await(names);
//   ... look at the tables, decide ...
//   CLEAT_TRY(core_.writes.Write(names, {row}));  // others run; the disk and its cluster stay as they are
//   ... change the tables, publish ...
//
// Where a call asked for the change, its recorder is told what becomes of which object, before and after the commit (object_changes.h); and the
// objects' last requests are remembered, for what is done about them later.
//
// Under the state's mutex.
#pragma once

#include <list>
#include <set>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "base/result.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"
#include "control/state/writes/group_commit.h"
#include "control/state/writes/last_requests.h"
#include "control/store/store.h"
#include "control/store/store_change.h"

namespace cleat::control {

// Names of resources, and of what else two changes may contend for ("socket '/run/a'").
struct WriteNames {
  std::set<std::string> changes;     // nobody else changes them or needs them meanwhile
  std::set<std::string> needs = {};  // nobody changes them meanwhile
  bool everything = false;           // conflicts with all others

  bool ConflictsWith(const WriteNames& other) const;
  bool operator==(const WriteNames&) const = default;
};

class StoreWrites {
 public:
  // All outlive it.
  StoreWrites(Store& store, StateMutex& mutex, const Tables& tables);

  // Until no write under way conflicts with these names, and nobody who came before waits for such names, so that a Write of them may
  // begin. Lets go of the mutex meanwhile.
  void Await(const WriteNames& names) CLEAT_REQUIRES(holds_state);
  // Until none is under way at all.
  void AwaitAll() CLEAT_REQUIRES(holds_state) { Await({.changes = {}, .needs = {}, .everything = true}); }

  // OK: `change` is durable. An error: nothing of it is there. Lets go of the mutex meanwhile; nothing under way may conflict with `names`
  // when it is called: the mutex was held since Await.
  Status Write(const WriteNames& names, const StoreChange& change) CLEAT_REQUIRES(holds_state);
  // The same, and what `change` erases leaves the store's log as well, which costs several syncs.
  Status WriteAndCutLog(const WriteNames& names, const StoreChange& change) CLEAT_REQUIRES(holds_state);

  // How many calls of Await have not returned; how many writes wait for the next commit.
  size_t waiting_for_names() const CLEAT_REQUIRES(holds_state) { return waiting_.size(); }
  size_t waiting_for_commit() const { return commits_.waiting(); }

  // Whether that thread is in one of these calls and waits: for the store's disk, or for others who do.
  bool IsAwaitedBy(std::thread::id thread) const CLEAT_REQUIRES(holds_state) {
    return threads_.contains(thread);
  }

  const LastRequests& last_requests() const { return last_requests_; }

 private:
  bool IsFree(const WriteNames& names) const CLEAT_REQUIRES(holds_state);
  // Runs `work` without the mutex, as a write of those names.
  template <typename Work>
  Status RunUnlocked(const WriteNames& names, Work work) CLEAT_REQUIRES(holds_state);
  // The same with a work that makes `change` durable, on record.
  template <typename Work>
  Status RunRecorded(const WriteNames& names, const StoreChange& change, Work work)
      CLEAT_REQUIRES(holds_state);

  Store& store_;
  StateMutex& mutex_;
  const Tables& tables_ CLEAT_GUARDED_BY(holds_state);
  LastRequests last_requests_;
  GroupCommit<StoreChange> commits_;
  std::list<const WriteNames*> under_way_ CLEAT_GUARDED_BY(holds_state);
  std::list<const WriteNames*> waiting_
      CLEAT_GUARDED_BY(holds_state);  // in Await, in the order in which they came
  CondVar changed_;                   // one of the lists
  std::set<std::thread::id> threads_ CLEAT_GUARDED_BY(holds_state);  // that wait here
};

}  // namespace cleat::control
