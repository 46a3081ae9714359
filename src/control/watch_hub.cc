// SPDX-License-Identifier: Apache-2.0
#include "control/watch_hub.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace cleat::control {
namespace {

Error Stopping() {
  return {ErrorCode::kUnavailable, "cleatd is stopping: watch again when it is back"};
}

}  // namespace

Result<WatchEvent> Watcher::Next(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return !queue_.empty() || !end_.ok(); });
  if (!end_.ok()) return end_.error();
  if (queue_.empty()) return WatchEvent();
  WatchEvent event = std::move(queue_.front());
  queue_.pop_front();
  changes_ = std::min(changes_, queue_.size());
  return event;
}

void Watcher::Push(const WatchEvent& event, size_t queue_max) {
  const std::lock_guard lock(mutex_);
  if (!end_.ok()) return;
  queue_.push_back(event);
  if (++changes_ > queue_max) {
    end_ = Error(
        ErrorCode::kResourceExhausted,
        fmt::format("this watcher fell {} changes behind and was dropped: read faster, and watch again for a "
                    "new snapshot",
                    changes_));
    queue_.clear();
  }
  changed_.notify_one();
}

void Watcher::End(Error error) {
  const std::lock_guard lock(mutex_);
  if (end_.ok()) end_ = std::move(error);
  changed_.notify_one();
}

Result<std::shared_ptr<Watcher>> WatchHub::Subscribe(std::vector<WatchEvent> snapshot) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return Stopping();
  watchers_.remove_if([](const std::weak_ptr<Watcher>& watcher) { return watcher.expired(); });
  if (watchers_.size() >= kWatchersMax) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("there are {} watchers, which is the most: end one", kWatchersMax));
  }
  std::shared_ptr<Watcher> watcher(new Watcher(std::move(snapshot)));
  watchers_.push_back(watcher);
  return watcher;
}

void WatchHub::Publish(const WatchEvent& event) {
  const std::lock_guard lock(mutex_);
  for (const auto& weak : watchers_) {
    if (const auto watcher = weak.lock()) watcher->Push(event, queue_max_);
  }
}

void WatchHub::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  for (const auto& weak : watchers_) {
    if (const auto watcher = weak.lock()) watcher->End(Stopping());
  }
}

}  // namespace cleat::control
