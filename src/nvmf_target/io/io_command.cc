// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/io/io_command.h"

#include <algorithm>

#include "block/segments.h"
#include "nvme/target/reservations/reservation_commands.h"

namespace cleat::nvmf_target {
namespace {

using block::IoStatus;
using nvme::Opcode;
using nvme::Status;

// Status codes with their type (base 2.0, 3.3.3.2.1; NVM 3.1), and Do Not Retry where the same command will never succeed.
constexpr uint16_t kDoNotRetry = 1U << 14;
constexpr Status kInvalidField{kDoNotRetry | 0x02};
constexpr Status kInternalError{0x06};
constexpr Status kAbortRequested{0x07};
constexpr Status kSglLengthInvalid{kDoNotRetry | 0x0f};
constexpr Status kWriteProtected{kDoNotRetry | 0x20};
constexpr Status kCapacityExceeded{0x81};
constexpr Status kWriteFault{2U << 8 | 0x80};
constexpr Status kReadError{2U << 8 | 0x81};
constexpr Status kCompareFailure{kDoNotRetry | 2U << 8 | 0x85};

bool IsWithin(uint64_t block, uint64_t blocks, const block::Geometry& geometry) {
  const uint64_t size = geometry.size_bytes / geometry.logical_block_bytes;
  return block <= size && blocks <= size - block;
}

// The blocks of a read, write or write zeroes.
Status PlanBlocks(const nvme::fabrics::SubmissionEntry& entry, const block::Geometry& geometry,
                  IoPlan& plan) {
  const uint64_t block = uint64_t{entry.cdw11} << 32 | entry.cdw10;
  const uint64_t blocks = (entry.cdw12 & 0xffffU) + 1;
  if (!IsWithin(block, blocks, geometry)) return kLbaOutOfRange;
  plan.offset_bytes = block * geometry.logical_block_bytes;
  plan.length_bytes = blocks * geometry.logical_block_bytes;
  plan.fua = (entry.cdw12 & nvme::kForceUnitAccess) != 0;
  return kSuccess;
}

Status PlanTransfer(const nvme::fabrics::SubmissionEntry& entry, const block::Geometry& geometry,
                    uint32_t data_bytes, IoPlan& plan) {
  if (const Status status = PlanBlocks(entry, geometry, plan); !status.ok()) return status;
  if (plan.length_bytes > nvme::fabrics::kTransferBytesMax) return kInvalidField;  // MDTS
  return plan.length_bytes == data_bytes ? kSuccess : kSglLengthInvalid;
}

Status PlanDatasetManagement(const nvme::fabrics::SubmissionEntry& entry, const block::Geometry& geometry,
                             uint32_t data_bytes, IoPlan& plan) {
  const uint32_t ranges = (entry.cdw10 & 0xffU) + 1;
  // Linux sends the whole list whatever it has in it, as some drives read it all.
  if (data_bytes < ranges * sizeof(nvme::DatasetRange) ||
      data_bytes > kRangesMax * sizeof(nvme::DatasetRange))
    return kSglLengthInvalid;
  plan.to_target = true;
  // The other attributes are hints of how the blocks will be used.
  if ((entry.cdw11 & nvme::kDatasetDeallocate) == 0 || !geometry.discard) return kSuccess;
  plan.kind = IoPlan::Kind::kDiscard;
  plan.ranges = static_cast<uint16_t>(ranges);
  return kSuccess;
}

}  // namespace

Status PlanOf(const nvme::fabrics::SubmissionEntry& entry, const block::Geometry& geometry,
              block::AccessMode mode, uint32_t data_bytes, IoPlan& plan) {
  // Half of a fused command is none.
  if (entry.flags != nvme::fabrics::kFlagsSgl) return kInvalidField;
  const auto opcode = static_cast<Opcode>(entry.opcode);
  const bool changes =
      opcode == Opcode::kWrite || opcode == Opcode::kWriteZeroes || opcode == Opcode::kDatasetManagement;
  if (changes && mode == block::AccessMode::kReadOnly) return kWriteProtected;
  switch (opcode) {
    case Opcode::kRead:
      plan.kind = IoPlan::Kind::kRead;
      return PlanTransfer(entry, geometry, data_bytes, plan);
    case Opcode::kWrite:
      plan.kind = IoPlan::Kind::kWrite;
      plan.to_target = true;
      return PlanTransfer(entry, geometry, data_bytes, plan);
    case Opcode::kFlush:
      plan.kind = IoPlan::Kind::kFlush;
      return kSuccess;
    case Opcode::kWriteZeroes:
      if (!geometry.write_zeroes) return kInvalidOpcode;
      plan.kind = IoPlan::Kind::kWriteZeroes;
      plan.may_unmap = (entry.cdw12 & nvme::kDeallocate) != 0;
      return PlanBlocks(entry, geometry, plan);
    case Opcode::kDatasetManagement:
      return PlanDatasetManagement(entry, geometry, data_bytes, plan);
    case Opcode::kReservationRegister:
    case Opcode::kReservationAcquire:
    case Opcode::kReservationRelease:
      plan.kind = IoPlan::Kind::kReservationChange;
      plan.to_target = true;
      return data_bytes > 0 && data_bytes <= kReservationDataMaxBytes ? kSuccess : kSglLengthInvalid;
    case Opcode::kReservationReport:
      plan.kind = IoPlan::Kind::kReservationReport;
      // No room is larger, whatever it is to have.
      return data_bytes > nvme::fabrics::kTransferBytesMax
                 ? kInvalidField
                 : Status(nvme::target::CheckReport(entry, data_bytes));
    default:
      return kInvalidOpcode;
  }
}

ByteRange RangeOf(const IoCommand& command, const block::Geometry& geometry) {
  ByteRange all{.begin = UINT64_MAX, .end = 0};
  for (uint32_t i = 0; i < command.range_count; ++i) {
    nvme::DatasetRange range;
    block::Gather(command.data, i * sizeof(range), &range, sizeof(range));
    if (range.blocks == 0 || !IsWithin(range.first_block, range.blocks, geometry)) continue;
    const uint64_t begin = range.first_block * geometry.logical_block_bytes;
    all.begin = std::min(all.begin, begin);
    all.end = std::max(all.end, begin + uint64_t{range.blocks} * geometry.logical_block_bytes);
  }
  return all.end == 0 ? ByteRange{} : all;
}

Status StatusOf(IoStatus status, bool reads) {
  switch (status) {
    case IoStatus::kOk:
      return kSuccess;
    case IoStatus::kIoError:
      return reads ? kReadError : kWriteFault;
    case IoStatus::kHardwareError:
      return kInternalError;
    case IoStatus::kNoSpace:
      return kCapacityExceeded;
    case IoStatus::kReadOnly:
      return kWriteProtected;
    case IoStatus::kUnsupported:
      return kInvalidOpcode;
    case IoStatus::kInvalid:
      return kInvalidField;
    case IoStatus::kReservationConflict:
      return kReservationConflict;
    case IoStatus::kMiscompare:
      return kCompareFailure;
    case IoStatus::kAborted:
      return kAbortRequested;
    case IoStatus::kFenced:
      return kInternalPathError;
  }
  return kInternalError;
}

}  // namespace cleat::nvmf_target
