// SPDX-License-Identifier: Apache-2.0
// Commands of several requests, one after the other: VERIFY, WRITE AND VERIFY, WRITE SAME, UNMAP. Coroutines on the
// unit's reactor, each with the command's own block request; a command whose end is wished for (Command::abort)
// takes no further step. They end with End, after which nothing of them or of the transport's queue is touched.
#include <algorithm>
#include <array>
#include <cstring>

#include "block/submit_and_wait.h"
#include "scsi/bytes.h"
#include "scsi/unit_channel.h"

namespace cleat::scsi {
namespace {

// Storage that answers at once must not keep the reactor to itself.
constexpr uint32_t kStepsPerTurn = 16;

constexpr uint8_t kUnmapBit = 0x08;  // byte 1 of WRITE SAME
constexpr uint8_t kNdobBit = 0x01;   // byte 1 of WRITE SAME(16)
constexpr uint32_t kBlockBytesMax = 4096;

uint64_t WholeBlocks(uint64_t bytes, uint32_t block_bytes) {
  return bytes - bytes % block_bytes;
}

// How many of `bytes` bytes are the same, from the first on. `theirs` may change meanwhile: then it is not the same.
uint64_t EqualBytes(const uint8_t* ours, std::span<const block::Segment> theirs, uint64_t skip,
                    uint64_t bytes) {
  uint64_t equal = 0;
  bool same = true;
  block::ForEachPiece(theirs, skip, bytes, [&](const uint8_t* at, size_t length) {
    if (!same) return;
    const auto [mine, other] = std::mismatch(ours + equal, ours + equal + length, at);
    same = other == at + length;
    equal += static_cast<uint64_t>(other - at);
  });
  return equal;
}

}  // namespace

// One request of a command in flight. Nothing is started for one that was aborted.
Task<bool> UnitChannel::Step(Command& command, block::Op op, uint64_t offset_bytes, uint64_t bytes) {
  if (++steps_ % kStepsPerTurn == 0) co_await reactor_.Yield();
  if (command.abort != Abort::kNone) {
    SetOutcome(command, block::IoStatus::kAborted);
    co_return false;
  }
  command.op = op;
  command.offset_bytes = offset_bytes;
  command.length_bytes = bytes;
  block::SubmitAndWait submit(channel_, command);
  const block::IoStatus status = co_await submit;
  SetOutcome(command, status);
  co_return status == block::IoStatus::kOk;
}

// A discard or write zeroes as the storage takes it.
Task<bool> UnitChannel::InSteps(Command& command, block::Op op, uint64_t offset_bytes, uint64_t bytes,
                                uint64_t step_bytes_max) {
  const uint64_t step_bytes = WholeBlocks(step_bytes_max, geometry_.logical_block_bytes);
  while (bytes > 0) {
    const uint64_t length = std::min(bytes, step_bytes);
    if (!co_await Step(command, op, offset_bytes, length)) co_return false;
    offset_bytes += length;
    bytes -= length;
  }
  co_return true;
}

// ---- VERIFY (SBC-4 5.33), WRITE AND VERIFY (5.45)

void UnitChannel::StartVerify(Command& command) {
  const auto check = (command.cdb[1] & 0x06) >> 1;
  if (check == 2) {
    command.RefuseField({1, 2});
    return command.on_done(command);
  }
  if (command.blocks == 0) return command.on_done(command);
  command.transferred_bytes = ByteCheckBytes(command);
  Begin(command);
  Spawn(Verify(command, check == 0 ? Compare::kNothing : check == 1 ? Compare::kData : Compare::kOneBlock));
}

void UnitChannel::StartWriteAndVerify(Command& command) {
  const auto check = (command.cdb[1] & 0x06) >> 1;
  if (check >= 2) {
    command.RefuseField({1, 2});
    return command.on_done(command);
  }
  if (command.blocks == 0) return command.on_done(command);
  command.transferred_bytes = Bytes(command.blocks);
  Begin(command);
  Spawn(WriteAndVerify(command, check == 0 ? Compare::kNothing : Compare::kData));
}

Task<void> UnitChannel::Verify(Command& command, Compare compare) {
  co_await VerifyRange(command, compare);
  End(command);
}

Task<void> UnitChannel::WriteAndVerify(Command& command, Compare compare) {
  const uint64_t bytes = Bytes(command.blocks);
  command.segments = TakeFirst(command.data_out, bytes);
  command.fua = true;  // what is verified is the medium
  const bool written = co_await Step(command, block::Op::kWrite, Bytes(command.lba), bytes);
  command.fua = false;
  if (written) {
    co_await VerifyRange(command, compare);
  }
  End(command);
}

// Reads the range, piece by piece, and compares it with the data-out.
Task<bool> UnitChannel::VerifyRange(Command& command, Compare compare) {
  TransferMemory::Buffer buffer = memory_.Take();
  if (!buffer) {
    command.End(ScsiStatus::kBusy);
    co_return false;
  }
  const uint32_t block_bytes = geometry_.logical_block_bytes;
  const uint64_t bytes = Bytes(command.blocks);
  for (uint64_t done = 0; done < bytes;) {
    const auto length = static_cast<uint32_t>(std::min<uint64_t>(bytes - done, TransferMemory::kBufferBytes));
    const block::Segment piece = buffer.Piece(length);
    command.segments = {&piece, 1};
    if (!co_await Step(command, block::Op::kRead, Bytes(command.lba) + done, length)) co_return false;
    uint64_t equal = length;
    if (compare == Compare::kData) {
      equal = EqualBytes(buffer.data(), command.data_out, done, length);
    } else if (compare == Compare::kOneBlock) {
      for (equal = 0; equal < length; equal += block_bytes) {
        if (EqualBytes(buffer.data() + equal, command.data_out, 0, block_bytes) < block_bytes) break;
      }
    }
    if (equal < length) {  // SBC-4 4.18.1: which block
      command.CheckInformation(SenseKey::kMiscompare, SenseCode::kMiscompareDuringVerify,
                               command.lba + ((done + equal) >> block_shift_));
      co_return false;
    }
    done += length;
  }
  co_return true;
}

// ---- WRITE SAME (SBC-4 5.49, 5.50)

void UnitChannel::StartWriteSame(Command& command) {
  const bool unmap = (command.cdb[1] & kUnmapBit) != 0;
  const bool no_data = (command.cdb[1] & kNdobBit) != 0;
  const auto refuse = [&](BadField bad) {
    command.RefuseField(bad);
    command.on_done(command);
  };
  if (unmap && !geometry_.discard) return refuse({1, 3});
  // WSNZ in the block limits: 0 does not mean "to the end".
  if (command.blocks == 0 || Bytes(command.blocks) > kWriteSameBytesMax) {
    return refuse({command.info->length.at, 7});
  }
  command.transferred_bytes = no_data ? 0 : Bytes(1);
  Begin(command);
  Spawn(WriteSame(command));
}

Task<void> UnitChannel::WriteSame(Command& command) {
  const bool no_data = (command.cdb[1] & kNdobBit) != 0;
  const uint32_t block_bytes = geometry_.logical_block_bytes;
  std::array<uint8_t, kBlockBytesMax> block{};
  if (!no_data) block::Gather(command.data_out, 0, block.data(), block_bytes);
  const bool zero = std::ranges::all_of(block, [](uint8_t byte) { return byte == 0; });
  command.segments = {};
  // UNMAP allows to give the blocks back, it does not demand it; what they read back has to be the pattern.
  command.may_unmap = zero && (command.cdb[1] & kUnmapBit) != 0;
  if (zero && geometry_.write_zeroes) {
    co_await InSteps(command, block::Op::kWriteZeroes, Bytes(command.lba), Bytes(command.blocks),
                     geometry_.write_zeroes_max_bytes);
  } else {
    auto write = WritePattern(command, {block.data(), block_bytes});
    co_await std::move(write);
  }
  End(command);
}

Task<bool> UnitChannel::WritePattern(Command& command, std::span<const uint8_t> block) {
  TransferMemory::Buffer buffer = memory_.Take();
  if (!buffer) {
    command.End(ScsiStatus::kBusy);
    co_return false;
  }
  command.may_unmap = false;
  const uint64_t bytes = Bytes(command.blocks);
  const uint64_t filled = std::min<uint64_t>(bytes, TransferMemory::kBufferBytes);
  for (uint64_t at = 0; at < filled; at += block.size()) std::ranges::copy(block, buffer.data() + at);
  for (uint64_t done = 0; done < bytes;) {
    const auto length = static_cast<uint32_t>(std::min(bytes - done, filled));
    const block::Segment piece = buffer.Piece(length);
    command.segments = {&piece, 1};
    if (!co_await Step(command, block::Op::kWrite, Bytes(command.lba) + done, length)) co_return false;
    done += length;
  }
  co_return true;
}

// ---- UNMAP (SBC-4 5.30)

void UnitChannel::StartUnmap(Command& command) {
  RangeList ranges;
  if (!ReadRanges(command, ranges) || ranges.count == 0) return command.on_done(command);
  command.transferred_bytes = command.blocks;
  Begin(command);
  Spawn(Unmap(command, ranges));
}

// The parameter list, copied and checked as a whole before anything is unmapped. False: refused.
bool UnitChannel::ReadRanges(Command& command, RangeList& ranges) {
  constexpr size_t kHeader = 8;
  constexpr size_t kDescriptor = 16;
  constexpr auto kParameters = Sense::Pointer::kParameters;
  std::array<uint8_t, kHeader + kUnmapRangesMax * kDescriptor> list;
  const uint64_t list_bytes = command.blocks;
  if (list_bytes == 0) return true;
  const size_t copied = std::min<uint64_t>(list_bytes, list.size());
  block::Gather(command.data_out, 0, list.data(), copied);
  const uint64_t descriptors = list_bytes < kHeader ? 0 : LoadBig(&list[2], 2);
  if (list_bytes < kHeader || descriptors > list_bytes - kHeader) {
    command.Check(SenseKey::kIllegalRequest, SenseCode::kParameterListLengthError);
    return false;
  }
  if (descriptors / kDescriptor > kUnmapRangesMax) {
    command.RefuseField({2}, kParameters);
    return false;
  }
  uint64_t total = 0;
  for (size_t at = kHeader; at + kDescriptor <= kHeader + descriptors; at += kDescriptor) {
    const uint64_t lba = LoadBig(&list[at], 8);
    const uint64_t blocks = LoadBig(&list[at + 8], 4);
    if (lba > disk_blocks() || blocks > disk_blocks() - lba) {
      command.Check(SenseKey::kIllegalRequest, SenseCode::kLbaOutOfRange);
      return false;
    }
    total += blocks;
    if (Bytes(total) > kUnmapBytesMax) {
      command.RefuseField({static_cast<int>(at + 8)}, kParameters);
      return false;
    }
    if (blocks > 0) ranges.ranges[ranges.count++] = {lba, blocks};
  }
  return true;
}

Task<void> UnitChannel::Unmap(Command& command, RangeList ranges) {
  command.segments = {};
  for (uint32_t i = 0; i < ranges.count; ++i) {
    const auto [lba, blocks] = ranges.ranges[i];
    if (!co_await InSteps(command, block::Op::kDiscard, Bytes(lba), Bytes(blocks),
                          geometry_.discard_max_bytes))
      break;
  }
  End(command);
}

}  // namespace cleat::scsi
