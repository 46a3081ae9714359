// SPDX-License-Identifier: Apache-2.0
// CRC32C, the digest of NVMe/TCP's headers and data (NVMe/TCP 1.0, 3.3.1.1; RFC 3720, 12.1), with the processor's instruction where there
// is one. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleat::perf {

// The digest of data that comes in pieces: each piece is added to what the ones before it gave, the last result is finished.
inline constexpr uint32_t kCrc32cBegin = 0xffffffff;
uint32_t AddCrc32c(uint32_t crc, const void* data, size_t size_bytes);
constexpr uint32_t FinishCrc32c(uint32_t crc) {
  return ~crc;
}

inline uint32_t Crc32c(const void* data, size_t size_bytes) {
  return FinishCrc32c(AddCrc32c(kCrc32cBegin, data, size_bytes));
}

}  // namespace cleat::perf
