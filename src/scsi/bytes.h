// SPDX-License-Identifier: Apache-2.0
// SCSI's fields are big-endian (SPC-4 3.5), of 1 to 8 bytes, at any place.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace cleat::scsi {

static_assert(std::endian::native == std::endian::little);

// `bytes` (1 to 8) at `at`. Eight bytes are read: there have to be that many.
inline uint64_t LoadBig(const uint8_t* at, uint32_t bytes) {
  uint64_t value;
  std::memcpy(&value, at, sizeof(value));
  return __builtin_bswap64(value) >> (64 - 8 * bytes);
}

// `bytes` (1 to 8), no byte behind them is touched.
inline uint64_t LoadBigExact(const uint8_t* at, uint32_t bytes) {
  uint64_t value = 0;
  for (uint32_t i = 0; i < bytes; ++i) value = value << 8 | at[i];
  return value;
}

inline void StoreBig(uint8_t* at, uint64_t value, uint32_t bytes) {
  for (uint32_t i = bytes; i-- > 0; value >>= 8) at[i] = static_cast<uint8_t>(value);
}

// The largest number that a field of so many bytes holds, where a larger value has to be cut.
constexpr uint64_t Saturate(uint64_t value, uint32_t bytes) {
  const uint64_t max = bytes >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * bytes)) - 1;
  return value < max ? value : max;
}

// Left-aligned, padded with spaces (SPC-4 4.3.1).
inline void StoreText(uint8_t* at, std::string_view text, size_t bytes) {
  std::memset(at, ' ', bytes);
  std::memcpy(at, text.data(), text.size() < bytes ? text.size() : bytes);
}

}  // namespace cleat::scsi
