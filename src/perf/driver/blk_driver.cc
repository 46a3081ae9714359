// SPDX-License-Identifier: Apache-2.0
// Set-up and the I/O path. The synchronous helpers are in blk_driver_sync.cc.
#include "perf/driver/blk_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "perf/wire/vhost_user.h"

namespace cleat::perf {

Result<std::unique_ptr<BlkDriver>> BlkDriver::Start(Frontend& frontend, GuestMemory& memory,
                                                    const BlkOptions& options) {
  if (options.num_queues == 0) return Error(ErrorCode::kInvalidArgument, "a driver needs a queue at least");
  CLEAT_TRY(Connect(frontend));
  std::unique_ptr<BlkDriver> driver(new BlkDriver(frontend, memory, options));
  CLEAT_TRY(driver->Begin(options));
  return driver;
}

Status BlkDriver::Begin(const BlkOptions& options) {
  CLEAT_TRY(Negotiate(options.features));
  if ((frontend_.protocol_features() & wire::kProtocolConfig) != 0) {
    CLEAT_TRY(RefreshConfig());
  }
  const uint16_t device_queues = has(wire::kBlkMq) ? config_.num_queues : uint16_t{1};
  if (options.num_queues > std::min(device_queues, frontend_.queues_max())) {
    return Error(ErrorCode::kInvalidArgument,
                 fmt::format("{} queues wanted, the device has {} and the back end allows {}",
                             options.num_queues, device_queues, frontend_.queues_max()));
  }
  Settings settings{.area_bytes = sizeof(RequestArea)};
  if (has(wire::kBlkSegMax) && config_.seg_max > 0) settings.seg_max = config_.seg_max;
  if (has(wire::kBlkSizeMax) && config_.size_max > 0) settings.piece_bytes_max = config_.size_max;
  CLEAT_TRY(MakeQueues(options.num_queues, settings));
  return StartFresh();
}

Status BlkDriver::RefreshConfig() {
  CLEAT_ASSIGN(config_, frontend_.GetBlkConfig());
  return Ok{};
}

bool BlkDriver::Submit(uint16_t queue, const BlkIo& io) {
  CLEAT_DCHECK(io.offset_bytes % wire::kSectorBytes == 0);
  const uint64_t sector = io.offset_bytes / wire::kSectorBytes;
  switch (io.op) {
    case BlkOp::kRead:
    case BlkOp::kWrite: {
      const bool read = io.op == BlkOp::kRead;
      const Segment data{io.data_gpa, io.length_bytes, read};
      return SubmitRaw(queue, read ? wire::kBlkIn : wire::kBlkOut, sector, {&data, 1}, io.token);
    }
    case BlkOp::kFlush:
      return SubmitRaw(queue, wire::kBlkTypeFlush, 0, {}, io.token);
    case BlkOp::kGetId: {
      const Segment data{io.data_gpa, wire::kBlkIdBytes, true};
      return SubmitRaw(queue, wire::kBlkGetId, 0, {&data, 1}, io.token);
    }
    case BlkOp::kDiscard:
    case BlkOp::kWriteZeroes: {
      const Slot* slot = NextSlot(queue);
      if (slot == nullptr) return false;
      const bool zeroes = io.op == BlkOp::kWriteZeroes;
      Area<RequestArea>(*slot).range = {sector, io.length_bytes / wire::kSectorBytes,
                                        zeroes && io.unmap ? wire::kBlkRangeUnmap : 0};
      const Segment data{slot->area_gpa + offsetof(RequestArea, range), sizeof(wire::BlkRange), false};
      return SubmitRaw(queue, zeroes ? wire::kBlkTypeWriteZeroes : wire::kBlkTypeDiscard, 0, {&data, 1},
                       io.token);
    }
  }
  return false;
}

bool BlkDriver::SubmitRaw(uint16_t queue, uint32_t type, uint64_t sector, std::span<const Segment> data,
                          uint64_t token) {
  const Slot* slot = NextSlot(queue);
  if (slot == nullptr) return false;
  Area<RequestArea>(*slot).header = {type, 0, sector};
  Area<RequestArea>(*slot).status = BlkCompletion::kNoStatus;
  const bool in = !data.empty() && data[0].writable;
  const std::span<const Segment> none;
  return Enqueue(queue, kBlkShape, in ? none : data, in ? data : none, token);
}

BlkCompletion BlkDriver::Read(uint16_t /*queue*/, const Slot& slot, uint32_t written_bytes) {
  const uint8_t status = Area<RequestArea>(slot).status;
  if (status != wire::kBlkOk) {
    ++stats_.failed;
  } else if (written_bytes != slot.expected_written_bytes) {
    ++stats_.used_length_mismatches;
  }
  return {slot.token, status, written_bytes};
}

}  // namespace cleat::perf
