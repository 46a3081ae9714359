// SPDX-License-Identifier: Apache-2.0
// Hands every change to every watcher. Publishing never waits: a watcher has a bounded queue, and one that
// falls that far behind is dropped and told so. Any thread; the publisher (Publisher) holds its own lock, so
// that all watchers see one order.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "cleat/v1/cleat.pb.h"

namespace cleat::control {

using WatchEvent = std::shared_ptr<const v1::WatchResponse>;

class Watcher {
 public:
  // The next event; nullptr when there was none in this time. kResourceExhausted once it was too slow,
  // kUnavailable once cleatd stops: no event follows either.
  Result<WatchEvent> Next(std::chrono::milliseconds wait);

 private:
  friend class WatchHub;
  explicit Watcher(std::vector<WatchEvent> snapshot) : queue_(snapshot.begin(), snapshot.end()) {}
  void Push(const WatchEvent& event, size_t queue_max);
  void End(Error error);

  Mutex mutex_;
  CondVar changed_;
  std::deque<WatchEvent> queue_ CLEAT_GUARDED_BY(mutex_);
  size_t changes_ CLEAT_GUARDED_BY(mutex_) = 0;  // queued behind the snapshot
  Status end_ CLEAT_GUARDED_BY(mutex_);
};

class WatchHub {
 public:
  static constexpr size_t kWatchersMax = 64;
  static constexpr size_t kQueueMax = 4096;
  // How many changes are remembered, and how much of them.
  static constexpr size_t kHistoryMax = 8192;
  static constexpr size_t kHistoryBytesMax = size_t{32} * 1024 * 1024;

  explicit WatchHub(size_t queue_max = kQueueMax) : queue_max_(queue_max) {}

  // A watcher that first sees `snapshot`. It unsubscribes when the last reference to it goes.
  // kResourceExhausted when there are kWatchersMax.
  Result<std::shared_ptr<Watcher>> Subscribe(std::vector<WatchEvent> snapshot);
  // Events are shared, never copied, between watchers and the history. kForget: nobody can watch on from before it.
  enum class History : uint8_t { kRemember, kForget };
  void Publish(const WatchEvent& event, History history = History::kRemember);

  // What was published after `revision`. kFailedPrecondition (WATCH_REVISION_GONE) when that is not remembered, or
  // was never given out.
  Result<std::vector<WatchEvent>> Since(uint64_t revision);
  // No change up to here is remembered.
  void StartHistory(uint64_t revision);
  // Ends every watcher, those to come too.
  void Stop();

 private:
  const size_t queue_max_;
  Mutex mutex_;
  std::list<std::weak_ptr<Watcher>> watchers_ CLEAT_GUARDED_BY(mutex_);
  bool stopped_ CLEAT_GUARDED_BY(mutex_) = false;
  std::deque<WatchEvent> history_ CLEAT_GUARDED_BY(mutex_);
  size_t history_bytes_ CLEAT_GUARDED_BY(mutex_) = 0;
  uint64_t history_after_ CLEAT_GUARDED_BY(mutex_) = 0;  // changes after this revision are in the history
  uint64_t newest_ CLEAT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cleat::control
