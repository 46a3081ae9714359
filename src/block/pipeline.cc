// SPDX-License-Identifier: Apache-2.0
#include "block/pipeline.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace cleat::block {
namespace {

[[maybe_unused]] uint64_t SegmentBytes(const Request& request) {
  uint64_t sum = 0;
  for (const Segment& segment : request.segments) sum += segment.length_bytes;
  return sum;
}

uint64_t CountOf(RequestList& requests) {
  uint64_t count = 0;
  for (Request* request = requests.front(); request != nullptr; request = requests.Next(*request)) ++count;
  return count;
}

}  // namespace

const char* IoStatusName(IoStatus status) {
  switch (status) {
    case IoStatus::kOk:
      return "ok";
    case IoStatus::kIoError:
      return "io_error";
    case IoStatus::kHardwareError:
      return "hardware_error";
    case IoStatus::kNoSpace:
      return "no_space";
    case IoStatus::kReadOnly:
      return "read_only";
    case IoStatus::kUnsupported:
      return "unsupported";
    case IoStatus::kInvalid:
      return "invalid";
    case IoStatus::kReservationConflict:
      return "reservation_conflict";
    case IoStatus::kMiscompare:
      return "miscompare";
    case IoStatus::kAborted:
      return "aborted";
    case IoStatus::kFenced:
      return "fenced";
  }
  return "unknown";
}

Status CheckGeometry(const Geometry& geometry, const std::string& disk) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, disk + ": " + why);
  };
  if (geometry.logical_block_bytes != 512 && geometry.logical_block_bytes != 4096) {
    return refuse("logical block size is " + std::to_string(geometry.logical_block_bytes) +
                  ": use 512 or 4096");
  }
  if (!std::has_single_bit(geometry.physical_block_bytes) ||
      geometry.physical_block_bytes < geometry.logical_block_bytes ||
      geometry.physical_block_bytes > (1U << 20)) {
    return refuse("physical block size is " + std::to_string(geometry.physical_block_bytes) +
                  ": use a power of two from the logical block size to 1 MiB");
  }
  if (geometry.size_bytes == 0 || geometry.size_bytes % geometry.logical_block_bytes != 0) {
    return refuse("size of " + std::to_string(geometry.size_bytes) +
                  " bytes is not a positive multiple of the " + std::to_string(geometry.logical_block_bytes) +
                  "-byte logical block");
  }
  if (geometry.size_bytes > (uint64_t{1} << 62)) return refuse("larger than 4 EiB");
  const uint32_t block = geometry.logical_block_bytes;
  if (geometry.discard &&
      (geometry.discard_granularity_bytes == 0 || geometry.discard_granularity_bytes % block != 0 ||
       geometry.discard_max_bytes < block)) {
    return refuse("discards of " + std::to_string(geometry.discard_granularity_bytes) + " to " +
                  std::to_string(geometry.discard_max_bytes) + " bytes do not go with its blocks");
  }
  if (geometry.write_zeroes && geometry.write_zeroes_max_bytes < block) {
    return refuse("write zeroes of at most " + std::to_string(geometry.write_zeroes_max_bytes) +
                  " bytes do not go with its blocks");
  }
  return Ok{};
}

PipelineChannel::PipelineChannel(const Geometry& geometry, AccessMode mode, std::unique_ptr<Channel> top,
                                 ChannelRegistry* registry, CompareAndWrite* compare_and_write,
                                 std::shared_ptr<const std::atomic<bool>> waits_for_space)
    : geometry_(geometry),
      transfer_max_bytes_(std::min(geometry.size_bytes, kTransferBytesMax)),
      mode_(mode),
      wants_prefetch_(top->wants_prefetch()),
      top_(std::move(top)),
      unlimited_(top_->unlimited()),
      throttle_(top_->throttle()),
      registry_(registry),
      compare_and_write_(compare_and_write),
      space_wait_(*this, std::move(waits_for_space)) {}

PipelineChannel::~PipelineChannel() {
  CLEAT_CHECK(in_flight() == 0 && !holding_);
  if (registry_ != nullptr) registry_->Remove(*this);
}

