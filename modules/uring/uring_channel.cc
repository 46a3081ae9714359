// SPDX-License-Identifier: Apache-2.0
#include "modules/uring/uring_channel.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

namespace cleat::modules {
namespace {

using block::IoStatus;
using block::Op;
using block::Request;
using block::Segment;

constexpr uint64_t kTransferMax = uint64_t{1} << 30;  // of one operation: below the kernel's limit of 2 GiB

IoStatus StatusOfErrno(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return IoStatus::kNoSpace;
    case EROFS:
      return IoStatus::kReadOnly;
    case EOPNOTSUPP:
      return IoStatus::kUnsupported;
    case EBADE:  // what the block layer makes of a reservation conflict
      return IoStatus::kReservationConflict;
    case ENODEV:
      return IoStatus::kHardwareError;
    default:
      return IoStatus::kIoError;
  }
}

// Calls visit(data, length) for each piece of the request's memory in [from, from + length).
template <typename Visit>
void ForEachPiece(const Request& request, uint64_t from, uint64_t length, Visit visit) {
  for (const Segment& segment : request.segments) {
    if (from >= segment.length_bytes) {
      from -= segment.length_bytes;
      continue;
    }
    const uint64_t piece = std::min<uint64_t>(segment.length_bytes - from, length);
    if (piece == 0 || !visit(segment.data() + from, piece)) return;
    from = 0;
    length -= piece;
  }
}

void Gather(const Request& request, uint64_t from, uint64_t length, uint8_t* to) {
  ForEachPiece(request, from, length, [&to](const uint8_t* data, uint64_t piece) {
    std::memcpy(to, data, piece);
    to += piece;
    return true;
  });
}

void Scatter(const uint8_t* data, const Request& request, uint64_t at, uint64_t length) {
  ForEachPiece(request, at, length, [&data](uint8_t* to, uint64_t piece) {
    std::memcpy(to, data, piece);
    data += piece;
    return true;
  });
}

bool IsTransfer(const Request& request) {
  return request.op == Op::kRead || request.op == Op::kWrite;
}

uint8_t* BounceOf(uint64_t scratch) {
  return std::bit_cast<uint8_t*>(static_cast<uintptr_t>(scratch));
}

}  // namespace

void UringChannel::Submit(Request& request) {
  ++in_flight_;
  block::Frame& frame = request.Push([](Request& done, const block::Frame&) { done.Complete(done.status); },
                                     static_cast<UringClient*>(this));
  frame.scratch = {};
  if (IsTransfer(request) && NeedsBounce(request)) {
    if (uint8_t* buffer = ring_.TakeBounce(request)) BounceReady(request, buffer);
    return;
  }
  // Punching holes is all there is to a discard: where that does not work it does nothing, as a hint may.
  if (request.op == Op::kDiscard && !punch_works_) {
    End(request, IoStatus::kOk);
    return;
  }
  ring_.Start(request);
}

void UringChannel::BounceReady(Request& request, uint8_t* buffer) {
  request.top().scratch[kBounce] = std::bit_cast<uintptr_t>(buffer);
  ring_.Start(request);
}

bool UringChannel::NeedsBounce(const Request& request) const {
  if (!file_.direct) return false;
  uint64_t addresses = 0;
  uint64_t lengths = 0;
  for (const Segment& segment : request.segments) {
    addresses |= std::bit_cast<uintptr_t>(segment.data());
    lengths |= segment.length_bytes;
  }
  return (addresses & (file_.memory_align - 1)) != 0 || (lengths & (file_.length_align - 1)) != 0;
}

// How fallocate makes the range read as zero; 0: it can't, they have to be written.
int UringChannel::ZeroMode(Request& request) const {
  constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  if (request.op == Op::kDiscard) return kPunch;
  if (request.top().scratch[kPlain] != 0) return 0;
  if (request.may_unmap && punch_works_) return kPunch;
  return zero_range_works_ ? FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE : 0;
}

bool UringChannel::Prepare(Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) {
  if (IsTransfer(request)) {
    PrepareTransfer(request, sqe, iovecs);
  } else if (request.op == Op::kFlush || request.top().scratch[kSync] == kSyncUnderWay) {
    io_uring_prep_fsync(&sqe, file_.fd.get(), IORING_FSYNC_DATASYNC);
  } else {
    PrepareZeroes(request, sqe);
  }
  return false;
}

// Where the request goes on, and how much of it lies there in one piece.
pool::DriveRange UringChannel::Next(const Request& request) const {
  const uint64_t done = request.top().scratch[kDone];
  pool::DriveRange next = extents_.At(request.offset_bytes + done);
  next.bytes = std::min(next.bytes, request.length_bytes - done);
  return next;
}

void UringChannel::PrepareTransfer(Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) {
  const auto& scratch = request.top().scratch;
  const uint64_t done = scratch[kDone];
  const pool::DriveRange next = Next(request);
  const uint64_t at = next.first_byte;
  const uint64_t left = std::min(next.bytes, kTransferMax);
  const bool write = request.op == Op::kWrite;
  const int fd = file_.fd.get();
  if (uint8_t* bounce = BounceOf(scratch[kBounce])) {
    const auto step = static_cast<uint32_t>(std::min<uint64_t>(left, UringRing::kBounceBytes));
    if (write) {
      Gather(request, done, step, bounce);
      io_uring_prep_write(&sqe, fd, bounce, step, at);
    } else {
      io_uring_prep_read(&sqe, fd, bounce, step, at);
    }
  } else {
    uint32_t count = 0;
    ForEachPiece(request, done, left, [&](uint8_t* data, uint64_t piece) {
      iovecs[count++] = {data, piece};
      return count < iovecs.size();
    });
    // One piece is spared the kernel's copy of the vector.
    if (count == 1 && write) {
      io_uring_prep_write(&sqe, fd, iovecs[0].iov_base, static_cast<uint32_t>(iovecs[0].iov_len), at);
    } else if (count == 1) {
      io_uring_prep_read(&sqe, fd, iovecs[0].iov_base, static_cast<uint32_t>(iovecs[0].iov_len), at);
    } else if (write) {
      io_uring_prep_writev(&sqe, fd, iovecs.data(), count, at);
    } else {
      io_uring_prep_readv(&sqe, fd, iovecs.data(), count, at);
    }
  }
  if (write && request.fua) sqe.rw_flags = RWF_DSYNC;
}

