// SPDX-License-Identifier: Apache-2.0
#include "nvme/host/requests/command_maker.h"

#include <algorithm>

#include "base/check.h"
#include "block/segments.h"

namespace cleat::nvme::host {
namespace {

using block::Op;
using block::Request;
using block::Segment;

// Never written, so that all reactors may send from it.
const std::shared_ptr<block::MemoryRegion>& Zeroes() {
  alignas(4096) static uint8_t bytes[CommandMaker::kZeroBytes];
  static const std::shared_ptr<block::MemoryRegion> region =
      block::MemoryRegion::Borrow(bytes, sizeof(bytes));
  return region;
}

// A command on the blocks of [first_byte, first_byte + bytes).
fabrics::SubmissionEntry On(Opcode opcode, const Request& request, const PathFormat& format,
                            uint64_t first_byte, uint64_t bytes, uint32_t flags = 0) {
  const uint32_t shift = format.limits.block_shift();
  return fabrics::EntryOf(OnBlocks(opcode, format.nsid, first_byte >> shift,
                                   static_cast<uint32_t>(bytes >> shift),
                                   flags | (request.fua ? kForceUnitAccess : 0U)));
}

}  // namespace

CommandMaker::CommandMaker() : lists_region_(block::MemoryRegion::Borrow(lists_.data(), sizeof(lists_))) {
  for (uint32_t i = 0; i < kListsMax; ++i) free_[i] = static_cast<uint8_t>(kListsMax - 1 - i);
}

bool CommandMaker::Make(const Request& request, uint64_t begun_bytes, const PathFormat& format, Made& made) {
  switch (request.op) {
    case Op::kRead:
    case Op::kWrite:
      return MakeTransfer(request, begun_bytes, format, made);
    case Op::kWriteZeroes:
      return MakeZeroes(request, begun_bytes, format, made);
    case Op::kDiscard:
      return MakeDiscard(request, begun_bytes, format, made);
    default:
      CLEAT_CHECK(request.op == Op::kFlush);
      made.command.entry = fabrics::EntryOf(Flush(format.nsid));
      return true;
  }
}

bool CommandMaker::MakeTransfer(const Request& request, uint64_t begun_bytes, const PathFormat& format,
                                Made& made) {
  const uint64_t first_byte = request.offset_bytes + begun_bytes;
  made.bytes = format.limits.TransferBytes(first_byte, request.length_bytes - begun_bytes);
  std::span<const Segment> data = request.segments;
  if (made.bytes != request.length_bytes) [[unlikely]] {
    data = CutData(request, begun_bytes, format.limits.block_bytes(), made);
    if (data.empty()) return false;
  }
  const bool write = request.op == Op::kWrite;
  (write ? made.command.to_target : made.command.from_target) = data;
  made.command.entry = On(write ? Opcode::kWrite : Opcode::kRead, request, format, first_byte, made.bytes);
  return true;
}

// The data of the command, as much as a list holds: made.bytes may become less. Empty: no list is free.
std::span<const Segment> CommandMaker::CutData(const Request& request, uint64_t begun_bytes,
                                               uint32_t block_bytes, Made& made) {
  if (free_count_ == 0) return {};
  std::array<Segment, kListSegmentsMax>& out = lists_[free_[free_count_ - 1]].segments;
  uint64_t skip_bytes = begun_bytes;
  uint64_t bytes = 0;
  uint32_t count = 0;
  for (const Segment& segment : request.segments) {
    if (bytes == made.bytes || count == kListSegmentsMax) break;
    if (skip_bytes >= segment.length_bytes) {
      skip_bytes -= segment.length_bytes;
      continue;
    }
    const uint64_t piece = std::min(segment.length_bytes - skip_bytes, made.bytes - bytes);
    out[count++] = {segment.region, segment.offset_bytes + skip_bytes, static_cast<uint32_t>(piece)};
    bytes += piece;
    skip_bytes = 0;
  }
  uint64_t beyond = bytes % block_bytes;
  if (beyond == bytes) return CutWide(request, begun_bytes, made);
  made.bytes = bytes - beyond;
  while (beyond > 0) {
    Segment& last = out[count - 1];
    const auto cut = static_cast<uint32_t>(std::min<uint64_t>(beyond, last.length_bytes));
    last.length_bytes -= cut;
    beyond -= cut;
    if (last.length_bytes == 0) --count;
  }
  Take(made);
  return {out.data(), count};
}

std::span<const Segment> CommandMaker::CutWide(const Request& request, uint64_t begun_bytes, Made& made) {
  if (wide_in_use_) return {};
  wide_in_use_ = true;
  made.list = kWide;
  wide_.resize(std::max(wide_.size(), request.segments.size()));
  const uint32_t count = block::Cut(request.segments, begun_bytes, made.bytes, wide_.data());
  return {wide_.data(), count};
}

// Zeroes go by the command of that name, or as a write where the target has none.
bool CommandMaker::MakeZeroes(const Request& request, uint64_t begun_bytes, const PathFormat& format,
                              Made& made) {
  const uint64_t first_byte = request.offset_bytes + begun_bytes;
  const uint64_t left_bytes = request.length_bytes - begun_bytes;
  if (const uint64_t most = format.limits.write_zeroes_bytes_max(); most > 0) {
    made.bytes = std::min(left_bytes, most);
    const bool deallocate = request.may_unmap && format.write_zeroes_deallocates;
    made.command.entry =
        On(Opcode::kWriteZeroes, request, format, first_byte, made.bytes, deallocate ? kDeallocate : 0U);
    return true;
  }
  List* const list = Take(made);
  if (list == nullptr) return false;
  made.bytes = format.limits.TransferBytes(first_byte, std::min<uint64_t>(left_bytes, kZeroBytes));
  list->segments[0] = {Zeroes().get(), 0, static_cast<uint32_t>(made.bytes)};
  made.command.to_target = {list->segments.data(), 1};
  made.command.entry = On(Opcode::kWrite, request, format, first_byte, made.bytes);
  return true;
}

bool CommandMaker::MakeDiscard(const Request& request, uint64_t begun_bytes, const PathFormat& format,
                               Made& made) {
  List* const list = Take(made);
  if (list == nullptr) return false;
  const uint32_t shift = format.limits.block_shift();
  made.bytes = std::min(request.length_bytes - begun_bytes, format.limits.discard_bytes_max());
  list->range = {.attributes = 0,
                 .blocks = static_cast<uint32_t>(made.bytes >> shift),
                 .first_block = (request.offset_bytes + begun_bytes) >> shift};
  const auto offset = static_cast<uint64_t>(reinterpret_cast<const uint8_t*>(&list->range) -
                                            reinterpret_cast<const uint8_t*>(lists_.data()));
  list->segments[0] = {lists_region_.get(), offset, sizeof(DatasetRange)};
  made.command.to_target = {list->segments.data(), 1};
  made.command.entry = fabrics::EntryOf(Deallocate(format.nsid));
  return true;
}

CommandMaker::List* CommandMaker::Take(Made& made) {
  if (free_count_ == 0) return nullptr;
  made.list = free_[--free_count_];
  return &lists_[made.list];
}

void CommandMaker::GiveBack(uint8_t list) {
  if (list == kNoList) [[likely]]
    return;
  if (list == kWide) {
    wide_in_use_ = false;
  } else {
    free_[free_count_++] = list;
  }
}

}  // namespace cleat::nvme::host
