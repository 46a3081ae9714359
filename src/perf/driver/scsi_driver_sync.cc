// SPDX-License-Identifier: Apache-2.0
// One request at a time, for tests that read like a shell session.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "perf/driver/scsi_driver.h"
#include "perf/vhost_user/deadline.h"
#include "perf/wire/virtio_scsi.h"

namespace cleat::perf {
namespace {

constexpr uint32_t kHalfChunkBytes = kSyncChunkBytes / 2;
constexpr int kUnitAttentionsMax = 32;
constexpr uint8_t kNoDevice = 0x7f;  // INQUIRY's first byte: no logical unit here (SPC-5 6.6.2)

Error AnswerError(const char* what, const ScsiCompletion& answer) {
  return {ErrorCode::kIo, fmt::format("{}: {}", what, answer.ToString())};
}

}  // namespace

std::optional<uint32_t> ScsiCompletion::information() const {
  if (sense_bytes < 7 || (sense[0] & 0x80) == 0) return std::nullopt;
  return static_cast<uint32_t>(scsi::Big(sense, 3, 4));
}

std::string ScsiCompletion::ToString() const {
  if (response == kNoResponse) return "no answer";
  std::string text = fmt::format("response {}, status {:#x}, residual {}", response, status, residual);
  if (sense_bytes > 0) text += fmt::format(", sense {:#x}/{:#06x}", sense_key(), additional_sense());
  return text;
}

Result<ScsiCompletion> ScsiDriver::Execute(ScsiIo io, uint16_t queue) {
  io.token = kSyncTokenBase + sync_token_++;
  if (!Submit(queue, io)) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("command {:#04x} does not fit into request queue {} now", io.cdb[0], queue));
  }
  Kick(queue);
  return WaitFor(RingIndex(queue), io.token);
}

Result<ScsiCompletion> ScsiDriver::Execute(const scsi::Lun& lun, const scsi::Cdb& cdb,
                                           std::span<const uint8_t> out, std::span<uint8_t> in,
                                           uint16_t queue) {
  CLEAT_CHECK(out.size() <= kHalfChunkBytes && in.size() <= kHalfChunkBytes);
  const Segment out_segment{sync_gpa_, static_cast<uint32_t>(out.size()), false};
  const Segment in_segment{sync_gpa_ + kHalfChunkBytes, static_cast<uint32_t>(in.size()), true};
  ScsiIo io{.lun = lun, .cdb = cdb};
  if (!out.empty()) {
    std::memcpy(memory_.Span(out_segment.gpa, out.size()).data(), out.data(), out.size());
    io.out = {&out_segment, 1};
  }
  if (!in.empty()) {
    std::memcpy(memory_.Span(in_segment.gpa, in.size()).data(), in.data(), in.size());
    io.in = {&in_segment, 1};
  }
  Result<ScsiCompletion> done = Execute(io, queue);
  if (done && !in.empty()) {
    std::memcpy(in.data(), memory_.Span(in_segment.gpa, in.size()).data(), in.size());
  }
  return done;
}

Result<uint8_t> ScsiDriver::Tmf(wire::ScsiTmfType type, const scsi::Lun& lun, uint64_t tag) {
  const uint64_t token = kSyncTokenBase + sync_token_++;
  if (!SubmitTmf(type, lun, tag, token)) {
    return Error(ErrorCode::kResourceExhausted, "the control queue is full");
  }
  CLEAT_ASSIGN(auto done, WaitFor(wire::kScsiControlQueue, token));
  return done.response;
}

Result<std::vector<uint8_t>> ScsiDriver::Control(std::span<const uint8_t> request, uint32_t answer_bytes) {
  const Slot* slot = NextSlot(wire::kScsiControlQueue);
  CLEAT_CHECK(request.size() <= offsetof(ScsiArea, answer) && answer_bytes <= sizeof(wire::ScsiAnswer));
  if (slot == nullptr) return Error(ErrorCode::kResourceExhausted, "the control queue is full");
  const uint64_t token = kSyncTokenBase + sync_token_++;
  std::copy(request.begin(), request.end(), slot->area);
  const uint8_t* answer = slot->area + offsetof(ScsiArea, answer);
  std::fill_n(slot->area + offsetof(ScsiArea, answer), answer_bytes, ScsiCompletion::kNoResponse);
  const RequestShape shape{.header_bytes = static_cast<uint32_t>(request.size()),
                           .answer_offset = offsetof(ScsiArea, answer),
                           .answer_bytes = answer_bytes,
                           .answer_first = true};
  if (!Enqueue(wire::kScsiControlQueue, shape, {}, {}, token)) {
    return Error(ErrorCode::kResourceExhausted, "the control queue is full");
  }
  VirtioDriver::Kick(wire::kScsiControlQueue);
  CLEAT_TRY(WaitFor(wire::kScsiControlQueue, token));
  return std::vector<uint8_t>(answer, answer + answer_bytes);
}

