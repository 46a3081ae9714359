// SPDX-License-Identifier: Apache-2.0
#include "io_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cleat::system_test {
namespace {

using perf::BlkOp;

constexpr uint64_t kIoTimeoutNs = 120 * kNsPerSecond;  // for what can only hang

}  // namespace

IoLoad::IoLoad(perf::BlkDriver& driver, perf::StampedBlocks& blocks, const IoLoadOptions& options)
    : driver_(driver), blocks_(blocks), options_(options), random_(options.seed) {}

IoLoad::~IoLoad() {
  if (thread_.joinable()) {
    stop_ = true;
    thread_.join();
  }
}

Status IoLoad::Prepare() {
  if (!lanes_.empty()) return Ok{};
  const uint32_t count = driver_.num_queues() * options_.depth;
  const uint32_t block_bytes = blocks_.block_bytes();
  const uint64_t lane_bytes = blocks_.disk_bytes() / count / block_bytes * block_bytes;
  if (lane_bytes < block_bytes)
    return Error(ErrorCode::kInvalidArgument, "the disk is too small for this load");
  for (uint32_t i = 0; i < count; ++i) {
    auto buffer = driver_.AllocateBuffer(options_.bytes_max);
    if (!buffer) return std::move(buffer).error();
    Lane lane;
    lane.queue = static_cast<uint16_t>(i / options_.depth);
    lane.first_byte = i * lane_bytes;
    lane.bytes = lane_bytes;
    lane.buffer_gpa = *buffer;
    lanes_.push_back(lane);
  }
  return Ok{};
}

void IoLoad::PrepareNext(Lane& lane, uint64_t token) {
  const uint32_t block_bytes = blocks_.block_bytes();
  const uint64_t blocks_max = std::min<uint64_t>(lane.bytes, options_.bytes_max) / block_bytes;
  // Small ones as often as large ones.
  const uint64_t blocks = random_.Between(1, std::max<uint64_t>(1, blocks_max >> random_.Below(8)));
  const uint64_t dice = random_.Below(100);
  BlkOp op = BlkOp::kRead;
  if (!options_.read_only) {
    if (dice < 40) op = BlkOp::kWrite;
    if (dice >= 90 && driver_.has(perf::wire::kBlkFlush)) op = BlkOp::kFlush;
    if (dice >= 94 && driver_.has(perf::wire::kBlkWriteZeroes)) op = BlkOp::kWriteZeroes;
    if (dice >= 98 && driver_.has(perf::wire::kBlkDiscard)) op = BlkOp::kDiscard;
  }
  lane.io = {};
  lane.io.op = op;
  lane.io.token = token;
  if (op != BlkOp::kFlush) {
    lane.io.length_bytes = static_cast<uint32_t>(blocks * block_bytes);
    lane.io.offset_bytes =
        lane.first_byte + random_.Below(lane.bytes / block_bytes - blocks + 1) * block_bytes;
  }
  if (op == BlkOp::kRead || op == BlkOp::kWrite) lane.io.data_gpa = lane.buffer_gpa;
  lane.io.unmap = op == BlkOp::kWriteZeroes && random_.Chance(1, 2);
  if (op == BlkOp::kWrite) {
    blocks_.BeginWrite(lane.io.offset_bytes, driver_.memory().Span(lane.buffer_gpa, lane.io.length_bytes));
  }
  // A discard whose end is never seen may have made zeroes of the blocks, or not.
  if (op == BlkOp::kWriteZeroes || op == BlkOp::kDiscard) {
    blocks_.BeginZero(lane.io.offset_bytes, lane.io.length_bytes);
  }
  lane.prepared = true;
}

bool IoLoad::SubmitNext(Lane& lane, uint64_t token) {
  if (!lane.prepared) PrepareNext(lane, token);
  lane.busy = driver_.Submit(lane.queue, lane.io);
  lane.prepared = !lane.busy;
  return lane.busy;
}

