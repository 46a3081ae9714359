// SPDX-License-Identifier: Apache-2.0
#include "perf/driver/disk_port.h"

#include <algorithm>
#include <array>

#include "perf/wire/virtio_blk.h"

namespace cleat::perf {
namespace {

constexpr size_t kBatch = 32;

BlkOp BlkOpOf(DiskOp op) {
  switch (op) {
    case DiskOp::kRead:
      return BlkOp::kRead;
    case DiskOp::kWrite:
      return BlkOp::kWrite;
    case DiskOp::kZero:
      return BlkOp::kWriteZeroes;
    case DiskOp::kFlush:
      return BlkOp::kFlush;
  }
  return BlkOp::kFlush;
}

DiskAnswer AnswerOf(const ScsiCompletion& completion) {
  DiskAnswer answer{.token = completion.token};
  answer.code = uint64_t{completion.response} << 32 | uint64_t{completion.status} << 24 |
                uint64_t{completion.sense_key()} << 16 | completion.additional_sense();
  if (completion.good()) {
    answer.outcome = DiskAnswer::Outcome::kDone;
  } else if (completion.response == wire::kScsiOk && completion.status == scsi::kCheckCondition &&
             completion.sense_key() == scsi::kUnitAttention) {
    answer.outcome = DiskAnswer::Outcome::kAgain;
  }
  return answer;
}

}  // namespace

const char* DiskOpName(DiskOp op) {
  switch (op) {
    case DiskOp::kRead:
      return "read";
    case DiskOp::kWrite:
      return "write";
    case DiskOp::kZero:
      return "write of zeroes";
    case DiskOp::kFlush:
      return "flush";
  }
  return "request";
}

bool BlkPort::Submit(uint16_t queue, const DiskRequest& request) {
  return driver_.Submit(queue, {.op = BlkOpOf(request.op),
                                .offset_bytes = request.offset_bytes,
                                .length_bytes = request.length_bytes,
                                .data_gpa = request.data_gpa,
                                .token = request.token});
}

size_t BlkPort::Poll(uint16_t queue, std::span<DiskAnswer> answers) {
  if (!driver_.awake(queue)) return 0;
  std::array<BlkCompletion, kBatch> completions;
  const size_t count =
      driver_.Poll(queue, std::span(completions).first(std::min(answers.size(), completions.size())));
  for (size_t i = 0; i < count; ++i) {
    const bool good = completions[i].status == wire::kBlkOk;
    answers[i] = {.token = completions[i].token,
                  .outcome = good ? DiskAnswer::Outcome::kDone : DiskAnswer::Outcome::kFailed,
                  .code = completions[i].status};
  }
  return count;
}

bool ScsiPort::Submit(uint16_t queue, const DiskRequest& request) {
  const uint64_t lba = request.offset_bytes / block_bytes_;
  const uint32_t blocks = request.length_bytes / block_bytes_;
  const Segment data{request.data_gpa, request.length_bytes, request.op == DiskOp::kRead};
  ScsiIo io{.lun = lun_, .token = request.token};
  switch (request.op) {
    case DiskOp::kRead:
      io.cdb = scsi::Read16(lba, blocks);
      io.in = {&data, 1};
      break;
    case DiskOp::kWrite:
      io.cdb = scsi::Write16(lba, blocks);
      io.out = {&data, 1};
      break;
    case DiskOp::kZero:
      io.cdb = scsi::WriteSame16(lba, blocks, scsi::kSameNdob);
      break;
    case DiskOp::kFlush:
      io.cdb = scsi::SynchronizeCache16();
      break;
  }
  return driver_.Submit(queue, io);
}

size_t ScsiPort::Poll(uint16_t queue, std::span<DiskAnswer> answers) {
  if (!driver_.awake(static_cast<uint16_t>(wire::kScsiFirstRequestQueue + queue))) return 0;
  std::array<ScsiCompletion, kBatch> completions;
  const size_t count =
      driver_.Poll(queue, std::span(completions).first(std::min(answers.size(), completions.size())));
  for (size_t i = 0; i < count; ++i) answers[i] = AnswerOf(completions[i]);
  return count;
}

}  // namespace cleat::perf