IoStatus PipelineChannel::Check(const Request& request) const {
  if (request.op == Op::kFlush) return IoStatus::kOk;
  if (request.op != Op::kRead && mode_ == AccessMode::kReadOnly) return IoStatus::kReadOnly;
  const uint64_t block_mask = geometry_.logical_block_bytes - 1;
  if (((request.offset_bytes | request.length_bytes) & block_mask) != 0) return IoStatus::kInvalid;
  if (request.length_bytes > geometry_.size_bytes ||
      request.offset_bytes > geometry_.size_bytes - request.length_bytes) {
    return IoStatus::kInvalid;
  }
  if (request.op == Op::kRead || request.op == Op::kWrite) {
    if (request.length_bytes > kTransferBytesMax) return IoStatus::kInvalid;
  } else if (request.op == Op::kCompareAndWrite) {
    if (compare_and_write_ == nullptr) return IoStatus::kUnsupported;
    if (request.length_bytes > kCompareAndWriteBytesMax) return IoStatus::kInvalid;
  } else if (request.op == Op::kDiscard) {
    if (!geometry_.discard) return IoStatus::kUnsupported;
    if (request.length_bytes > geometry_.discard_max_bytes) return IoStatus::kInvalid;
  } else if (request.op == Op::kWriteZeroes) {
    if (!geometry_.write_zeroes) return IoStatus::kUnsupported;
    if (request.length_bytes > geometry_.write_zeroes_max_bytes) return IoStatus::kInvalid;
  }
  return IoStatus::kOk;
}

// What nearly every request is: a read, or a write to a disk that may be written, of whole blocks inside the disk.
inline bool PipelineChannel::IsPlain(const Request& request) const {
  const uint64_t block_mask = geometry_.logical_block_bytes - 1;
  return (request.op == Op::kRead || (request.op == Op::kWrite && mode_ != AccessMode::kReadOnly)) &&
         ((request.offset_bytes | request.length_bytes) & block_mask) == 0 && request.length_bytes != 0 &&
         request.length_bytes <= transfer_max_bytes_ &&
         request.offset_bytes <= geometry_.size_bytes - request.length_bytes;
}

void PipelineChannel::Submit(Request& request) {
  if (!IsPlain(request) || holding_) [[unlikely]]
    return SubmitChecked(request);
  CLEAT_DCHECK(SegmentBytes(request) == request.length_bytes);
  Forward(request);
}

void PipelineChannel::SubmitChecked(Request& request) {
  const IoStatus checked = Check(request);
  if (checked != IoStatus::kOk || (request.op != Op::kFlush && request.length_bytes == 0)) {
    request.Complete(checked);
    return;
  }
  CLEAT_DCHECK((request.op != Op::kRead && request.op != Op::kWrite) ||
               SegmentBytes(request) == request.length_bytes);
  if (holding_ || request.op == Op::kCompareAndWrite) return SubmitRarely(request);
  Forward(request);
}

void PipelineChannel::SubmitRarely(Request& request) {
  if (request.op == Op::kCompareAndWrite) {
    CLEAT_DCHECK(SegmentBytes(request) == 2 * request.length_bytes);
    ++parked_;
    compare_and_write_->Start(*this, request);
  } else if (Holds(request)) {
    ++parked_;
    held_.PushBack(request);
  } else {
    Forward(request);
  }
}

inline void PipelineChannel::Forward(Request& request) {
  ++in_flight_[epoch_];
  request.Push(&Done, this).scratch[0] = epoch_;
  top_->Submit(request);
}

void PipelineChannel::Done(Request& request, const Frame& frame) {
  auto& self = *static_cast<PipelineChannel*>(frame.layer);
  uint64_t& in_flight = self.in_flight_[frame.scratch[0]];
  CLEAT_CHECK(in_flight > 0);
  --in_flight;  // before: what it completes may look at it, or end the channel
  if (self.drained_ != nullptr && self.in_flight_[self.epoch_ ^ 1] == 0) [[unlikely]]
    self.drained_->Set();
  if (request.status != IoStatus::kOk) [[unlikely]]
    return self.CompleteFailed(request);
  request.Complete(request.status);
}