Status IoLoad::Complete(const perf::BlkCompletion& completion) {
  Lane& lane = lanes_[completion.token];
  lane.busy = false;
  const perf::BlkIo& io = lane.io;
  const auto describe = [&] {
    return fmt::format("request {} of {} bytes at {} on queue {}", static_cast<int>(io.op), io.length_bytes,
                       io.offset_bytes, lane.queue);
  };
  if (completion.status != perf::wire::kBlkOk) {
    return Error(ErrorCode::kIo, fmt::format("{}: status {:#x}", describe(), completion.status));
  }
  if (io.op == BlkOp::kWrite || io.op == BlkOp::kWriteZeroes)
    blocks_.Acknowledge(io.offset_bytes, io.length_bytes);
  if (io.op == BlkOp::kDiscard) {
    // What a discarded block holds is up to the disk: it is written anew before it is looked at.
    blocks_.BeginZero(io.offset_bytes, io.length_bytes);
    Status zeroed = driver_.WriteZeroesSync(io.offset_bytes, io.length_bytes, false, lane.queue);
    if (!zeroed) return zeroed;
    blocks_.Acknowledge(io.offset_bytes, io.length_bytes);
  }
  if (io.op == BlkOp::kRead) {
    const auto finding =
        blocks_.Check(io.offset_bytes, driver_.memory().Span(lane.buffer_gpa, io.length_bytes));
    if (!finding.ok()) return Error(ErrorCode::kDataLoss, describe() + ": " + finding.ToString());
  }
  completed_.fetch_add(1, std::memory_order_relaxed);
  return Ok{};
}

Status IoLoad::Reap(uint16_t queue, uint32_t* busy) {
  std::array<perf::BlkCompletion, 32> completions;
  const size_t count = driver_.Poll(queue, completions);
  Status first;
  for (size_t i = 0; i < count; ++i) {
    Status status = Complete(completions[i]);
    if (!status && first) first = status;
  }
  *busy -= static_cast<uint32_t>(count);
  if (count > 0) {
    const std::lock_guard lock(mutex_);
    progress_.notify_all();
  }
  return first;
}

Status IoLoad::Drive(uint64_t requests, const std::atomic<bool>* stop) {
  if (Status prepared = Prepare(); !prepared) return prepared;
  uint64_t left = requests;
  uint32_t busy = 0;
  for (;;) {
    const bool stopping = left == 0 || (stop != nullptr && stop->load(std::memory_order_relaxed));
    for (size_t i = 0; i < lanes_.size() && !stopping && left > 0; ++i) {
      if (lanes_[i].busy) continue;
      if (!SubmitNext(lanes_[i], i)) continue;
      ++busy;
      --left;
    }
    for (uint16_t queue = 0; queue < driver_.num_queues(); ++queue) driver_.Kick(queue);
    if (busy == 0) {
      if (stopping) return Ok{};
      return Error(ErrorCode::kResourceExhausted, "an empty queue has no room for a request");
    }
    if (Status waited = driver_.Wait(kIoTimeoutNs); !waited) return waited;
    if (Status health = driver_.Health(); !health) return health;
    for (uint16_t queue = 0; queue < driver_.num_queues(); ++queue) {
      if (Status reaped = Reap(queue, &busy); !reaped) return reaped;
    }
  }
}

Status IoLoad::Run(uint64_t requests) {
  return Drive(requests, nullptr);
}

Status IoLoad::Verify() {
  std::vector<uint8_t> data(perf::kSyncChunkBytes);
  for (uint64_t at = 0; at < blocks_.disk_bytes(); at += data.size()) {
    data.resize(std::min<uint64_t>(data.size(), blocks_.disk_bytes() - at));
    if (Status read = driver_.ReadSync(at, data); !read) return read;
    const auto finding = blocks_.Check(at, data);
    if (!finding.ok()) return Error(ErrorCode::kDataLoss, "in the end: " + finding.ToString());
  }
  return Ok{};
}

void IoLoad::Start() {
  stop_ = false;
  running_ = true;
  result_ = Ok{};
  thread_ = std::thread([this] {
    Status result = Drive(UINT64_MAX, &stop_);
    const std::lock_guard lock(mutex_);
    running_ = false;
    result_ = std::move(result);
    progress_.notify_all();
  });
}

Status IoLoad::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return result_;
}

bool IoLoad::WaitProgress(uint64_t requests) {
  const uint64_t goal = completed() + requests;
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return completed() >= goal || !running_; });
  return completed() >= goal;
}

}  // namespace cleat::system_test
