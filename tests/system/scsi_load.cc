// SPDX-License-Identifier: Apache-2.0
#include "scsi_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace cleat::system_test {
namespace {

namespace scsi = perf::scsi;

constexpr uint64_t kScsiTimeoutNs = 60 * kNsPerSecond;
constexpr uint32_t kVerifyBytes = 64 * 1024;

// What a disk that was taken away answers: its target is not there, or its commands ended with it.
bool SaysGone(const perf::ScsiCompletion& answer) {
  if (answer.response != perf::wire::kScsiOk) return true;
  return answer.status == scsi::kTaskAborted || answer.sense_key() == scsi::kAbortedCommand ||
         answer.Is(scsi::kIllegalRequest, scsi::kAscLunNotSupported);
}

}  // namespace

Status ScsiLoad::AddDisk(uint8_t target, perf::StampedBlocks& blocks) {
  auto disk = std::make_unique<Disk>();
  disk->target = target;
  disk->blocks = &blocks;
  const uint32_t count = driver_.request_queues() * kDepth;
  const uint64_t share = blocks.disk_bytes() / blocks.block_bytes() / count;
  for (uint32_t i = 0; i < count; ++i) {
    Lane lane;
    if (free_buffers_.empty()) {
      auto buffer = driver_.AllocateBuffer(kBytesMax);
      if (!buffer) return std::move(buffer).error();
      lane.buffer_gpa = *buffer;
    } else {
      lane.buffer_gpa = free_buffers_.back();
      free_buffers_.pop_back();
    }
    lane.disk = disk.get();
    lane.queue = static_cast<uint16_t>(i % driver_.request_queues());
    lane.first_block = i * share;
    lane.block_count = share;
    lanes_.push_back(lane);
  }
  disks_[target] = std::move(disk);
  return Ok{};
}

void ScsiLoad::RemoveDisk(uint8_t target) {
  const Disk* disk = disks_.at(target).get();
  for (const Lane& lane : lanes_) {
    if (lane.disk == disk) free_buffers_.push_back(lane.buffer_gpa);
  }
  std::erase_if(lanes_, [&](const Lane& lane) { return lane.disk == disk; });
  disks_.erase(target);
}

void ScsiLoad::Choose(Lane& lane) {
  perf::StampedBlocks& model = *lane.disk->blocks;
  const uint64_t blocks_max = std::min<uint64_t>(lane.block_count, kBytesMax / model.block_bytes());
  // Small ones as often as large ones.
  lane.blocks =
      static_cast<uint32_t>(random_.Between(1, std::max<uint64_t>(1, blocks_max >> random_.Below(6))));
  lane.lba = lane.first_block + random_.Below(lane.block_count - lane.blocks + 1);
  const uint64_t dice = random_.Below(100);
  lane.op = dice < 45 ? Op::kRead : dice < 90 ? Op::kWrite : dice < 96 ? Op::kZero : Op::kSync;
  const uint64_t offset = lane.lba * model.block_bytes();
  const uint64_t length = uint64_t{lane.blocks} * model.block_bytes();
  if (lane.op == Op::kWrite) model.BeginWrite(offset, driver_.memory().Span(lane.buffer_gpa, length));
  if (lane.op == Op::kZero) model.BeginZero(offset, length);
}

bool ScsiLoad::Submit(size_t index) {
  Lane& lane = lanes_[index];
  if (!lane.again) Choose(lane);
  lane.again = true;
  const uint32_t bytes = lane.blocks * lane.disk->blocks->block_bytes();
  const perf::Segment data{lane.buffer_gpa, bytes, lane.op == Op::kRead};
  perf::ScsiIo io{.lun = scsi::LunOf(lane.disk->target), .token = index};
  const uint8_t fua = random_.Chance(1, 8) ? scsi::kFua : uint8_t{0};
  switch (lane.op) {
    case Op::kRead:
      io.cdb = random_.Chance(1, 2)
                   ? scsi::Read16(lane.lba, lane.blocks, fua)
                   : scsi::Read10(static_cast<uint32_t>(lane.lba), static_cast<uint16_t>(lane.blocks), fua);
      io.in = {&data, 1};
      break;
    case Op::kWrite:
      io.cdb = random_.Chance(1, 2) ? scsi::Write16(lane.lba, lane.blocks, fua)
                                    : scsi::Write12(static_cast<uint32_t>(lane.lba), lane.blocks, fua);
      io.out = {&data, 1};
      break;
    case Op::kZero:
      io.cdb = scsi::WriteSame16(lane.lba, lane.blocks, scsi::kSameNdob);
      break;
    case Op::kSync:
      io.cdb = scsi::SynchronizeCache16();
      break;
  }
  lane.busy = driver_.Submit(lane.queue, io);
  lane.again = !lane.busy;
  return lane.busy;
}

