// SPDX-License-Identifier: Apache-2.0
#include "control/state/publish/watch_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "control/model/reasons.h"

namespace cleat::control {
namespace {

Error StoppedWatching() {
  return Refuse(v1::REASON_STOPPING, "cleatd is stopping: watch again when it is back");
}

}  // namespace

Result<WatchEvent> Watcher::Next(std::chrono::milliseconds wait) {
  const MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + wait;
  while (queue_.empty() && end_.ok() && changed_.WaitUntil(mutex_, until)) {
  }
  CLEAT_TRY(end_);
  if (queue_.empty()) return WatchEvent();
  WatchEvent event = std::move(queue_.front());
  queue_.pop_front();
  changes_ = std::min(changes_, queue_.size());
  return event;
}

void Watcher::Push(const WatchEvent& event, size_t queue_max) {
  const MutexLock lock(mutex_);
  if (!end_.ok()) return;
  queue_.push_back(event);
  if (++changes_ > queue_max) {
    end_ = Refuse(
        v1::REASON_WATCHER_TOO_SLOW,
        fmt::format("this watcher fell {} changes behind and was dropped: read faster, and watch again from "
                    "the last revision that was read",
                    changes_),
        {{"limit", std::to_string(queue_max)}});
    queue_.clear();
  }
  changed_.NotifyOne();
}

void Watcher::End(Error error) {
  const MutexLock lock(mutex_);
  if (end_.ok()) end_ = std::move(error);
  changed_.NotifyOne();
}

Result<std::shared_ptr<Watcher>> WatchHub::Subscribe(std::vector<WatchEvent> snapshot) {
  const MutexLock lock(mutex_);
  if (stopped_) return StoppedWatching();
  watchers_.remove_if([](const std::weak_ptr<Watcher>& watcher) { return watcher.expired(); });
  if (watchers_.size() >= kWatchersMax) {
    return Refuse(v1::REASON_TOO_MANY_WATCHERS,
                  fmt::format("there are {} watchers, which is the most: end one", kWatchersMax),
                  {{"limit", std::to_string(kWatchersMax)}});
  }
  std::shared_ptr<Watcher> watcher(new Watcher(std::move(snapshot)));
  watchers_.push_back(watcher);
  return watcher;
}

void WatchHub::Publish(const WatchEvent& event, History history) {
  const MutexLock lock(mutex_);
  for (const auto& weak : watchers_) {
    if (const auto watcher = weak.lock()) watcher->Push(event, queue_max_);
  }
  if (history == History::kForget) return;
  newest_ = event->revision();
  history_bytes_ += event->ByteSizeLong();
  history_.push_back(event);
  while (history_.size() > kHistoryMax || history_bytes_ > kHistoryBytesMax) {
    history_after_ = history_.front()->revision();
    history_bytes_ -= history_.front()->ByteSizeLong();
    history_.pop_front();
  }
}

void WatchHub::StartHistory(uint64_t revision) {
  const MutexLock lock(mutex_);
  history_.clear();
  history_bytes_ = 0;
  history_after_ = newest_ = revision;
}

Result<std::vector<WatchEvent>> WatchHub::Since(uint64_t revision) {
  const MutexLock lock(mutex_);
  if (revision < history_after_ || revision > newest_) {
    return Refuse(
        v1::REASON_WATCH_REVISION_GONE,
        fmt::format("start_revision is {}: what changed since is not remembered (there are {} to {}): watch "
                    "from 0, for a snapshot",
                    revision, history_after_, newest_),
        {{"oldest", std::to_string(history_after_)}, {"newest", std::to_string(newest_)}});
  }
  const auto first =
      std::upper_bound(history_.begin(), history_.end(), revision,
                       [](uint64_t wanted, const WatchEvent& event) { return wanted < event->revision(); });
  return std::vector<WatchEvent>(first, history_.end());
}

void WatchHub::Stop() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  for (const auto& weak : watchers_) {
    if (const auto watcher = weak.lock()) watcher->End(StoppedWatching());
  }
}

}  // namespace cleat::control