Result<wire::ScsiEvent> ScsiDriver::WaitEvent(uint64_t timeout_ns) {
  const Deadline deadline(timeout_ns);
  for (;;) {
    Collect();
    if (!events_.empty()) {
      const wire::ScsiEvent event = events_.front();
      events_.pop_front();
      return event;
    }
    CLEAT_TRY(Health());
    if (deadline.passed()) return Error(ErrorCode::kDeadlineExceeded, "no event in time");
    KeepCompleted(wire::kScsiFirstRequestQueue);
    const uint64_t left_ns = static_cast<uint64_t>(deadline.LeftMs()) * kNsPerMs;
    Status waited = WaitRings(left_ns);
    if (!waited && waited.error().code != ErrorCode::kDeadlineExceeded) return std::move(waited).error();
  }
}

Result<ScsiDriver::Capacity> ScsiDriver::ReadCapacity(const scsi::Lun& lun) {
  std::array<uint8_t, 32> data{};
  CLEAT_ASSIGN(auto done, Execute(lun, scsi::ReadCapacity16(), {}, data));
  if (!done.good()) return AnswerError("READ CAPACITY (16)", done);
  return Capacity{scsi::Big(data, 0, 8) + 1, static_cast<uint32_t>(scsi::Big(data, 8, 4))};
}

Status ScsiDriver::ReadSync(const scsi::Lun& lun, const Capacity& disk, uint64_t lba,
                            std::span<uint8_t> data) {
  while (!data.empty()) {
    const std::span<uint8_t> piece = data.first(std::min<size_t>(data.size(), kHalfChunkBytes));
    const auto blocks = static_cast<uint32_t>(piece.size() / disk.block_bytes);
    CLEAT_ASSIGN(auto done, Execute(lun, scsi::Read16(lba, blocks), {}, piece));
    if (!done.good()) return AnswerError("READ (16)", done);
    data = data.subspan(piece.size());
    lba += blocks;
  }
  return Ok{};
}

Status ScsiDriver::WriteSync(const scsi::Lun& lun, const Capacity& disk, uint64_t lba,
                             std::span<const uint8_t> data) {
  while (!data.empty()) {
    const std::span<const uint8_t> piece = data.first(std::min<size_t>(data.size(), kHalfChunkBytes));
    const auto blocks = static_cast<uint32_t>(piece.size() / disk.block_bytes);
    CLEAT_ASSIGN(auto done, Execute(lun, scsi::Write16(lba, blocks), piece));
    if (!done.good()) return AnswerError("WRITE (16)", done);
    data = data.subspan(piece.size());
    lba += blocks;
  }
  return Ok{};
}

Result<std::vector<uint16_t>> ScsiDriver::ClearUnitAttentions(const scsi::Lun& lun) {
  std::vector<uint16_t> found;
  for (int i = 0; i < kUnitAttentionsMax; ++i) {
    CLEAT_ASSIGN(auto done, Execute(lun, scsi::TestUnitReady()));
    if (done.good()) return found;
    if (done.response != wire::kScsiOk || done.sense_key() != scsi::kUnitAttention) {
      return AnswerError("TEST UNIT READY", done);
    }
    found.push_back(done.additional_sense());
  }
  return Error(ErrorCode::kIo, "unit attentions without end");
}

Result<std::vector<uint8_t>> ScsiDriver::ScanTargets(uint8_t targets_max) {
  std::vector<uint8_t> found;
  for (uint8_t target = 0; target < targets_max; ++target) {
    std::array<uint8_t, 36> data{};
    CLEAT_ASSIGN(auto done, Execute(scsi::LunOf(target), scsi::Inquiry(data.size()), {}, data));
    if (done.response == wire::kScsiBadTarget) continue;
    if (!done.good()) return AnswerError("INQUIRY", done);
    if (data[0] != kNoDevice) found.push_back(target);
  }
  return found;
}

}  // namespace cleat::perf
