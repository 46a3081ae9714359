// SPDX-License-Identifier: Apache-2.0
// Every change of a resource gets the next revision and goes to the watchers, in one order; what the reconciler has to look at is marked.
//
// No revision is given twice, so each is reserved in the store first. While none can be reserved - the store can't be written - revisions
// stand still: changes are published with the last one, nobody can watch on from there, and the store refuses rows.
//
// Under the state's mutex.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "control/model/intent.h"
#include "control/state/publish/api_view.h"
#include "control/state/publish/watch_hub.h"
#include "control/state/tables/state_lock.h"
#include "control/state/tables/tables.h"
#include "control/store/store.h"

namespace cleat::control {

class Publisher {
 public:
  // All outlive it.
  Publisher(Store& store, const Tables& tables, const ApiView& view, size_t watch_queue_max)
      : store_(store), tables_(tables), view_(view), hub_(watch_queue_max) {}

  // ---- Revisions
  // Reserves the first ones in the store; they stand still when it can't be written.
  Status Start() CLEAT_REQUIRES(holds_state);
  bool stands_still() const CLEAT_REQUIRES(holds_state) { return stands_still_; }
  // Tries to reserve some again. From then on nothing before is remembered, so what is there should be published anew. No row may be on its
  // way to the store (StoreWrites::AwaitAll): it would have a revision that was given before.
  Status GoOn() CLEAT_REQUIRES(holds_state);
  // The tables were filled as they are at revision newest() + 1: no change before was published.
  void StartHistory() CLEAT_REQUIRES(holds_state);
  uint64_t NextRevision() CLEAT_REQUIRES(holds_state);
  uint64_t newest() const CLEAT_REQUIRES(holds_state) { return revision_; }  // the last one handed out
  // The last one at which something was published: later ones are of changes that are not durable yet, or came to nothing.
  uint64_t newest_published() const CLEAT_REQUIRES(holds_state) { return newest_published_; }

  // ---- Watchers
  // Gives the entry a new revision and tells the watchers.
  template <typename Entry>
  void Publish(Entry& entry) CLEAT_REQUIRES(holds_state) {
    entry.revision = NextRevision();
    Tell(EventOf(entry));
  }
  void PublishGone(const std::string& name) CLEAT_REQUIRES(holds_state);
  // All resources as they are, or (a revision) what was published since; then every change.
  Result<std::shared_ptr<Watcher>> Watch(uint64_t start_revision) CLEAT_REQUIRES(holds_state);
  // Returns when something was published, at that time, or earlier without cause.
  bool AwaitPublished(StateMutex& mutex, std::chrono::steady_clock::time_point until)
      CLEAT_REQUIRES(holds_state) {
    return mutex.WaitUntil(published_, until);
  }
  // Ends every watcher, those to come too, and wakes AwaitPublished.
  void Stop();

  // ---- The reconciler
  // `wake` is called, under the mutex, when there is something in TakeChanged(). Set once, before the first request.
  void SetWake(std::function<void()> wake) CLEAT_REQUIRES(holds_state) { wake_ = std::move(wake); }
  ChangedIntent TakeChanged() CLEAT_REQUIRES(holds_state) { return std::exchange(changed_, {}); }
  void ControllerChanged(const std::string& id) CLEAT_REQUIRES(holds_state) {
    Mark(changed_.controllers, id);
  }
  void DiskChanged(const std::string& id) CLEAT_REQUIRES(holds_state) { Mark(changed_.disks, id); }
  void ClusterChanged(const std::string& id) CLEAT_REQUIRES(holds_state) { Mark(changed_.clusters, id); }
  void GroupChanged(const std::string& id) CLEAT_REQUIRES(holds_state) { Mark(changed_.groups, id); }
  void EngineForgotten(const std::string& id, uint64_t incarnation) CLEAT_REQUIRES(holds_state);
  void UpgradeChanged() CLEAT_REQUIRES(holds_state);
  void PathsChanged() CLEAT_REQUIRES(holds_state);
  void DiscoveryAsked() CLEAT_REQUIRES(holds_state);

 private:
  using Event = v1::WatchResponse;
  Status Reserve() CLEAT_REQUIRES(holds_state);
  static std::shared_ptr<Event> NewEvent(uint64_t revision);
  static void Set(v1::Disk&& shown, Event& event) { *event.mutable_disk() = std::move(shown); }
  static void Set(v1::Cluster&& shown, Event& event) { *event.mutable_cluster() = std::move(shown); }
  static void Set(v1::Subsystem&& shown, Event& event) { *event.mutable_subsystem() = std::move(shown); }
  static void Set(v1::Pool&& shown, Event& event) { *event.mutable_pool() = std::move(shown); }
  static void Set(v1::Group&& shown, Event& event) { *event.mutable_group() = std::move(shown); }
  static void Set(v1::Controller&& shown, Event& event) { *event.mutable_controller() = std::move(shown); }
  static void Set(v1::Attachment&& shown, Event& event) { *event.mutable_attachment() = std::move(shown); }
  static void Set(v1::Engine&& shown, Event& event) { *event.mutable_engine() = std::move(shown); }
  // That the resource is as its entry says, which has its revision.
  template <typename Entry>
  WatchEvent EventOf(const Entry& entry) const CLEAT_REQUIRES(holds_state) {
    auto event = NewEvent(entry.revision);
    Set(view_.Show(entry), *event);
    return event;
  }
  void Tell(const WatchEvent& event) CLEAT_REQUIRES(holds_state);
  std::vector<WatchEvent> Snapshot() const CLEAT_REQUIRES(holds_state);
  void Mark(std::set<std::string>& ids, const std::string& id) CLEAT_REQUIRES(holds_state);

  Store& store_;
  const Tables& tables_;
  const ApiView& view_;
  WatchHub hub_;
  CondVar published_;
  uint64_t revision_ CLEAT_GUARDED_BY(holds_state) = 0;
  uint64_t newest_published_ CLEAT_GUARDED_BY(holds_state) = 0;
  uint64_t revisions_until_ CLEAT_GUARDED_BY(holds_state) = 0;  // reserved in the store up to here, exclusive
  bool stands_still_ CLEAT_GUARDED_BY(holds_state) = false;
  std::function<void()> wake_ CLEAT_GUARDED_BY(holds_state) = [] {};
  ChangedIntent changed_ CLEAT_GUARDED_BY(holds_state);
};

}  // namespace cleat::control
