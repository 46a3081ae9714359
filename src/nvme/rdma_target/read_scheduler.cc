// SPDX-License-Identifier: Apache-2.0
#include "nvme/rdma_target/read_scheduler.h"

namespace cleat::nvme::rdma_target {

void ReadQueue::Add(ReadRequest& request, uint32_t reads) {
  CLEAT_CHECK(!ended_ && request.idle() && reads > 0);
  request.queue_ = this;
  request.next_ = 0;
  request.waiting_ = reads;
  request.failed_ = false;
  waiting_.PushBack(request);
  LineUp();
}

void ReadQueue::End() {
  ended_ = true;
  turn_.Unlink();
  // Only the first one can be posted in part.
  ReadRequest* const first = waiting_.front();
  if (first == nullptr || first->outstanding_ == 0) return;
  first->hook_.Unlink();
  first->waiting_ = 0;
  first->failed_ = true;
}

ReadRequest* ReadQueue::TakeUnposted() {
  CLEAT_CHECK(ended_);
  ReadRequest* const request = waiting_.PopFront();
  if (request != nullptr) request->waiting_ = 0;
  return request;
}

void ReadQueue::LineUp() {
  if (!turn_.linked() && may_post()) scheduler_.turns_.PushBack(*this);
}

bool ReadScheduler::Next(Read& read) {
  if (outstanding_ == outstanding_max_) return false;
  ReadQueue* const queue = turns_.PopFront();
  if (queue == nullptr) return false;
  ReadRequest* const request = queue->waiting_.front();
  CLEAT_CHECK(request != nullptr && request->waiting_ > 0 && queue->outstanding_ < queue->credits_);
  read = {queue, request, request->next_++};
  ++request->outstanding_;
  ++queue->outstanding_;
  ++outstanding_;
  if (--request->waiting_ == 0) request->hook_.Unlink();
  queue->LineUp();
  return true;
}

ReadProgress ReadScheduler::Completed(ReadRequest& request, bool ok) {
  CLEAT_CHECK(request.outstanding_ > 0);
  ReadQueue& queue = *request.queue_;
  CLEAT_CHECK(queue.outstanding_ > 0 && &queue.scheduler_ == this);
  --request.outstanding_;
  --queue.outstanding_;
  --outstanding_;
  if (!ok) request.failed_ = true;
  queue.LineUp();
  if (!request.idle()) return ReadProgress::kMore;
  return request.failed_ ? ReadProgress::kCutShort : ReadProgress::kAllCame;
}

}  // namespace cleat::nvme::rdma_target
