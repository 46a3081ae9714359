// SPDX-License-Identifier: Apache-2.0
#include "scsi/sense.h"

#include <algorithm>

#include "scsi/bytes.h"

namespace cleat::scsi {
namespace {

constexpr uint8_t kFixedFormat = 0x70;
constexpr uint8_t kDescriptorFormat = 0x72;

// SPC-4 4.5.2.4.2: three bytes; SKSV, C/D, BPV and the bit, then the byte.
void WriteFieldPointer(const Sense& sense, uint8_t* at) {
  at[0] = 0x80 | (sense.pointer == Sense::Pointer::kCdb ? 0x40 : 0);
  if (sense.pointer_bit >= 0) at[0] |= 0x08 | static_cast<uint8_t>(sense.pointer_bit);
  StoreBig(at + 1, sense.pointer_byte, 2);
}

}  // namespace

size_t WriteSense(const Sense& sense, bool descriptor_format, std::span<uint8_t, kSenseBytesMax> out) {
  std::ranges::fill(out, uint8_t{0});
  uint8_t* at = out.data();
  const auto key = static_cast<uint8_t>(sense.key);
  const auto code = static_cast<uint16_t>(sense.code);
  const bool has_pointer = sense.pointer != Sense::Pointer::kNone;
  if (!descriptor_format) {
    at[0] = kFixedFormat;
    at[2] = key;
    if (sense.has_information && sense.information <= UINT32_MAX) {
      at[0] |= 0x80;
      StoreBig(at + 3, sense.information, 4);
    }
    at[7] = kFixedSenseBytes - 8;
    StoreBig(at + 12, code, 2);
    if (has_pointer) WriteFieldPointer(sense, at + 15);
    return kFixedSenseBytes;
  }
  at[0] = kDescriptorFormat;
  at[1] = key;
  StoreBig(at + 2, code, 2);
  size_t end = 8;
  if (sense.has_information) {  // 4.5.2.2
    at[end + 1] = 0x0a;
    at[end + 2] = 0x80;
    StoreBig(at + end + 4, sense.information, 8);
    end += 12;
  }
  if (has_pointer) {  // 4.5.2.4
    at[end] = 0x02;
    at[end + 1] = 0x06;
    WriteFieldPointer(sense, at + end + 4);
    end += 8;
  }
  at[7] = static_cast<uint8_t>(end - 8);
  return end;
}

}  // namespace cleat::scsi
