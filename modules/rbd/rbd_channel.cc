// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/rbd_channel.h"

#include <bit>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "modules/rbd/ceph_error.h"

namespace cleat::modules {

using block::IoStatus;
using block::Op;
using block::Request;
using block::Segment;

namespace {

Request* RequestOf(uint64_t scratch) {
  return std::bit_cast<Request*>(static_cast<uintptr_t>(scratch));
}

bool IsTransfer(const Request& request) {
  return request.op == Op::kRead || request.op == Op::kWrite;
}

}  // namespace

RbdChannel::RbdChannel(std::shared_ptr<RbdImage> image, Reactor& reactor, std::function<void()> shut_out)
    : image_(std::move(image)), reactor_(reactor), shut_out_(std::move(shut_out)), arrival_(*this) {}

RbdChannel::~RbdChannel() {
  CLEAT_CHECK(in_flight_ == 0 && waiting_.empty());
}

void RbdChannel::Submit(Request& request) {
  block::Frame& frame =
      request.Push([](Request& done, const block::Frame&) { done.Complete(done.status); }, this);
  frame.scratch = {};
  frame.scratch[kBytes] = IsTransfer(request) ? request.length_bytes : 0;
  if (waiting_.empty() && HasRoom(request)) {
    Start(request);
  } else {
    waiting_.PushBack(request);
  }
}

bool RbdChannel::HasRoom(const Request& request) const {
  if (in_flight_ == 0) return true;
  const uint64_t bytes = IsTransfer(request) ? request.length_bytes : 0;
  return in_flight_ < kInFlightMax && bytes_ + bytes <= kInFlightBytesMax;
}

void RbdChannel::Start(Request& request) {
  ++in_flight_;
  bytes_ += request.top().scratch[kBytes];
  request.stamps.Stamp(RequestStage::kSubmitted, reactor_.now_ns());
  Issue(request);
}

// One operation of librbd's: the request's own, or the flush behind it.
void RbdChannel::Issue(Request& request) {
  rbd_completion_t completion = nullptr;
  int result = rbd_aio_create_completion(&request, &RbdChannel::Completed, &completion);
  if (result >= 0) {
    result = Hand(request, completion);
    if (result < 0) rbd_aio_release(completion);
  }
  if (result < 0) Finished(request, result);  // not taken: nobody will call
}

int RbdChannel::Hand(Request& request, rbd_completion_t completion) {
  if (request.top().scratch[kSync] != 0) return rbd_aio_flush(image_->handle(), completion);
  switch (request.op) {
    case Op::kRead:
    case Op::kWrite:
      return HandVector(request, completion);
    case Op::kFlush:
      return rbd_aio_flush(image_->handle(), completion);
    case Op::kDiscard:
    case Op::kWriteZeroes:
      return HandZeroes(request, completion);
    case Op::kCompareAndWrite:  // the pipeline's entrance does it
      break;
  }
  return -EOPNOTSUPP;
}

int RbdChannel::HandVector(Request& request, rbd_completion_t completion) {
  rbd_image_t image = image_->handle();
  const bool write = request.op == Op::kWrite;
  if (request.segments.size() == 1) {
    auto* data = reinterpret_cast<char*>(request.segments.front().data());
    const size_t length = request.segments.front().length_bytes;
    return write ? rbd_aio_write(image, request.offset_bytes, length, data, completion)
                 : rbd_aio_read(image, request.offset_bytes, length, data, completion);
  }
  Iovecs* iovecs = TakeIovecs();
  request.top().scratch[kIovecs] = std::bit_cast<uintptr_t>(iovecs);
  iovecs->clear();
  for (const Segment& segment : request.segments) iovecs->push_back({segment.data(), segment.length_bytes});
  const int count = static_cast<int>(iovecs->size());
  return write ? rbd_aio_writev(image, iovecs->data(), count, request.offset_bytes, completion)
               : rbd_aio_readv(image, iovecs->data(), count, request.offset_bytes, completion);
}

int RbdChannel::HandZeroes(Request& request, rbd_completion_t completion) const {
  rbd_image_t image = image_->handle();
  if (request.op == Op::kDiscard) {
    return rbd_aio_discard(image, request.offset_bytes, request.length_bytes, completion);
  }
  const int flags = request.may_unmap ? 0 : RBD_WRITE_ZEROES_FLAG_THICK_PROVISION;
  return rbd_aio_write_zeroes(image, request.offset_bytes, request.length_bytes, completion, flags, 0);
}

void RbdChannel::Completed(rbd_completion_t completion, void* arg) {
  auto* request = static_cast<Request*>(arg);
  const int64_t result = rbd_aio_get_return_value(completion);
  rbd_aio_release(completion);
  block::Frame& frame = request->top();
  RbdChannel& channel = *static_cast<RbdChannel*>(frame.layer);
  frame.scratch[kResult] = static_cast<uint64_t>(result);
  Request* before = channel.done_.load(std::memory_order_relaxed);
  do {
    frame.scratch[kNext] = std::bit_cast<uintptr_t>(before);
  } while (!channel.done_.compare_exchange_weak(before, request, std::memory_order_release,
                                                std::memory_order_relaxed));
  // Only the mail makes the reactor take the list, so until it is sent the channel stays; afterwards nothing of it is
  // touched. Those that came second touch nothing any more.
  if (before == nullptr) channel.reactor_.Post(channel.arrival_);
}

void RbdChannel::Collect() {
  Request* latest = done_.exchange(nullptr, std::memory_order_acquire);
  Request* first = nullptr;
  while (latest != nullptr) {  // in the order in which they ended
    Request* next = RequestOf(latest->top().scratch[kNext]);
    latest->top().scratch[kNext] = std::bit_cast<uintptr_t>(first);
    first = std::exchange(latest, next);
  }
  while (first != nullptr) {
    Request& request = *first;
    first = RequestOf(request.top().scratch[kNext]);
    Finished(request,
             static_cast<int64_t>(request.top().scratch[kResult]));  // the last one may end this channel
  }
}

void RbdChannel::Finished(Request& request, int64_t result) {
  auto& scratch = request.top().scratch;
  if (result < 0) {
    if (result == -ESHUTDOWN) shut_out_();
    return End(request, StatusOfCeph(static_cast<int>(result), image_->read_only()));
  }
  // Another client has made the image shorter.
  if (request.op == Op::kRead && static_cast<uint64_t>(result) != request.length_bytes) {
    return End(request, IoStatus::kIoError);
  }
  const bool writes = request.op == Op::kWrite || request.op == Op::kWriteZeroes;
  if (writes && request.fua && scratch[kSync] == 0) {
    scratch[kSync] = 1;
    return Issue(request);
  }
  End(request, IoStatus::kOk);
}

void RbdChannel::End(Request& request, IoStatus status) {
  request.stamps.Stamp(RequestStage::kDone, reactor_.now_ns());
  const auto& scratch = request.top().scratch;
  if (scratch[kIovecs] != 0) {
    iovecs_free_.push_back(std::bit_cast<Iovecs*>(static_cast<uintptr_t>(scratch[kIovecs])));
  }
  --in_flight_;
  bytes_ -= scratch[kBytes];
  while (!waiting_.empty() && HasRoom(*waiting_.front())) Start(*waiting_.PopFront());
  request.Complete(status);  // may end this channel
}

void RbdChannel::AbortQueued(const Request* only) {
  block::RequestList aborted;
  block::RequestList staying;
  while (Request* request = waiting_.PopFront()) {
    (only == nullptr || only == request ? aborted : staying).PushBack(*request);
  }
  waiting_.Splice(staying);
  while (Request* request = aborted.PopFront()) request->Complete(IoStatus::kAborted);
}

RbdChannel::Iovecs* RbdChannel::TakeIovecs() {
  if (iovecs_free_.empty()) {
    iovecs_.push_back(std::make_unique<Iovecs>());
    iovecs_free_.reserve(iovecs_.size());
    return iovecs_.back().get();
  }
  Iovecs* iovecs = iovecs_free_.back();
  iovecs_free_.pop_back();
  return iovecs;
}

}  // namespace cleat::modules
