// SPDX-License-Identifier: Apache-2.0
#include "rdma/rdmacm/deadlines.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/clock.h"

namespace cleat::rdma {
namespace {

// The real clock is the timer's.
uint64_t NowNs() {
  return MonotonicClock().NowNs();
}

}  // namespace

Result<std::unique_ptr<Deadlines>> Deadlines::Make() {
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!timer) return ErrnoError(errno, "RDMA: a timer for connections");
  return std::unique_ptr<Deadlines>(new Deadlines(std::move(timer)));
}

void Deadlines::Add(Deadline& deadline, uint32_t timeout_ms) {
  deadline.at_ns_ = NowNs() + std::max(timeout_ms, 1U) * kNsPerMs;
  waiting_.PushBack(deadline);
  SetTimer();
}

void Deadlines::Remove(Deadline& deadline) {
  if (!deadline.hook_.linked()) return;
  deadline.hook_.Unlink();
  SetTimer();
}

void Deadlines::Expire() {
  uint64_t times = 0;
  if (read(timer_.get(), &times, sizeof(times)) < 0) return;
  const uint64_t now_ns = NowNs();
  IntrusiveList<Deadline, &Deadline::hook_> due;
  for (Deadline* next = waiting_.front(); next != nullptr;) {
    Deadline& deadline = *next;
    next = waiting_.Next(deadline);
    if (deadline.at_ns_ > now_ns) continue;
    deadline.hook_.Unlink();
    due.PushBack(deadline);
  }
  // Each may destroy others, which are in none of the lists then.
  while (Deadline* deadline = due.PopFront()) deadline->Expired();
  SetTimer();
}

void Deadlines::SetTimer() {
  uint64_t first_ns = UINT64_MAX;
  for (Deadline* deadline = waiting_.front(); deadline != nullptr; deadline = waiting_.Next(*deadline))
    first_ns = std::min(first_ns, deadline->at_ns_);
  itimerspec when{};  // all zero: never
  if (first_ns != UINT64_MAX) {
    when.it_value.tv_sec = static_cast<time_t>(first_ns / kNsPerSecond);
    when.it_value.tv_nsec =
        static_cast<long>(first_ns % kNsPerSecond);  // NOLINT(google-runtime-int): timespec's
  }
  timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
}

}  // namespace cleat::rdma
