// SPDX-License-Identifier: Apache-2.0
#include "guest_request.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "perf/driver/scsi_driver.h"

namespace cleat::sim {
namespace wire = perf::wire;
namespace scsi = perf::scsi;
using Op = OpenIo::Op;

namespace {

constexpr uint8_t kUnanswered = 0xff;

uint32_t BlkTypeOf(Op op) {
  switch (op) {
    case Op::kRead:
      return wire::kBlkIn;
    case Op::kWrite:
      return wire::kBlkOut;
    case Op::kFlush:
      return wire::kBlkTypeFlush;
    case Op::kDiscard:
      return wire::kBlkTypeDiscard;
    case Op::kWriteZeroes:
      return wire::kBlkTypeWriteZeroes;
    case Op::kGetId:
      return wire::kBlkGetId;
    case Op::kCompareAndWrite:
    case Op::kResetUnit:
      break;
  }
  CLEAT_CHECK(false);  // there is none
  return 0;
}

// UNMAP's parameter list with one descriptor (SBC-4 5.32).
constexpr uint16_t kUnmapBytes = 24;

void PutBig(uint8_t* at, size_t bytes, uint64_t value) {
  for (size_t i = 0; i < bytes; ++i) at[i] = static_cast<uint8_t>(value >> (8 * (bytes - 1 - i)));
}

scsi::Cdb CdbOf(const OpenIo& io) {
  const auto lba = static_cast<uint32_t>(io.block);
  const auto blocks = static_cast<uint16_t>(io.count);
  switch (io.op) {
    case Op::kRead:
      return scsi::Read10(lba, blocks);
    case Op::kWrite:
      return scsi::Write10(lba, blocks);
    case Op::kFlush:
      return scsi::SynchronizeCache10();
    case Op::kDiscard:
      return scsi::Unmap(kUnmapBytes);
    case Op::kWriteZeroes:
      return scsi::WriteSame16(lba, blocks, scsi::kSameNdob);
    case Op::kCompareAndWrite:
      return scsi::CompareAndWrite(lba, static_cast<uint8_t>(blocks));
    case Op::kGetId:
    case Op::kResetUnit:
      break;
  }
  CLEAT_CHECK(false);  // there is none
  return {};
}

}  // namespace

const char* OpenIo::name() const {
  constexpr const char* kNames[] = {
      "read", "write", "flush", "discard", "write zeroes", "get id", "compare and write", "reset"};
  return kNames[static_cast<size_t>(op)];
}

DiskModel::Kind OpenIo::kind() const {
  if (op == Op::kWrite || op == Op::kCompareAndWrite) return DiskModel::Kind::kData;
  return op == Op::kDiscard ? DiskModel::Kind::kDiscard : DiskModel::Kind::kZeroes;
}

void OpenIo::Abandon(DiskModel::Fate fate) const {
  if (op == Op::kRead) model->CancelRead(read);
  if (stamp != 0) model->EndWrite(stamp, kind(), block, count, fate);
}

uint64_t GuestRequest::area_bytes() const {
  return device_ == GuestDeviceType::kBlk ? sizeof(perf::RequestArea) : sizeof(perf::ScsiArea);
}

uint32_t GuestRequest::answer_bytes() const {
  return device_ == GuestDeviceType::kBlk ? 1 : sizeof(wire::ScsiAnswer);
}

std::vector<perf::Segment> GuestRequest::PutData(const OpenIo& io, uint64_t buffer_gpa) const {
  const auto bytes = static_cast<uint32_t>(io.count * kBlockBytes);
  const auto put = [&](uint64_t gpa, uint64_t stamp) {
    for (uint64_t i = 0; i < io.count; ++i) {
      FillBlock(memory_.Span(gpa + i * kBlockBytes, kBlockBytes), io.block + i, stamp);
    }
  };
  switch (io.op) {
    case Op::kFlush:
    case Op::kResetUnit:
      return {};
    case Op::kGetId:
      return {{buffer_gpa, wire::kBlkIdBytes, true}};
    case Op::kRead:
      std::ranges::fill(memory_.Span(buffer_gpa, bytes), uint8_t{0xa5});
      return {{buffer_gpa, bytes, true}};
    case Op::kWrite:
      put(buffer_gpa, io.stamp == 0 ? UINT64_MAX : io.stamp);
      return {{buffer_gpa, bytes, false}};
    case Op::kCompareAndWrite:
      put(buffer_gpa, io.compared);
      put(buffer_gpa + bytes, io.stamp);
      return {{buffer_gpa, 2 * bytes, false}};
    case Op::kDiscard:
    case Op::kWriteZeroes:
      return PutRange(io, buffer_gpa);
  }
  return {};
}

std::vector<perf::Segment> GuestRequest::PutRange(const OpenIo& io, uint64_t buffer_gpa) const {
  if (device_ == GuestDeviceType::kBlk) {
    const wire::BlkRange range{io.block, static_cast<uint32_t>(io.count), 0};
    std::memcpy(memory_.Span(buffer_gpa, sizeof(range)).data(), &range, sizeof(range));
    return {{buffer_gpa, sizeof(range), false}};
  }
  if (io.op == Op::kWriteZeroes) return {};
  uint8_t* list = memory_.Span(buffer_gpa, kUnmapBytes).data();
  std::memset(list, 0, kUnmapBytes);
  PutBig(list, 2, kUnmapBytes - 2);
  PutBig(list + 2, 2, kUnmapBytes - 8);
  PutBig(list + 8, 8, io.block);
  PutBig(list + 16, 4, io.count);
  return {{buffer_gpa, kUnmapBytes, false}};
}

void GuestRequest::PutHeader(const OpenIo& io, uint64_t area_gpa, uint64_t tag) const {
  if (device_ == GuestDeviceType::kBlk) {
    const bool transfer = io.op == Op::kRead || io.op == Op::kWrite;
    memory_.At<perf::RequestArea>(area_gpa)->header = {BlkTypeOf(io.op), 0, transfer ? io.block : 0};
  } else {
    wire::ScsiHeader header{};
    const scsi::Lun lun = scsi::LunOf(0);
    const scsi::Cdb cdb = CdbOf(io);
    std::copy(lun.begin(), lun.end(), header.lun);
    std::copy(cdb.begin(), cdb.end(), header.cdb);
    header.id = tag;
    memory_.At<perf::ScsiArea>(area_gpa)->header = header;
  }
  AnswerByte(area_gpa) = kUnanswered;
}

std::vector<perf::Segment> GuestRequest::PutReset(uint64_t area_gpa) const {
  wire::ScsiTmfRequest request{wire::kScsiTmf, wire::kTmfLunReset, {}, 0};
  const scsi::Lun lun = scsi::LunOf(0);
  std::copy(lun.begin(), lun.end(), request.lun);
  std::memcpy(memory_.Span(area_gpa, sizeof(request)).data(), &request, sizeof(request));
  AnswerByte(area_gpa) = kUnanswered;
  const uint64_t answer_gpa =
      area_gpa + offsetof(perf::ScsiArea, answer) + offsetof(wire::ScsiAnswer, response);
  return {{area_gpa, sizeof(request), false}, {answer_gpa, 1, true}};
}

bool GuestRequest::Plan(perf::LayoutPlanner& planner, uint64_t area_gpa, std::span<const perf::Segment> data,
                        perf::RequestLayout* layout) const {
  if (device_ == GuestDeviceType::kBlk) return planner.Plan(memory_, area_gpa, data, layout);
  const bool in = !data.empty() && data[0].writable;
  const std::span<const perf::Segment> none;
  return planner.Plan(memory_, area_gpa, perf::kScsiShape, in ? none : data, in ? data : none, layout);
}

uint8_t& GuestRequest::AnswerByte(uint64_t area_gpa) const {
  return device_ == GuestDeviceType::kBlk ? memory_.At<perf::RequestArea>(area_gpa)->status
                                          : memory_.At<perf::ScsiArea>(area_gpa)->answer.response;
}

GuestRequest::Outcome GuestRequest::Read(uint64_t area_gpa) const {
  if (device_ == GuestDeviceType::kBlk) {
    const uint8_t status = AnswerByte(area_gpa);
    return status == wire::kBlkOk        ? Outcome::kOk
           : status == wire::kBlkIoError ? Outcome::kFailed
                                         : Outcome::kNonsense;
  }
  const wire::ScsiAnswer& answer = memory_.At<perf::ScsiArea>(area_gpa)->answer;
  if (answer.response == wire::kScsiReset || answer.response == wire::kScsiAborted) return Outcome::kReset;
  if (answer.response == wire::kScsiBadTarget) return Outcome::kNoTarget;
  if (answer.response != wire::kScsiOk) return Outcome::kNonsense;
  if (answer.status == scsi::kGood) return Outcome::kOk;
  if (answer.status != scsi::kCheckCondition || answer.sense_bytes < 3) return Outcome::kNonsense;
  switch (answer.sense[2] & 0xf) {
    case scsi::kMediumError:
    case scsi::kHardwareError:
      return Outcome::kFailed;
    case scsi::kUnitAttention:
      return Outcome::kAttention;
    case scsi::kMiscompare:
      return Outcome::kMiscompare;
    case scsi::kAbortedCommand:
      return Outcome::kAborted;
    default:
      return Outcome::kNonsense;
  }
}

std::string GuestRequest::Describe(uint64_t area_gpa) const {
  if (device_ == GuestDeviceType::kBlk) return "status " + std::to_string(AnswerByte(area_gpa));
  const wire::ScsiAnswer& answer = memory_.At<perf::ScsiArea>(area_gpa)->answer;
  std::string text =
      "response " + std::to_string(answer.response) + ", status " + std::to_string(answer.status);
  if (answer.status == scsi::kGood || answer.response != wire::kScsiOk) return text;
  return text + ", sense " + std::to_string(answer.sense[2] & 0xf) + " " + std::to_string(answer.sense[12]) +
         " " + std::to_string(answer.sense[13]);
}

}  // namespace cleat::sim