// Out of line, and last: a request that went well has no register saved for it.
[[gnu::noinline, gnu::cold]] void PipelineChannel::CompleteFailed(Request& request) {
  if (request.status == IoStatus::kNoSpace && space_wait_.Hold(request)) {
    ++parked_;
    return;
  }
  AnswerFailed(request);
}

void PipelineChannel::AnswerFailed(Request& request) {
  switch (request.status) {
    case IoStatus::kIoError:
    case IoStatus::kHardwareError:
    case IoStatus::kNoSpace:
    case IoStatus::kReadOnly:
    case IoStatus::kReservationConflict:
      if (failures_ != nullptr) failures_->Failed(request);
      break;
    default:  // an answer that says nothing bad of the storage, or (kFenced) that is told otherwise
      break;
  }
  request.error_number = 0;
  request.Complete(request.status);
}

// What is held back or waits for space is taken out first: a request that comes while those below are told is new, and not meant.
void PipelineChannel::AbortQueued(const Request* only) {
  RequestList aborted;
  WithdrawHeld(only, aborted);
  if (space_wait_.any()) space_wait_.Withdraw(only, aborted);
  if (parked_ > 0 && compare_and_write_ != nullptr) compare_and_write_->Abort(*this, only);
  const uint64_t parked = CountOf(aborted);
  top_->AbortQueued(only);
  if (parked == 0) return;
  parked_ -= parked;
  while (Request* request = aborted.PopFront())
    request->Complete(IoStatus::kAborted);  // the last one may end the channel
}

void PipelineChannel::WithdrawHeld(const Request* only, RequestList& out) {
  Request* next = nullptr;
  for (Request* request = held_.front(); request != nullptr; request = next) {
    next = held_.Next(*request);
    if (only != nullptr && only != request) continue;
    request->link.Unlink();
    out.PushBack(*request);
  }
}

// Requests that are completed within SetBypass may end the channel, unless the caller has others in flight.
void PipelineChannel::BeginBypass() {
  const bool any_waits = space_wait_.any();
  if (bypass_++ == 0) {
    if (compare_and_write_ != nullptr) compare_and_write_->BeginGivingWay();
    if (throttle_ != nullptr) throttle_->SetBypass(true);
  }
  if (any_waits) FailWaiting(/*all=*/false);
}

void PipelineChannel::EndBypass() {
  CLEAT_CHECK(bypass_ > 0);
  if (--bypass_ > 0) return;
  if (compare_and_write_ != nullptr) compare_and_write_->EndGivingWay();
  if (throttle_ != nullptr) throttle_->SetBypass(false);
}

// ---- For CompareAndWrite

bool PipelineChannel::Holds(const Request& request) const {
  return request.op != Op::kFlush && request.offset_bytes < hold_offset_bytes_ + hold_length_bytes_ &&
         hold_offset_bytes_ < request.offset_bytes + request.length_bytes;
}

Task<bool> PipelineChannel::Hold(uint64_t offset_bytes, uint64_t length_bytes) {
  CLEAT_CHECK(!holding_);
  holding_ = true;
  hold_offset_bytes_ = offset_bytes;
  hold_length_bytes_ = length_bytes;
  if (!co_await WaitForOldEpoch()) co_return false;  // what one that gave way has left
  epoch_ ^= 1;
  co_return co_await WaitForOldEpoch();
}

Task<bool> PipelineChannel::WaitForOldEpoch() {
  if (in_flight_[epoch_ ^ 1] > 0) {
    Event drained(*Reactor::Current());
    drained_ = &drained;
    if (compare_and_write_->gives_way()) GiveWay(nullptr);
    co_await drained.Wait();
    drained_ = nullptr;
  }
  co_return in_flight_[epoch_ ^ 1] == 0;
}

void PipelineChannel::GiveWay(const Request* step) {
  if (throttle_ == nullptr || !throttle_->HasWaiting()) return;
  if (step != nullptr) return top_->AbortQueued(step);
  if (drained_ != nullptr) drained_->Set();
}

void PipelineChannel::LetGo() {
  CLEAT_CHECK(holding_);
  holding_ = false;
  while (Request* request = held_.PopFront()) {
    --parked_;
    Forward(*request);
  }
}

