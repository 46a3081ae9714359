// SPDX-License-Identifier: Apache-2.0
#include "ready_watch.h"

#include <fmt/format.h>

#include <chrono>

#include "base/clock.h"

namespace cleat::bench {
namespace {

constexpr uint64_t kPatienceNs = 120 * kNsPerSecond;
constexpr std::chrono::milliseconds kStopLook{100};

}  // namespace

ReadyWatch::ReadyWatch(v1::Cleat::Stub& stub)
    : stream_(stub.Watch(&context_, v1::WatchRequest())), thread_([this] { Read(); }) {}

ReadyWatch::~ReadyWatch() {
  context_.TryCancel();
  thread_.join();
  stream_->Finish();
}

void ReadyWatch::Read() {
  const MonotonicClock clock;
  v1::WatchResponse event;
  while (stream_->Read(&event)) {
    const v1::AttachmentStatus& status = event.attachment().status();
    const bool is_ready = event.has_attachment() && status.state() == v1::ATTACHMENT_STATE_READY;
    const bool is_failed = event.has_attachment() && status.state() == v1::ATTACHMENT_STATE_FAILED;
    if (!is_ready && !is_failed && !event.has_synced()) continue;
    const std::lock_guard lock(mutex_);
    if (event.has_synced()) synced_ = true;
    if (is_failed) failed_ = fmt::format("{}: {}", event.attachment().name(), status.message());
    if (is_ready && ready_.insert(event.attachment().name()).second) last_ready_ns_ = clock.NowNs();
    changed_.notify_one();
  }
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_one();
}

template <typename Done>
Status ReadyWatch::WaitFor(const std::atomic<bool>& stop, const std::string& what, Done done) {
  const MonotonicClock clock;
  const uint64_t end_ns = clock.NowNs() + kPatienceNs;
  std::unique_lock lock(mutex_);
  while (!done()) {
    if (stop.load()) return Error(ErrorCode::kCancelled, "interrupted");
    if (!failed_.empty()) return Error(ErrorCode::kInternal, failed_);
    if (ended_) return Error(ErrorCode::kUnavailable, "Watch ended: cleatd is gone, or we read too slowly");
    if (clock.NowNs() > end_ns) {
      return Error(ErrorCode::kDeadlineExceeded, fmt::format("{}: {} attachments are READY after {} s", what,
                                                             ready_.size(), kPatienceNs / kNsPerSecond));
    }
    changed_.wait_for(lock, kStopLook);
  }
  return Ok{};
}

Status ReadyWatch::WaitSynced(const std::atomic<bool>& stop) {
  return WaitFor(stop, "a snapshot", [&] { return synced_; });
}

Result<uint64_t> ReadyWatch::WaitReady(size_t count, const std::atomic<bool>& stop) {
  Status status = WaitFor(stop, fmt::format("{} disks", count), [&] { return ready_.size() >= count; });
  if (!status) return std::move(status).error();
  const std::lock_guard lock(mutex_);
  return last_ready_ns_;
}

}  // namespace cleat::bench
