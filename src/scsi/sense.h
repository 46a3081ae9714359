// SPDX-License-Identifier: Apache-2.0
// Sense data: why a command did not end with GOOD (SPC-4 4.5). Kept as its meaning; written in the fixed or the
// descriptor format when it is returned.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "scsi/protocol.h"

namespace cleat::scsi {

struct Sense {
  SenseKey key = SenseKey::kNoSense;
  SenseCode code = SenseCode::kNone;
  bool has_information = false;
  uint64_t information = 0;  // an LBA, or an offset for a miscompare
  // ILLEGAL REQUEST: which byte (and bit, if there is one) of the CDB or of the parameter list (4.5.2.4.2).
  enum class Pointer : uint8_t { kNone, kCdb, kParameters };
  Pointer pointer = Pointer::kNone;
  uint16_t pointer_byte = 0;
  int8_t pointer_bit = -1;

  bool operator==(const Sense&) const = default;
};

inline constexpr size_t kSenseBytesMax = 32;  // of what is written here
inline constexpr size_t kFixedSenseBytes = 18;

// Returns how many bytes it takes. The fixed format has 4 bytes of information: what does not fit is left out, as
// 4.5.3 wants it.
size_t WriteSense(const Sense& sense, bool descriptor_format, std::span<uint8_t, kSenseBytesMax> out);

}  // namespace cleat::scsi
