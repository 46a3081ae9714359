// SPDX-License-Identifier: Apache-2.0
#include "perf/nvme_tcp/crc32c.h"

#include <array>
#include <cstring>

namespace cleat::perf {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t n = 0; n < table.size(); ++n) {
    uint32_t crc = n;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[n] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t AddByTable(uint32_t crc, const uint8_t* at, size_t size_bytes) {
  for (; size_bytes > 0; --size_bytes) crc = kTable[(crc ^ *at++) & 0xff] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) uint64_t AddWord(uint64_t crc, const uint8_t* at) {
  uint64_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return __builtin_ia32_crc32di(crc, word);
}

// The instruction takes three cycles and one may begin in each, so three parts of the data are taken at once. What the parts before the
// last gave is then moved over the zeroes that would stand in the place of those behind: a multiplication, by tables.
constexpr size_t kLaneBytes = 1024;
constexpr size_t kLanes = 3;

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

ShiftTable MakeShift() {
  static constexpr std::array<uint8_t, kLaneBytes> kZeroes{};
  ShiftTable table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    for (uint32_t n = 0; n < 256; ++n)
      table[byte][n] = AddByTable(n << (8 * byte), kZeroes.data(), kLaneBytes);
  }
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t AddByInstruction(uint32_t crc, const uint8_t* at,
                                                            size_t size_bytes) {
  static const ShiftTable kShift = MakeShift();
  while (size_bytes >= kLanes * kLaneBytes) {
    uint64_t first = crc;
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLaneBytes; i += sizeof first) {
      first = AddWord(first, at + i);
      second = AddWord(second, at + kLaneBytes + i);
      third = AddWord(third, at + 2 * kLaneBytes + i);
    }
    crc = Shift(kShift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
    crc = Shift(kShift, crc) ^ static_cast<uint32_t>(third);
    at += kLanes * kLaneBytes;
    size_bytes -= kLanes * kLaneBytes;
  }
  uint64_t rest = crc;
  for (; size_bytes >= sizeof rest; size_bytes -= sizeof rest, at += sizeof rest) rest = AddWord(rest, at);
  return AddByTable(static_cast<uint32_t>(rest), at, size_bytes);
}

#endif

}  // namespace

uint32_t AddCrc32c(uint32_t crc, const void* data, size_t size_bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
#if defined(__x86_64__)
  static const bool kInstruction = __builtin_cpu_supports("sse4.2") != 0;
  if (kInstruction) return AddByInstruction(crc, at, size_bytes);
#endif
  return AddByTable(crc, at, size_bytes);
}

}  // namespace cleat::perf