void PipelineChannel::FinishExclusive(Request& request, IoStatus status) {
  CLEAT_CHECK(parked_ > 0);
  --parked_;
  if (status != IoStatus::kNoSpace) space_wait_.Ended(request);
  if (status == IoStatus::kOk) return request.Complete(status);
  request.status = status;
  CompleteFailed(request);
}

// ---- For SpaceWait

bool PipelineChannel::MayWait(const Request& request) const {
  return front_end_ == nullptr ? bypass_ == 0 : front_end_->MayWait(request);
}

void PipelineChannel::Retry(Request& request) {
  request.error_number = 0;
  if (request.op == Op::kCompareAndWrite) return compare_and_write_->Start(*this, request);
  --parked_;
  ++in_flight_[epoch_];
  request.Push(&RetryDone, this).scratch[0] = epoch_;
  unlimited_.Submit(request);
}

void PipelineChannel::RetryDone(Request& request, const Frame& frame) {
  auto& self = *static_cast<PipelineChannel*>(frame.layer);
  if (request.status != IoStatus::kNoSpace) self.space_wait_.Ended(request);
  Done(request, frame);
}

// All that waits, or what may not wait any more. The last one that is completed may end the channel.
void PipelineChannel::FailWaiting(bool all) {
  RequestList failed;
  if (all) {
    space_wait_.Withdraw(nullptr, failed);
  } else {
    space_wait_.WithdrawUnwanted(failed);
  }
  const uint64_t parked = CountOf(failed);
  parked_ -= parked;
  while (Request* request = failed.PopFront()) {
    request->status = IoStatus::kNoSpace;
    AnswerFailed(*request);
  }
}

void PipelineChannel::WaitingChanged(uint32_t requests) const {
  if (failures_ != nullptr) failures_->WaitForSpace(requests);
}

void PipelineChannel::SetGeometry(const Geometry& geometry) {
  geometry_ = geometry;
  transfer_max_bytes_ = std::min(geometry.size_bytes, kTransferBytesMax);
  top_->Resized();
}

Result<std::unique_ptr<Pipeline>> Pipeline::Make(std::unique_ptr<Device>&& top, AccessMode mode) {
  CLEAT_TRY(CheckGeometry(top->geometry(), top->name()));
  constexpr uint32_t kOwnFrames = 2;
  if (top->frames() + kOwnFrames > Request::kFramesMax) {
    return Error(ErrorCode::kInvalidArgument,
                 top->name() + ": its layers need " + std::to_string(top->frames()) +
                     " frames, a request has room for " + std::to_string(Request::kFramesMax - kOwnFrames) +
                     ": take a layer away");
  }
  return std::unique_ptr<Pipeline>(new Pipeline(std::move(top), mode));
}

Pipeline::~Pipeline() = default;

Result<std::unique_ptr<PipelineChannel>> Pipeline::OpenChannel(Reactor& reactor) {
  CLEAT_ASSIGN(auto channel, top_->OpenChannel(reactor));
  std::unique_ptr<PipelineChannel> entrance(new PipelineChannel(
      top_->geometry(), mode_, std::move(channel), &channels_, &compare_and_write_, waits_for_space_));
  channels_.Add(reactor, *entrance);
  return entrance;
}

Task<Status> Pipeline::Resize(uint64_t size_bytes) {
  Reactor& control = *Reactor::Current();
  const Geometry& now = top_->geometry();
  if (size_bytes < now.size_bytes || size_bytes % now.logical_block_bytes != 0) {
    co_return Error(ErrorCode::kInvalidArgument,
                    name() + ": its size can't become " + std::to_string(size_bytes) + " bytes: it has " +
                        std::to_string(now.size_bytes) + " and can only grow, by whole blocks of " +
                        std::to_string(now.logical_block_bytes));
  }
  if (size_bytes == now.size_bytes) co_return Ok{};
  CLEAT_CO_TRY(co_await top_->Resize(size_bytes));
  for (const ChannelRegistry::Member& member : channels_.Members()) {
    co_await member.reactor->Enter();
    member.channel->SetGeometry(top_->geometry());
  }
  co_await control.Enter();
  co_return Ok{};
}

Task<Status> Pipeline::Close() {
  return top_->Close();
}

}  // namespace cleat::block
