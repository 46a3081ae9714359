// SPDX-License-Identifier: Apache-2.0
#include "modules/nvme/nvme_channel.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "block/segments.h"
#include "modules/nvme/command_entry.h"
#include "nvme/data_piece.h"
#include "nvme/status.h"

namespace cleat::modules {
namespace {

using block::IoStatus;
using block::Op;
using block::Request;

bool IsTransfer(const Request& request) {
  return request.op == Op::kRead || request.op == Op::kWrite;
}

uint8_t* BounceOf(uint64_t scratch) {
  return std::bit_cast<uint8_t*>(static_cast<uintptr_t>(scratch));
}

IoStatus StatusOfErrno(int error_number) {
  switch (error_number) {
    case EROFS:
      return IoStatus::kReadOnly;
    case EFAULT:  // the guest has taken its memory away
      return IoStatus::kIoError;
    default:  // the controller is gone, or was reset too often
      return IoStatus::kHardwareError;
  }
}

}  // namespace

// ---- A request's way

void NvmeChannel::Submit(Request& request) {
  ++in_flight_;
  block::Frame& frame = request.Push([](Request& done, const block::Frame&) { done.Complete(done.status); },
                                     static_cast<UringClient*>(this));
  frame.scratch = {};
  if (request.op == Op::kFlush && !target_.write_cache) return End(request, IoStatus::kOk);
  Begin(request);
}

// Begins the request at its first byte: the first time, and each time that it is tried again.
void NvmeChannel::Begin(Request& request) {
  if (IsTransfer(request) && nvme::NeedsCopy(request.segments, target_.limits.data())) {
    if (uint8_t* buffer = ring_.TakeBounce(request)) BounceReady(request, buffer);
    return;
  }
  GoOn(request);
}

void NvmeChannel::BounceReady(Request& request, uint8_t* buffer) {
  request.top().scratch[kBounce] = std::bit_cast<uintptr_t>(buffer);
  GoOn(request);
}

void NvmeChannel::GoOn(Request& request) {
  if (under_way_ < kCommandsMax) [[likely]] {
    ring_.Start(request);
  } else {
    waiting_.PushBack(request);
  }
}

void NvmeChannel::Finished(Request& request, int32_t result) {
  auto& scratch = request.top().scratch;
  --scratch[kUnderWay];
  --under_way_;
  if (result != 0) [[unlikely]] {
    if (scratch[kFailure] == 0) scratch[kFailure] = kFailed | static_cast<uint32_t>(result);
  } else if (request.op == Op::kRead && scratch[kBounce] != 0) {
    const uint64_t step = scratch[kStepBytes];
    block::Scatter(BounceOf(scratch[kBounce]), step, request.segments, scratch[kBegun] - step);
  }
  if (!waiting_.empty()) [[unlikely]]
    ring_.Start(*waiting_.PopFront());
  AfterCommand(request);  // may end this channel
}

// What becomes of a request one of whose commands is over. It may stand in a line already, for its next command.
void NvmeChannel::AfterCommand(Request& request) {
  const auto& scratch = request.top().scratch;
  if (scratch[kFailure] != 0) [[unlikely]] {
    request.link.Unlink();
    if (scratch[kUnderWay] == 0) Ended(request);
  } else if (!IsSpent(request)) {
    if (!request.link.linked()) GoOn(request);
  } else if (scratch[kUnderWay] == 0) {
    End(request, IoStatus::kOk);
  }
}

// The request has failed, has no command under way, and stands in no line.
void NvmeChannel::Ended(Request& request) {
  const auto result = static_cast<int32_t>(static_cast<uint32_t>(request.top().scratch[kFailure]));
  if (MayTryAgain(request, result)) return Pause(request);
  Failed(request, result);
}

void NvmeChannel::Failed(Request& request, int32_t result) {
  if (result > 0) {
    const nvme::Status status(static_cast<uint16_t>(result));
    request.error_number = nvme::ErrorNumberOf(status);
    return End(request, nvme::StatusOf(status));
  }
  request.error_number = -result;
  End(request, StatusOfErrno(-result));
}

void NvmeChannel::End(Request& request, IoStatus status) {
  auto* bounce = IsTransfer(request) ? BounceOf(request.top().scratch[kBounce]) : nullptr;
  UringRing& ring = ring_;
  --in_flight_;
  request.Complete(status);  // may end this channel
  if (bounce != nullptr) ring.GiveBounce(bounce);
}

// ---- One command of it

bool NvmeChannel::Prepare(Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) {
  auto& scratch = request.top().scratch;
  ++scratch[kUnderWay];
  ++under_way_;
  bool several = false;  // at once
  switch (request.op) {
    case Op::kRead:
    case Op::kWrite:
      several = scratch[kBounce] == 0;
      if (several) {
        PrepareTransfer(request, sqe, iovecs);
      } else {
        PrepareBounced(request, sqe);
      }
      break;
    case Op::kWriteZeroes:
      several = true;
      PrepareZeroes(request, sqe);
      break;
    case Op::kDiscard:
      PrepareDiscard(request, sqe);
      break;
    default:
      CLEAT_CHECK(request.op == Op::kFlush);  // compare and write is the entrance's
      Fill(sqe, nvme::Flush(target_.nsid), {});
  }
  return several && !IsSpent(request) && scratch[kUnderWay] < kRequestCommandsMax &&
         under_way_ < kCommandsMax;
}

// Where the request goes on, and how much of it lies there in one piece.
pool::DriveRange NvmeChannel::Next(const Request& request) const {
  const uint64_t begun = request.top().scratch[kBegun];
  pool::DriveRange next = extents_.At(request.offset_bytes + begun);
  next.bytes = std::min(next.bytes, request.length_bytes - begun);
  return next;
}

// A command on that range, which is made of whole blocks.
nvme::Command NvmeChannel::On(nvme::Opcode opcode, const Request& request, pool::DriveRange range,
                              uint32_t flags) const {
  const uint32_t shift = target_.limits.block_shift();
  return nvme::OnBlocks(opcode, target_.nsid, range.first_byte >> shift,
                        static_cast<uint32_t>(range.bytes >> shift),
                        flags | (request.fua ? nvme::kForceUnitAccess : 0U));
}

void NvmeChannel::Fill(io_uring_sqe& sqe, const nvme::Command& command, std::span<const iovec> pieces,
                       std::optional<uint16_t> registered) {
  FillCommandEntry(sqe, static_cast<int>(target_.place), IOSQE_FIXED_FILE, command, pieces,
                   target_.timeout_ms, registered);
}

// The place of registered memory that holds the command's. The kernel takes it for memory in one piece alone.
std::optional<uint16_t> NvmeChannel::FindRegistered(Request& request, std::span<const iovec> pieces) {
  uint64_t& registered = request.top().scratch[kRegistered];
  if (pieces.size() != 1 || request.segments.size() != 1 || !uses_registered_ || registered == kMayNot)
    return std::nullopt;
  const block::MemoryRegion& region = *request.segments[0].region;
  const auto offset = static_cast<uint64_t>(static_cast<uint8_t*>(pieces[0].iov_base) - region.base());
  const std::optional<uint16_t> place = registrar_.Find(region, offset, pieces[0].iov_len);
  if (place) {
    ring_.CountRegistered();
    registered = kHasNamed;
  }
  return place;
}

void NvmeChannel::PrepareTransfer(Request& request, io_uring_sqe& sqe, std::span<iovec> iovecs) {
  uint64_t& begun = request.top().scratch[kBegun];
  const pool::DriveRange next = Next(request);
  const uint64_t most = target_.limits.TransferBytes(next.first_byte, next.bytes);
  const nvme::DataPiece piece = nvme::TakeData(request.segments, begun, most, target_.limits.data(), iovecs);
  CLEAT_CHECK(piece.bytes > 0);  // NeedsCopy
  Fill(sqe,
       On(request.op == Op::kRead ? nvme::Opcode::kRead : nvme::Opcode::kWrite, request,
          {next.first_byte, piece.bytes}, 0),
       iovecs.first(piece.iovecs), FindRegistered(request, iovecs.first(piece.iovecs)));
  begun += piece.bytes;
}

void NvmeChannel::PrepareBounced(Request& request, io_uring_sqe& sqe) {
  auto& scratch = request.top().scratch;
  const pool::DriveRange next = Next(request);
  const uint64_t left = std::min<uint64_t>(next.bytes, UringRing::kBounceBytes);
  const uint64_t bytes = target_.limits.TransferBytes(next.first_byte, left);
  uint8_t* const bounce = BounceOf(scratch[kBounce]);
  const bool write = request.op == Op::kWrite;
  if (write) block::Gather(request.segments, scratch[kBegun], bounce, bytes);
  const iovec piece{bounce, bytes};
  Fill(sqe, On(write ? nvme::Opcode::kWrite : nvme::Opcode::kRead, request, {next.first_byte, bytes}, 0),
       {&piece, 1});
  scratch[kStepBytes] = bytes;
  scratch[kBegun] += bytes;
}

// Zeroes come by a command of that name, or are written where the drive has none.
void NvmeChannel::PrepareZeroes(Request& request, io_uring_sqe& sqe) {
  uint64_t& begun = request.top().scratch[kBegun];
  const pool::DriveRange next = Next(request);
  if (const uint64_t most = target_.limits.write_zeroes_bytes_max(); most > 0) {
    const uint64_t bytes = std::min(next.bytes, most);
    const bool deallocate = request.may_unmap && target_.deallocates_to_zeroes;
    Fill(sqe,
         On(nvme::Opcode::kWriteZeroes, request, {next.first_byte, bytes},
            deallocate ? nvme::kDeallocate : 0U),
         {});
    begun += bytes;
    return;
  }
  const uint64_t pages = uint64_t{target_.limits.data().pages} * nvme::kPageBytes;
  const uint64_t step = std::min({next.bytes, uint64_t{UringRing::kZeroBytes}, pages});
  const uint64_t bytes = target_.limits.TransferBytes(next.first_byte, step);
  const iovec piece{ring_.zeroes(), bytes};
  Fill(sqe, On(nvme::Opcode::kWrite, request, {next.first_byte, bytes}, 0), {&piece, 1});
  begun += bytes;
}

// The drive reads the range from the frame, which stays where it is until the request is completed.
void NvmeChannel::PrepareDiscard(Request& request, io_uring_sqe& sqe) {
  auto& scratch = request.top().scratch;
  const uint32_t shift = target_.limits.block_shift();
  const pool::DriveRange next = Next(request);
  const uint64_t bytes = std::min(next.bytes, target_.limits.discard_bytes_max());
  const nvme::DatasetRange range{.blocks = static_cast<uint32_t>(bytes >> shift),
                                 .first_block = next.first_byte >> shift};
  std::memcpy(&scratch[kBounce], &range, sizeof(range));
  const iovec piece{&scratch[kBounce], sizeof(range)};
  Fill(sqe, nvme::Deallocate(target_.nsid), {&piece, 1});
  scratch[kBegun] += bytes;
}

// ---- What failed

NvmeChannel::Hope NvmeChannel::HopeAfter(int32_t result) const {
  if (result > 0) {
    const nvme::Status status(static_cast<uint16_t>(result));
    if (nvme::IsPathError(status)) return Hope::kNoWayNow;
    return nvme::MayRetry(status) ? Hope::kDriveMayDoIt : Hope::kNone;
  }
  switch (-result) {
    case EINTR:   // the kernel has taken it back from the drive, which it resets
    case EAGAIN:  // no memory for a command
    case ENOMEM:
    // A command that has to wait, as during a reset, is started later by a thread of the kernel's, which kernels with the x32 ABI take for
    // a 32-bit process: they cut its address to 32 bits, where an engine has no memory. No other command of ours has a bad address.
    case EFAULT:
      return Hope::kNoWayNow;
    case EINVAL:  // what the kernel says of a namespace with several paths while it has none
      return target_.multipath ? Hope::kNoWayNow : Hope::kNone;
    default:
      return Hope::kNone;
  }
}

// Whether the request named registered memory; it does so no more, nor do the others of the disk.
bool NvmeChannel::GivesUpRegistered(Request& request) {
  auto& scratch = request.top().scratch;
  if (!IsTransfer(request) || scratch[kBounce] != 0 || scratch[kRegistered] != kHasNamed) return false;
  scratch[kRegistered] = kMayNot;
  // What the kernel says of registered memory it says of a namespace without a path as well: other requests may go on naming it.
  if (target_.multipath) return true;
  if (uses_registered_)
    spdlog::warn(
        "{}: a command on registered memory failed: it is tried without, as all of its disk that follow",
        ring_.reactor().name());
  uses_registered_ = false;
  return true;
}

bool NvmeChannel::MayTryAgain(Request& request, int32_t result) {
  if ((result == -EINVAL || result == -EFAULT) && GivesUpRegistered(request)) return true;
  const Hope hope = HopeAfter(result);
  if (hope == Hope::kNone) return false;
  uint64_t& tries = request.top().scratch[kTries];
  const uint64_t now_ms = ring_.reactor().now_ns() / kNsPerMs;
  if (tries == 0) tries = now_ms << kSinceShift;
  if (hope == Hope::kNoWayNow) return now_ms - (tries >> kSinceShift) < kNoWayMaxNs / kNsPerMs;
  ++tries;
  return (tries & ((1U << kSinceShift) - 1)) <= kTriesMax;
}

// The request gives its bounce buffer to others while it pauses.
void NvmeChannel::Pause(Request& request) {
  auto* bounce = IsTransfer(request) ? BounceOf(request.top().scratch[kBounce]) : nullptr;
  if (bounce != nullptr) request.top().scratch[kBounce] = 0;
  paused_.PushBack(request);
  if (!pause_over_.pending()) ring_.reactor().AddTimer(pause_over_, ring_.reactor().now_ns() + kPauseNs);
  if (bounce != nullptr) ring_.GiveBounce(bounce);
}

// Begins all requests that pause now; one that fails again meanwhile waits for the next time.
void NvmeChannel::TryAgain() {
  block::RequestList again;
  again.Splice(paused_);
  while (Request* request = again.PopFront()) {
    request->top().scratch[kBegun] = 0;
    request->top().scratch[kFailure] = 0;
    Begin(*request);
  }
}

}  // namespace cleat::modules
