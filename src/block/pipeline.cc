// SPDX-License-Identifier: Apache-2.0
#include "block/pipeline.h"

#include <bit>
#include <utility>

namespace cleat::block {
namespace {

[[maybe_unused]] uint64_t SegmentBytes(const Request& request) {
  uint64_t sum = 0;
  for (const Segment& segment : request.segments) sum += segment.length_bytes;
  return sum;
}

}  // namespace

const char* IoStatusName(IoStatus status) {
  switch (status) {
    case IoStatus::kOk:
      return "ok";
    case IoStatus::kIoError:
      return "io_error";
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

PipelineChannel::PipelineChannel(const Geometry& geometry, AccessMode mode, std::unique_ptr<Channel> top)
    : geometry_(geometry), mode_(mode), top_(std::move(top)) {}

PipelineChannel::~PipelineChannel() {
  CLEAT_CHECK(in_flight_ == 0);
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
  if (request.op == Op::kDiscard) {
    if (!geometry_.discard) return IoStatus::kUnsupported;
    if (request.length_bytes > geometry_.discard_max_bytes) return IoStatus::kInvalid;
  } else if (request.op == Op::kWriteZeroes) {
    if (!geometry_.write_zeroes) return IoStatus::kUnsupported;
    if (request.length_bytes > geometry_.write_zeroes_max_bytes) return IoStatus::kInvalid;
  }
  return IoStatus::kOk;
}

void PipelineChannel::Submit(Request& request) {
  const IoStatus checked = Check(request);
  if (checked != IoStatus::kOk || (request.op != Op::kFlush && request.length_bytes == 0)) [[unlikely]] {
    request.Complete(checked);
    return;
  }
  CLEAT_DCHECK((request.op != Op::kRead && request.op != Op::kWrite) ||
               SegmentBytes(request) == request.length_bytes);
  ++in_flight_;
  request.Push(&Done, this);
  top_->Submit(request);
}

void PipelineChannel::Done(Request& request, const Frame& frame) {
  auto& self = *static_cast<PipelineChannel*>(frame.layer);
  CLEAT_CHECK(self.in_flight_ > 0);
  --self.in_flight_;  // before: what it completes may look at it, or end the channel
  request.Complete(request.status);
}

Result<std::unique_ptr<Pipeline>> Pipeline::Make(std::unique_ptr<Device> top, AccessMode mode) {
  const Status geometry = CheckGeometry(top->geometry(), top->name());
  if (!geometry) return geometry.error();
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
  auto channel = top_->OpenChannel(reactor);
  if (!channel) return std::move(channel).error();
  return std::make_unique<PipelineChannel>(top_->geometry(), mode_, std::move(channel).value());
}

Task<Status> Pipeline::Close() {
  return top_->Close();
}

}  // namespace cleat::block