void UringChannel::PrepareZeroes(Request& request, io_uring_sqe& sqe) {
  auto& scratch = request.top().scratch;
  const auto [at, left] = Next(request);
  const int mode = ZeroMode(request);
  scratch[kMode] = static_cast<uint64_t>(mode);
  if (mode != 0) {
    io_uring_prep_fallocate(&sqe, file_.fd.get(), mode, static_cast<off_t>(at), static_cast<off_t>(left));
  } else {
    const auto step = static_cast<uint32_t>(std::min<uint64_t>(left, UringRing::kZeroBytes));
    io_uring_prep_write(&sqe, file_.fd.get(), ring_.zeroes(), step, at);
    if (request.fua) sqe.rw_flags = RWF_DSYNC;
  }
}

void UringChannel::Finished(Request& request, int32_t result) {
  auto& scratch = request.top().scratch;
  if (result < 0) {
    if ((result == -EINTR || result == -EAGAIN) && ++scratch[kTries] < kTriesMax) {
      ring_.Start(request);
      return;
    }
    Failed(request, -result);
    return;
  }
  scratch[kTries] = 0;
  if (request.op == Op::kFlush || scratch[kSync] == kSyncUnderWay) {
    End(request, IoStatus::kOk);
  } else if (scratch[kMode] != 0) {
    ZeroesDone(request);
  } else {
    Progressed(request, static_cast<uint64_t>(result));
  }
}

void UringChannel::Progressed(Request& request, uint64_t bytes) {
  auto& scratch = request.top().scratch;
  if (request.op == Op::kRead && scratch[kBounce] != 0) {
    Scatter(BounceOf(scratch[kBounce]), request, scratch[kDone], bytes);
  }
  // The rest must be aligned too: what is beyond the last whole unit is done again.
  const uint64_t whole = bytes - bytes % file_.length_align;
  scratch[kDone] += whole;
  CLEAT_CHECK(scratch[kDone] <= request.length_bytes);
  if (scratch[kDone] == request.length_bytes) {
    AllDone(request);
  } else if (whole == 0) {
    Failed(request, EIO);  // the file ends here: somebody has made it shorter
  } else {
    ring_.Start(request);
  }
}

// After a fallocate, which does all that it was asked for, or nothing. Writes can be durable by themselves (RWF_DSYNC); fallocate can't.
void UringChannel::ZeroesDone(Request& request) {
  auto& scratch = request.top().scratch;
  scratch[kDone] += Next(request).bytes;
  if (request.op == Op::kWriteZeroes && request.fua) scratch[kSync] = kSyncOwed;
  if (scratch[kDone] == request.length_bytes) return AllDone(request);
  ring_.Start(request);
}

void UringChannel::AllDone(Request& request) {
  uint64_t& sync = request.top().scratch[kSync];
  if (sync == kSyncNone) return End(request, IoStatus::kOk);
  sync = kSyncUnderWay;
  ring_.Start(request);
}

void UringChannel::Failed(Request& request, int error_number) {
  const auto& scratch = request.top().scratch;
  if (IsGone()) error_number = ENODEV;
  if (scratch[kMode] == 0 || scratch[kSync] == kSyncUnderWay || !TryAnotherWay(request, error_number)) {
    request.error_number = error_number;
    End(request, StatusOfErrno(error_number));
  }
}

// A block device that was pulled out has no bytes any more, so that the kernel finds no space for writes: that must not be
// taken for a full drive, which may be waited for.
bool UringChannel::IsGone() const {
  uint64_t bytes = 0;
  return file_.block_device && ioctl(file_.fd.get(), BLKGETSIZE64, &bytes) == 0 && bytes == 0;
}

// After a failed fallocate. EOPNOTSUPP: this file never can; EINVAL: not this range (a block device with
// larger blocks than the disk's); EBUSY: not now, since a page of the range waits in a block device's page cache to be written, which the
// kernel does not drop while the device has an exclusive owner. A discard then does nothing, as a hint may.
bool UringChannel::TryAnotherWay(Request& request, int error_number) {
  if (error_number != EOPNOTSUPP && error_number != EINVAL && error_number != EBUSY) return false;
  auto& scratch = request.top().scratch;
  const bool punch = (scratch[kMode] & FALLOC_FL_PUNCH_HOLE) != 0;
  if (error_number == EOPNOTSUPP) (punch ? punch_works_ : zero_range_works_) = false;
  if (request.op == Op::kDiscard) {
    End(request, IoStatus::kOk);
  } else {
    if (error_number != EOPNOTSUPP) scratch[kPlain] = 1;
    ring_.Start(request);
  }
  return true;
}

void UringChannel::End(Request& request, IoStatus status) {
  auto* bounce = BounceOf(request.top().scratch[kBounce]);
  UringRing& ring = ring_;
  --in_flight_;
  request.Complete(status);  // may end this channel
  if (bounce != nullptr) ring.GiveBounce(bounce);
}

}  // namespace cleat::modules
