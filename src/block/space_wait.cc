// SPDX-License-Identifier: Apache-2.0
#include "block/space_wait.h"

#include <cerrno>

#include "block/pipeline.h"
#include "reactor/reactor.h"

namespace cleat::block {
namespace {

// A flush is not tried again: storage tells of what it has lost only once. And what does not fit into any file (EFBIG) will
// not fit when there is space.
bool CanWait(const Request& request) {
  const bool writes = request.op != Op::kRead && request.op != Op::kFlush;
  const int32_t why = request.error_number;
  return writes && (why == 0 || why == ENOSPC || why == EDQUOT);
}

}  // namespace

bool SpaceWait::MayWait(const Request& request) const {
  return allowed_ != nullptr && allowed_->load(std::memory_order_relaxed) && CanWait(request) &&
         channel_.MayWait(request);
}

bool SpaceWait::Hold(Request& request) {
  const bool again = &request == retried_;
  if (!MayWait(request)) {
    if (again) GoOn();
    return false;
  }
  if (again) {
    retried_ = nullptr;
    waiting_.PushFront(request);
  } else {
    ++count_;
    waiting_.PushBack(request);
  }
  channel_.WaitingChanged(count_);
  if (retried_ == nullptr && !timer_.pending()) SetTimer(kRetryNs);
  return true;
}

void SpaceWait::Retry() {
  Request* first = waiting_.front();
  if (first == nullptr) return;
  if (!allowed_->load(std::memory_order_relaxed)) return channel_.FailWaiting(/*all=*/true);
  if (channel_.HeldBack(*first)) return SetTimer(kHeldBackNs);
  first->link.Unlink();
  retried_ = first;
  channel_.Retry(*first);
}

// The one that was tried again waits no longer: the storage may have space for the next one.
void SpaceWait::GoOn() {
  retried_ = nullptr;
  --count_;
  channel_.WaitingChanged(count_);
  if (!waiting_.empty()) SetTimer(0);
}

void SpaceWait::SetTimer(uint64_t after_ns) {
  Reactor& reactor = *Reactor::Current();
  timer_.Cancel();
  reactor.AddTimer(timer_, reactor.now_ns() + after_ns);
}

void SpaceWait::Withdraw(const Request* only, RequestList& withdrawn) {
  TakeOut([only](const Request& request) { return only == nullptr || &request == only; }, withdrawn);
}

void SpaceWait::WithdrawUnwanted(RequestList& withdrawn) {
  TakeOut([this](const Request& request) { return !channel_.MayWait(request); }, withdrawn);
}

template <typename Which>
void SpaceWait::TakeOut(Which which, RequestList& withdrawn) {
  Request* next = nullptr;
  for (Request* request = waiting_.front(); request != nullptr; request = next) {
    next = waiting_.Next(*request);
    if (!which(*request)) continue;
    request->link.Unlink();
    withdrawn.PushBack(*request);
    --count_;
  }
  channel_.WaitingChanged(count_);
  if (waiting_.empty()) timer_.Cancel();
}

}  // namespace cleat::block
