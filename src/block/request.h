// SPDX-License-Identifier: Apache-2.0
// One I/O on its way through a disk's pipeline. It knows nothing of virtio.
//
// Ownership: the front end takes a request from its queue's pool, fills it in and pushes the first frame;
// Channel::Submit lends it to the pipeline; Complete() gives it back, once, on the same reactor. Until then
// the request, its segments and their memory stay where they are, whatever happens to the guest.
//
// The frame stack: a layer that wants to hear of the completion pushes a frame before it submits to the next
// layer. Complete() pops the topmost frame and calls its `done`; a filter there does its part and calls
// Complete() again. Thus no layer allocates. The depth is fixed; a pipeline that needs more is refused when
// it is built (pipeline.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "base/intrusive_list.h"
#include "block/memory.h"
#include "block/stage_stamps.h"

namespace cleat::block {

// kCompareAndWrite: the first half of the segments is compared with what the range holds, the second half written when
// it is the same; nothing else is written to the range in between. `length_bytes` is the range's: half the segments'.
enum class Op : uint8_t { kRead, kWrite, kFlush, kDiscard, kWriteZeroes, kCompareAndWrite };

// Data that one request reads or writes, at most: a longer one is kInvalid. A guest may have thousands of requests under
// way whose segments are all the same page, and one is copied, encrypted or given to a cluster in one piece. No driver asks
// for as much by itself: Linux takes 1.25 MiB.
inline constexpr uint64_t kTransferBytesMax = 32 << 20;

// What became of it. Front ends translate it to their own words (virtio status, SCSI sense).
enum class IoStatus : uint8_t {
  kOk,
  kIoError,        // of the medium, at this range
  kHardwareError,  // of the device as a whole, or of the way to it: another range would fare no better
  kNoSpace,
  kReadOnly,
  kUnsupported,
  kInvalid,              // outside the disk, or not a multiple of the logical block
  kReservationConflict,  // somebody else owns the disk
  kMiscompare,           // compare and write: `miscompare_bytes` says where; nothing was written
  kAborted,              // never started: the disk went away first
  kFenced,  // the storage has shut this host out: nothing goes any more until the disk is opened anew
};
const char* IoStatusName(IoStatus status);

class Request;

struct Frame {
  // Called with the frame already popped; `request.status` says how the layers below ended. `frame` is good
  // until the next Push or Complete.
  using DoneFn = void (*)(Request& request, const Frame& frame);
  DoneFn done = nullptr;
  void* layer = nullptr;  // the channel or queue that pushed it
  std::array<uint64_t, 6>
      scratch{};  // the layer's own; what it saves of the request (segments, times) goes here
};

class Request {
 public:
  static constexpr uint32_t kFramesMax =
      7;  // front end, entrance, QoS, crypto, fault, back end, one to spare

  Op op = Op::kRead;
  IoStatus status = IoStatus::kOk;
  bool fua = false;        // write: durable when completed
  bool may_unmap = false;  // write zeroes: the range may be given back, if it reads zero afterwards
  // Why the storage failed it, in the storage's own words (an errno, or nvme/status.h's ErrorNumberOf), for people; 0: it did not say. Set
  // by a back end before it completes the request with an error, and never on success; the entrance takes it back.
  int32_t error_number = 0;
  uint64_t offset_bytes = 0;      // a multiple of the logical block; 0 for flush
  uint64_t length_bytes = 0;      // the segments' sum for read and write
  uint64_t miscompare_bytes = 0;  // kMiscompare: how far into the range the first difference is
  // Read and write: where the data is. Memory of the front end's; a filter may point it at its own and must
  // put it back when its frame is done.
  std::span<const Segment> segments;
  StageStamps stamps;  // when it reached which stage of its way
  ListHook link;       // for whoever holds it at present: a waiting QoS bucket, a back end's queue

  Frame& Push(Frame::DoneFn done, void* layer) {
    CLEAT_CHECK(depth_ < kFramesMax);
    Frame& frame = frames_[depth_++];
    frame.done = done;
    frame.layer = layer;
    return frame;
  }

  // By the layer that ends it. The request may be gone when this returns.
  void Complete(IoStatus result) {
    CLEAT_CHECK(depth_ > 0);
    status = result;
    const Frame& frame = frames_[--depth_];
    frame.done(*this, frame);
  }

  // The same for a back end whose storage said why.
  void Fail(IoStatus result, int32_t why) {
    error_number = why;
    Complete(result);
  }

  // The topmost frame: for a layer that pushed it and is asked again (a waiting request).
  Frame& top() {
    CLEAT_CHECK(depth_ > 0);
    return frames_[depth_ - 1];
  }
  const Frame& top() const {
    CLEAT_CHECK(depth_ > 0);
    return frames_[depth_ - 1];
  }
  uint32_t depth() const { return depth_; }

 private:
  uint32_t depth_ = 0;
  std::array<Frame, kFramesMax> frames_;
};

using RequestList = IntrusiveList<Request, &Request::link>;

}  // namespace cleat::block
