// SPDX-License-Identifier: Apache-2.0
// One request at a time, for tests that read like a shell session.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "perf/driver/blk_driver.h"
#include "perf/wire/virtio_blk.h"

namespace cleat::perf {
namespace {

const char* Name(BlkOp op) {
  switch (op) {
    case BlkOp::kRead:
      return "read";
    case BlkOp::kWrite:
      return "write";
    case BlkOp::kFlush:
      return "flush";
    case BlkOp::kDiscard:
      return "discard";
    case BlkOp::kWriteZeroes:
      return "write zeroes";
    case BlkOp::kGetId:
      return "get id";
  }
  return "request";
}

Error StatusError(const BlkIo& io, uint8_t status) {
  const std::string what = fmt::format("{} of {} bytes at {}", Name(io.op), io.length_bytes, io.offset_bytes);
  switch (status) {
    case wire::kBlkIoError:
      return Error(ErrorCode::kIo, what + ": the device reports an I/O error");
    case wire::kBlkUnsupported:
      return Error(ErrorCode::kUnimplemented, what + ": not supported by the device");
    default:
      return Error(ErrorCode::kInternal, fmt::format("{}: status {:#x}, which means nothing", what, status));
  }
}

}  // namespace

Result<BlkCompletion> BlkDriver::Execute(uint16_t queue, const BlkIo& io) {
  BlkIo own = io;
  own.token = kSyncTokenBase + sync_token_++;
  if (!Submit(queue, own)) {
    return Error(ErrorCode::kResourceExhausted, fmt::format("{} of {} bytes does not fit into queue {} now",
                                                            Name(io.op), io.length_bytes, queue));
  }
  Kick(queue);
  return WaitFor(queue, own.token);
}

Result<BlkCompletion> BlkDriver::ExecuteRaw(uint16_t queue, uint32_t type, uint64_t sector,
                                            std::span<const Segment> data) {
  const uint64_t token = kSyncTokenBase + sync_token_++;
  if (!SubmitRaw(queue, type, sector, data, token)) {
    return Error(ErrorCode::kResourceExhausted,
                 fmt::format("the request does not fit into queue {} now", queue));
  }
  Kick(queue);
  return WaitFor(queue, token);
}

Status BlkDriver::RunSync(uint16_t queue, const BlkIo& io) {
  CLEAT_ASSIGN(auto done, Execute(queue, io));
  if (done.status != wire::kBlkOk) return StatusError(io, done.status);
  return Ok{};
}

Status BlkDriver::ReadSync(uint64_t offset_bytes, std::span<uint8_t> data, uint16_t queue) {
  BlkIo io{.op = BlkOp::kRead, .offset_bytes = offset_bytes, .data_gpa = sync_gpa_};
  while (!data.empty()) {
    io.length_bytes = static_cast<uint32_t>(std::min<size_t>(data.size(), kSyncChunkBytes));
    CLEAT_TRY(RunSync(queue, io));
    std::memcpy(data.data(), memory_.Span(sync_gpa_, io.length_bytes).data(), io.length_bytes);
    data = data.subspan(io.length_bytes);
    io.offset_bytes += io.length_bytes;
  }
  return Ok{};
}

Status BlkDriver::WriteSync(uint64_t offset_bytes, std::span<const uint8_t> data, uint16_t queue) {
  BlkIo io{.op = BlkOp::kWrite, .offset_bytes = offset_bytes, .data_gpa = sync_gpa_};
  while (!data.empty()) {
    io.length_bytes = static_cast<uint32_t>(std::min<size_t>(data.size(), kSyncChunkBytes));
    std::memcpy(memory_.Span(sync_gpa_, io.length_bytes).data(), data.data(), io.length_bytes);
    CLEAT_TRY(RunSync(queue, io));
    data = data.subspan(io.length_bytes);
    io.offset_bytes += io.length_bytes;
  }
  return Ok{};
}

Status BlkDriver::FlushSync(uint16_t queue) {
  return RunSync(queue, {.op = BlkOp::kFlush});
}

Status BlkDriver::DiscardSync(uint64_t offset_bytes, uint32_t length_bytes, uint16_t queue) {
  return RunSync(queue, {.op = BlkOp::kDiscard, .offset_bytes = offset_bytes, .length_bytes = length_bytes});
}

Status BlkDriver::WriteZeroesSync(uint64_t offset_bytes, uint32_t length_bytes, bool unmap, uint16_t queue) {
  return RunSync(queue, {.op = BlkOp::kWriteZeroes,
                         .offset_bytes = offset_bytes,
                         .length_bytes = length_bytes,
                         .unmap = unmap});
}

Result<std::string> BlkDriver::GetIdSync(uint16_t queue) {
  const BlkIo io{.op = BlkOp::kGetId, .data_gpa = sync_gpa_};
  CLEAT_TRY(RunSync(queue, io));
  std::array<char, wire::kBlkIdBytes> id{};
  std::memcpy(id.data(), memory_.Span(sync_gpa_, id.size()).data(), id.size());
  // Not terminated when all 20 bytes are in use (virtio 1.2, 5.2.6).
  return std::string(id.data(), strnlen(id.data(), id.size()));
}

}  // namespace cleat::perf
