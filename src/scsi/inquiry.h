// SPDX-License-Identifier: Apache-2.0
// What INQUIRY, READ CAPACITY and their like answer: pure functions from a disk's identity and geometry to bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "block/compare_and_write.h"
#include "block/device.h"
#include "scsi/identity.h"

namespace cleat::scsi {

// What a command may do at most, beside block::kCompareAndWriteBytesMax; told in the block limits page, enforced by
// the decoder.
inline constexpr uint32_t kUnmapRangesMax = 32;
inline constexpr uint64_t kUnmapBytesMax = uint64_t{4} << 30;  // all ranges together
inline constexpr uint64_t kWriteSameBytesMax = uint64_t{4} << 30;

inline constexpr size_t kReplyBytesMax = 128;
using ReplyBytes = std::span<uint8_t, kReplyBytesMax>;

// Of the first INQUIRY byte (SPC-4 6.4.2).
inline constexpr uint8_t kDirectAccess = 0x00;
inline constexpr uint8_t kWellKnownUnit = 0x1e;
inline constexpr uint8_t kNoUnit = 0x7f;  // this target could have one, and has not

// Each returns the reply's length; `out` is cleared first.
size_t StandardInquiry(const Identity& identity, uint8_t peripheral, ReplyBytes out);
// 0: there is no such page.
size_t VitalProductData(uint8_t page, const Identity& identity, const block::Geometry& geometry,
                        ReplyBytes out);
size_t ReadCapacity10(const block::Geometry& geometry, ReplyBytes out);
size_t ReadCapacity16(const block::Geometry& geometry, ReplyBytes out);
// One descriptor: mapped, or nobody knows (SBC-4 5.9.2). `lba` is on the disk.
size_t LbaStatus(uint64_t lba, const block::Geometry& geometry, ReplyBytes out);

}  // namespace cleat::scsi
