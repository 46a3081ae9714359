// SPDX-License-Identifier: Apache-2.0
#include "modules/rbd/rbd_channel.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "block/segments.h"
#include "modules/rbd/ceph_error.h"

namespace cleat::modules {

using block::IoStatus;
using block::Op;
using block::Request;
using block::Segment;

namespace {

bool IsTransfer(const Request& request) {
  return request.op == Op::kRead || request.op == Op::kWrite;
}

}  // namespace

RbdChannel::RbdChannel(RbdHandle image, Reactor& reactor, std::function<void()> shut_out)
    : image_(std::move(image)), reactor_(reactor), shut_out_(std::move(shut_out)), arrival_(*this) {}

RbdChannel::~RbdChannel() {
  CLEAT_CHECK(in_flight_ == 0 && waiting_.empty() && cutting_.empty());
  if (cutter_.added()) reactor_.RemovePoller(cutter_);
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
  const bool large = request.op == Op::kWrite && request.length_bytes > kPieceBytes;
  if (!large) return Issue(request, request.length_bytes);
  cutting_.PushBack(request);
  if (!cutter_.added()) reactor_.AddPoller(cutter_);
}

// A turn's piece of the first large write. The channel may be gone afterwards.
bool RbdChannel::CutNext() {
  Request* request = cutting_.front();
  if (request == nullptr) {
    reactor_.RemovePoller(cutter_);
    return false;
  }
  const uint64_t left = request->length_bytes - request->top().scratch[kHanded];
  const uint64_t bytes = std::min(left, kPieceBytes);
  if (bytes == left) cutting_.PopFront();
  Issue(*request, bytes);
  return true;
}

// One operation of librbd's: the request's own, a piece of it, or the flush behind it.
void RbdChannel::Issue(Request& request, uint64_t bytes) {
  Piece& piece = TakePiece();
  piece.request = &request;
  ++request.top().scratch[kPieces];
  rbd_completion_t completion = nullptr;
  int result = rbd_aio_create_completion(&piece, &RbdChannel::Completed, &completion);
  if (result >= 0) {
    result = Hand(piece, bytes, completion);
    if (result < 0) rbd_aio_release(completion);
  }
  if (result >= 0) return;
  piece.result = result;  // not taken: nobody will call
  PieceDone(piece);
}

int RbdChannel::Hand(Piece& piece, uint64_t bytes, rbd_completion_t completion) {
  Request& request = *piece.request;
  if (request.top().scratch[kSync] != 0) return rbd_aio_flush(image_.image, completion);
  switch (request.op) {
    case Op::kRead:
    case Op::kWrite:
      return HandVector(piece, bytes, completion);
    case Op::kFlush:
      return rbd_aio_flush(image_.image, completion);
    case Op::kDiscard:
    case Op::kWriteZeroes:
      return HandZeroes(request, completion);
    case Op::kCompareAndWrite:  // the pipeline's entrance does it
      break;
  }
  return -EOPNOTSUPP;
}

// The next `bytes` of a transfer.
int RbdChannel::HandVector(Piece& piece, uint64_t bytes, rbd_completion_t completion) {
  Request& request = *piece.request;
  const uint64_t at = std::exchange(request.top().scratch[kHanded], request.top().scratch[kHanded] + bytes);
  const uint64_t offset_bytes = request.offset_bytes + at;
  const bool write = request.op == Op::kWrite;
  piece.iovecs.clear();
  block::ForEachPiece(request.segments, at, bytes, [&piece](uint8_t* data, size_t length) {
    piece.iovecs.push_back({data, length});
  });
  if (piece.iovecs.size() == 1) {
    auto* data = static_cast<char*>(piece.iovecs.front().iov_base);
    return write ? rbd_aio_write(image_.image, offset_bytes, bytes, data, completion)
                 : rbd_aio_read(image_.image, offset_bytes, bytes, data, completion);
  }
  const int count = static_cast<int>(piece.iovecs.size());
  return write ? rbd_aio_writev(image_.image, piece.iovecs.data(), count, offset_bytes, completion)
               : rbd_aio_readv(image_.image, piece.iovecs.data(), count, offset_bytes, completion);
}

int RbdChannel::HandZeroes(const Request& request, rbd_completion_t completion) const {
  rbd_image_t image = image_.image;
  if (request.op == Op::kDiscard) {
    return rbd_aio_discard(image, request.offset_bytes, request.length_bytes, completion);
  }
  const int flags = request.may_unmap ? 0 : RBD_WRITE_ZEROES_FLAG_THICK_PROVISION;
  return rbd_aio_write_zeroes(image, request.offset_bytes, request.length_bytes, completion, flags, 0);
}

void RbdChannel::Completed(rbd_completion_t completion, void* arg) {
  auto* piece = static_cast<Piece*>(arg);
  piece->result = rbd_aio_get_return_value(completion);
  rbd_aio_release(completion);
  RbdChannel& channel = *static_cast<RbdChannel*>(piece->request->top().layer);
  Piece* before = channel.done_.load(std::memory_order_relaxed);
  do {
    piece->next = before;
  } while (!channel.done_.compare_exchange_weak(before, piece, std::memory_order_release,
                                                std::memory_order_relaxed));
  // Only the mail makes the reactor take the list, so until it is sent the channel stays; afterwards nothing of it is
  // touched. Those that came second touch nothing any more.
  if (before == nullptr) channel.reactor_.Post(channel.arrival_);
}

void RbdChannel::Collect() {
  Piece* latest = done_.exchange(nullptr, std::memory_order_acquire);
  Piece* first = nullptr;
  while (latest != nullptr) {  // in the order in which they ended
    Piece* next = latest->next;
    latest->next = first;
    first = std::exchange(latest, next);
  }
  while (first != nullptr) {
    Piece& piece = *first;
    first = piece.next;
    PieceDone(piece);  // the last one may end this channel
  }
}

// The request has ended with its last piece. After an error no more pieces go.
void RbdChannel::PieceDone(Piece& piece) {
  Request& request = *piece.request;
  auto& scratch = request.top().scratch;
  const int64_t result = piece.result;
  pieces_free_.push_back(&piece);
  --scratch[kPieces];
  if (static_cast<int64_t>(scratch[kResult]) >= 0) scratch[kResult] = static_cast<uint64_t>(result);
  if (result < 0) request.link.Unlink();
  if (scratch[kPieces] > 0 || request.link.linked()) return;
  Finished(request, static_cast<int64_t>(scratch[kResult]));
}

void RbdChannel::Finished(Request& request, int64_t result) {
  auto& scratch = request.top().scratch;
  if (result < 0) {
    if (result == -ESHUTDOWN) shut_out_();
    request.error_number = static_cast<int32_t>(-result);
    return End(request, StatusOfCeph(static_cast<int>(result), image_.read_only));
  }
  // Another client has made the image shorter.
  if (request.op == Op::kRead && static_cast<uint64_t>(result) != request.length_bytes) {
    return End(request, IoStatus::kIoError);
  }
  const bool writes = request.op == Op::kWrite || request.op == Op::kWriteZeroes;
  if (writes && request.fua && scratch[kSync] == 0) {
    scratch[kSync] = 1;
    return Issue(request, 0);
  }
  End(request, IoStatus::kOk);
}

void RbdChannel::End(Request& request, IoStatus status) {
  request.stamps.Stamp(RequestStage::kDone, reactor_.now_ns());
  const auto& scratch = request.top().scratch;
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

RbdChannel::Piece& RbdChannel::TakePiece() {
  if (pieces_free_.empty()) {
    pieces_.push_back(std::make_unique<Piece>());
    pieces_free_.reserve(pieces_.size());
    return *pieces_.back();
  }
  Piece& piece = *pieces_free_.back();
  pieces_free_.pop_back();
  return piece;
}

}  // namespace cleat::modules
