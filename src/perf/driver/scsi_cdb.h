// SPDX-License-Identifier: Apache-2.0
// SCSI as an initiator sees it: command descriptor blocks (SPC-5, SBC-4), LUNs as virtio-scsi has them, and
// the words of answers. Values; no state. Written from the standards, apart from the device's reading of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

#include "perf/wire/virtio_scsi.h"

namespace cleat::perf::scsi {

using Cdb = std::array<uint8_t, wire::kScsiCdbBytes>;
using Lun = std::array<uint8_t, wire::kScsiLunBytes>;

// virtio 1.2, 5.6.6.1: first byte 1, then the target, then a single-level LUN, here with flat addressing as
// guests use it.
constexpr Lun LunOf(uint8_t target, uint16_t lun = 0) {
  return {1, target, static_cast<uint8_t>(0x40 | (lun >> 8)), static_cast<uint8_t>(lun)};
}
// The well-known logical unit of REPORT LUNS (5.6.6.1).
inline constexpr Lun kReportLunsLun = {0xc1, 0x01};

// Statuses (SAM-6 5.3.1).
enum StatusCode : uint8_t {
  kGood = 0x00,
  kCheckCondition = 0x02,
  kBusy = 0x08,
  kReservationConflict = 0x18,
  kTaskSetFull = 0x28,
  kTaskAborted = 0x40,
};

// Sense keys (SPC-5 4.4.8).
enum SenseKey : uint8_t {
  kNoSense = 0x0,
  kNotReady = 0x2,
  kMediumError = 0x3,
  kHardwareError = 0x4,
  kIllegalRequest = 0x5,
  kUnitAttention = 0x6,
  kDataProtect = 0x7,
  kAbortedCommand = 0xb,
  kMiscompare = 0xe,
};

// Additional sense codes with their qualifiers (SPC-5 Annex F): 0xASCQ as ASC << 8 | ASCQ.
enum AdditionalSense : uint16_t {
  kAscMiscompareDuringVerify = 0x1d00,
  kAscParameterListLength = 0x1a00,
  kAscInvalidOpcode = 0x2000,
  kAscLbaOutOfRange = 0x2100,
  kAscInvalidFieldInCdb = 0x2400,
  kAscLunNotSupported = 0x2500,
  kAscInvalidFieldInList = 0x2600,
  kAscWriteProtected = 0x2700,
  kAscPowerOnOrReset = 0x2900,
  kAscCapacityChanged = 0x2a09,
  kAscReportLunsChanged = 0x3f0e,
};

namespace internal {
template <typename Value>
constexpr void PutBig(Cdb& cdb, size_t at, size_t bytes, Value value) {
  for (size_t i = 0; i < bytes; ++i) cdb[at + i] = static_cast<uint8_t>(value >> (8 * (bytes - 1 - i)));
}
constexpr Cdb WithRange10(uint8_t opcode, uint8_t flags, uint32_t lba, uint16_t blocks) {
  Cdb cdb{opcode, flags};
  PutBig(cdb, 2, 4, lba);
  PutBig(cdb, 7, 2, blocks);
  return cdb;
}
constexpr Cdb WithRange12(uint8_t opcode, uint8_t flags, uint32_t lba, uint32_t blocks) {
  Cdb cdb{opcode, flags};
  PutBig(cdb, 2, 4, lba);
  PutBig(cdb, 6, 4, blocks);
  return cdb;
}
constexpr Cdb WithRange16(uint8_t opcode, uint8_t flags, uint64_t lba, uint32_t blocks) {
  Cdb cdb{opcode, flags};
  PutBig(cdb, 2, 8, lba);
  PutBig(cdb, 10, 4, blocks);
  return cdb;
}
constexpr Cdb WithRange6(uint8_t opcode, uint32_t lba, uint8_t blocks) {
  Cdb cdb{opcode};
  PutBig(cdb, 1, 3, lba & 0x1fffff);
  cdb[4] = blocks;
  return cdb;
}
constexpr Cdb WithLength(uint8_t opcode, size_t at, size_t bytes, uint32_t length) {
  Cdb cdb{opcode};
  PutBig(cdb, at, bytes, length);
  return cdb;
}
}  // namespace internal

// Bits of byte 1 of block commands.
inline constexpr uint8_t kDpo = 0x10;
inline constexpr uint8_t kFua = 0x08;
inline constexpr uint8_t kBytchk = 0x02;     // VERIFY, WRITE AND VERIFY: compare with data-out
inline constexpr uint8_t kSameUnmap = 0x08;  // WRITE SAME
inline constexpr uint8_t kSameNdob = 0x01;   // WRITE SAME (16): no data-out buffer, zeroes

// ---- Block commands (SBC-4 5). Lengths in blocks.
constexpr Cdb Read6(uint32_t lba, uint8_t blocks) {
  return internal::WithRange6(0x08, lba, blocks);
}
constexpr Cdb Read10(uint32_t lba, uint16_t blocks, uint8_t flags = 0) {
  return internal::WithRange10(0x28, flags, lba, blocks);
}
constexpr Cdb Read12(uint32_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange12(0xa8, flags, lba, blocks);
}
constexpr Cdb Read16(uint64_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange16(0x88, flags, lba, blocks);
}
constexpr Cdb Write6(uint32_t lba, uint8_t blocks) {
  return internal::WithRange6(0x0a, lba, blocks);
}
constexpr Cdb Write10(uint32_t lba, uint16_t blocks, uint8_t flags = 0) {
  return internal::WithRange10(0x2a, flags, lba, blocks);
}
constexpr Cdb Write12(uint32_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange12(0xaa, flags, lba, blocks);
}
constexpr Cdb Write16(uint64_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange16(0x8a, flags, lba, blocks);
}
constexpr Cdb WriteAndVerify10(uint32_t lba, uint16_t blocks, uint8_t flags = 0) {
  return internal::WithRange10(0x2e, flags, lba, blocks);
}
constexpr Cdb WriteAndVerify16(uint64_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange16(0x8e, flags, lba, blocks);
}
constexpr Cdb Verify10(uint32_t lba, uint16_t blocks, uint8_t flags = 0) {
  return internal::WithRange10(0x2f, flags, lba, blocks);
}
constexpr Cdb Verify16(uint64_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange16(0x8f, flags, lba, blocks);
}
constexpr Cdb SynchronizeCache10(uint32_t lba = 0, uint16_t blocks = 0) {
  return internal::WithRange10(0x35, 0, lba, blocks);
}
constexpr Cdb SynchronizeCache16(uint64_t lba = 0, uint32_t blocks = 0) {
  return internal::WithRange16(0x91, 0, lba, blocks);
}
constexpr Cdb WriteSame10(uint32_t lba, uint16_t blocks, uint8_t flags = 0) {
  return internal::WithRange10(0x41, flags, lba, blocks);
}
constexpr Cdb WriteSame16(uint64_t lba, uint32_t blocks, uint8_t flags = 0) {
  return internal::WithRange16(0x93, flags, lba, blocks);
}
constexpr Cdb Unmap(uint16_t list_bytes) {
  return internal::WithLength(0x42, 7, 2, list_bytes);
}
constexpr Cdb CompareAndWrite(uint64_t lba, uint8_t blocks, uint8_t flags = 0) {
  Cdb cdb{0x89, flags};
  internal::PutBig(cdb, 2, 8, lba);
  cdb[13] = blocks;
  return cdb;
}
constexpr Cdb Prefetch10(uint32_t lba, uint16_t blocks) {
  return internal::WithRange10(0x34, 0, lba, blocks);
}
constexpr Cdb Prefetch16(uint64_t lba, uint32_t blocks) {
  return internal::WithRange16(0x90, 0, lba, blocks);
}
constexpr Cdb ReadCapacity10() {
  return Cdb{0x25};
}
constexpr Cdb ReadCapacity16(uint32_t allocation_bytes = 32) {
  Cdb cdb = internal::WithLength(0x9e, 10, 4, allocation_bytes);
  cdb[1] = 0x10;
  return cdb;
}
constexpr Cdb GetLbaStatus(uint64_t lba, uint32_t allocation_bytes) {
  return internal::WithRange16(0x9e, 0x12, lba, allocation_bytes);
}
constexpr Cdb StartStopUnit(bool start) {
  Cdb cdb{0x1b};
  cdb[4] = start ? 1 : 0;
  return cdb;
}

// ---- Commands of all devices (SPC-5 6). Lengths in bytes.
constexpr Cdb TestUnitReady() {
  return Cdb{0x00};
}
constexpr Cdb RequestSense(uint8_t allocation_bytes = 252) {
  return internal::WithLength(0x03, 4, 1, allocation_bytes);
}
constexpr Cdb Inquiry(uint16_t allocation_bytes = 96) {
  return internal::WithLength(0x12, 3, 2, allocation_bytes);
}
constexpr Cdb InquiryVpd(uint8_t page, uint16_t allocation_bytes = 252) {
  Cdb cdb = Inquiry(allocation_bytes);
  cdb[1] = 1;
  cdb[2] = page;
  return cdb;
}
constexpr Cdb ModeSense6(uint8_t page, uint8_t allocation_bytes = 252) {
  Cdb cdb = internal::WithLength(0x1a, 4, 1, allocation_bytes);
  cdb[2] = page;
  return cdb;
}
constexpr Cdb ModeSelect6(uint8_t list_bytes) {
  Cdb cdb = internal::WithLength(0x15, 4, 1, list_bytes);
  cdb[1] = 0x10;  // PF
  return cdb;
}
constexpr Cdb ReportLuns(uint32_t allocation_bytes = 4096) {
  return internal::WithLength(0xa0, 6, 4, allocation_bytes);
}
constexpr Cdb ReportOpcodes(uint32_t allocation_bytes = 4096) {
  Cdb cdb = internal::WithLength(0xa3, 6, 4, allocation_bytes);
  cdb[1] = 0x0c;
  return cdb;
}
constexpr Cdb PersistentReserveIn(uint16_t allocation_bytes = 8) {
  return internal::WithLength(0x5e, 7, 2, allocation_bytes);
}

// Big-endian values in answers.
template <typename Bytes>
uint64_t Big(const Bytes& bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | bytes[at + i];
  return value;
}

}  // namespace cleat::perf::scsi