Status ScsiLoad::Complete(const perf::ScsiCompletion& completion) {
  Lane& lane = lanes_[completion.token];
  lane.busy = false;
  perf::StampedBlocks& model = *lane.disk->blocks;
  const uint64_t offset = lane.lba * model.block_bytes();
  const uint64_t length = uint64_t{lane.blocks} * model.block_bytes();
  const auto describe = [&] {
    return fmt::format("request {} for {} blocks at {} of target {} on queue {}", static_cast<int>(lane.op),
                       lane.blocks, lane.lba, lane.disk->target, lane.queue);
  };
  if (!completion.good()) {
    if (completion.response == perf::wire::kScsiOk && completion.sense_key() == scsi::kUnitAttention) {
      lane.again = true;
      return Ok{};
    }
    if (lane.disk->may_go && SaysGone(completion)) {
      lane.disk->gone = true;
      return Ok{};
    }
    return Error(ErrorCode::kIo, describe() + ": " + completion.ToString());
  }
  if (lane.op == Op::kWrite || lane.op == Op::kZero) model.Acknowledge(offset, length);
  if (lane.op == Op::kRead) {
    const auto finding = model.Check(offset, driver_.memory().Span(lane.buffer_gpa, length));
    if (!finding.ok()) return Error(ErrorCode::kDataLoss, describe() + ": " + finding.ToString());
  }
  return Ok{};
}

Status ScsiLoad::Poll(uint32_t* busy) {
  std::array<perf::ScsiCompletion, 32> completions;
  Status first;
  for (uint16_t queue = 0; queue < driver_.request_queues(); ++queue) {
    const size_t count = driver_.Poll(queue, completions);
    for (size_t i = 0; i < count; ++i) {
      Status status = Complete(completions[i]);
      if (!status && first) first = status;
    }
    *busy -= static_cast<uint32_t>(count);
  }
  return first;
}

Status ScsiLoad::Run(uint64_t requests) {
  uint64_t left = requests;
  uint32_t busy = 0;
  Status result;
  for (;;) {
    for (size_t i = 0; i < lanes_.size() && left > 0; ++i) {
      if (lanes_[i].busy || lanes_[i].disk->gone || !Submit(i)) continue;
      ++busy;
      --left;
    }
    for (uint16_t queue = 0; queue < driver_.request_queues(); ++queue) driver_.Kick(queue);
    if (busy == 0) return result;
    if (Status waited = driver_.Wait(kScsiTimeoutNs); !waited) return waited;
    if (Status health = driver_.Health(); !health) return health;
    // The first error is told when everything has been answered: nothing of this round is left behind.
    if (Status polled = Poll(&busy); !polled && result) {
      result = polled;
      left = 0;
    }
  }
}

Status ScsiLoad::Verify(uint8_t target) {
  perf::StampedBlocks& model = *disks_.at(target)->blocks;
  const perf::ScsiDriver::Capacity disk{model.disk_bytes() / model.block_bytes(), model.block_bytes()};
  std::vector<uint8_t> data(kVerifyBytes);
  for (uint64_t at = 0; at < model.disk_bytes(); at += data.size()) {
    data.resize(std::min<uint64_t>(data.size(), model.disk_bytes() - at));
    Status read = driver_.ReadSync(scsi::LunOf(target), disk, at / disk.block_bytes, data);
    if (!read) return read;
    const auto finding = model.Check(at, data);
    if (!finding.ok()) return Error(ErrorCode::kDataLoss, "in the end: " + finding.ToString());
  }
  return Ok{};
}

}  // namespace cleat::system_test
