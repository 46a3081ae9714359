// SPDX-License-Identifier: Apache-2.0
#include "nvme/tcp/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/check.h"

namespace cleat::nvme::tcp {
namespace {

// Polynomials have their bits reversed: bit 31 is x^0.
constexpr uint32_t kPolynomial = 0x82f6'3b78;

constexpr uint32_t TimesX(uint32_t value) {
  return (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
}

// Row k: what a byte does to the state when k more bytes follow, so that eight are looked up at once.
constexpr uint32_t kRows = 8;
using Tables = std::array<std::array<uint32_t, 256>, kRows>;
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (uint32_t bit = 0; bit < 8; ++bit) state = TimesX(state);
    tables[0][byte] = state;
  }
  for (uint32_t row = 1; row < kRows; ++row) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[row - 1][byte];
      tables[row][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

uint64_t Load(const uint8_t* at) {
  uint64_t value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

#if defined(__x86_64__)

// The instruction takes three cycles and can begin each cycle: three streams side by side, of this many bytes each.
constexpr size_t kLongBytes = 1024;
constexpr size_t kShortBytes = 128;

// What the state of a stream is multiplied with when `bytes` more follow it. The product is of 64 bits, which the instruction reduces;
// reversed bits and its own 32 make 33 powers less.
constexpr uint32_t PowerFor(size_t bytes) {
  uint32_t value = 0x8000'0000;
  for (size_t i = 0; i < 8 * bytes - 33; ++i) value = TimesX(value);
  return value;
}

template <size_t kBytes>
struct Powers {
  static constexpr uint32_t kOne = PowerFor(kBytes);
  static constexpr uint32_t kTwo = PowerFor(2 * kBytes);
};

__attribute__((target("sse4.2,pclmul"))) uint64_t Times(uint32_t state, uint32_t power) {
  const __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(state)),
                                               _mm_cvtsi32_si128(static_cast<int>(power)), 0);
  return static_cast<uint64_t>(_mm_cvtsi128_si64(product));
}

template <size_t kBytes>
__attribute__((target("sse4.2,pclmul"))) uint32_t ThreeStreams(uint32_t state, const uint8_t* at) {
  uint64_t first = state;
  uint64_t second = 0;
  uint64_t third = 0;
  for (size_t i = 0; i < kBytes; i += sizeof(uint64_t)) {
    first = _mm_crc32_u64(first, Load(at + i));
    second = _mm_crc32_u64(second, Load(at + kBytes + i));
    third = _mm_crc32_u64(third, Load(at + 2 * kBytes + i));
  }
  const uint64_t folded = Times(static_cast<uint32_t>(first), Powers<kBytes>::kTwo) ^
                          Times(static_cast<uint32_t>(second), Powers<kBytes>::kOne);
  return static_cast<uint32_t>(_mm_crc32_u64(0, folded)) ^ static_cast<uint32_t>(third);
}

#endif

using Function = uint32_t (*)(uint32_t, const void*, size_t);
Function way = ProcessorHasCrc32c() ? Crc32cByProcessor : Crc32cByTable;

}  // namespace

uint32_t Crc32cByTable(uint32_t state, const void* data, size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t value = Load(at) ^ state;
    state = 0;
    for (uint32_t row = kRows; row-- > 0; value >>= 8) state ^= kTables[row][value & 0xff];
  }
  for (; bytes > 0; --bytes, ++at) state = (state >> 8) ^ kTables[0][(state ^ *at) & 0xff];
  return state;
}

#if defined(__x86_64__)

bool ProcessorHasCrc32c() {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
}

__attribute__((target("sse4.2,pclmul"))) uint32_t Crc32cByProcessor(uint32_t state, const void* data,
                                                                    size_t bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  for (; bytes >= 3 * kLongBytes; bytes -= 3 * kLongBytes, at += 3 * kLongBytes)
    state = ThreeStreams<kLongBytes>(state, at);
  for (; bytes >= 3 * kShortBytes; bytes -= 3 * kShortBytes, at += 3 * kShortBytes)
    state = ThreeStreams<kShortBytes>(state, at);
  uint64_t wide = state;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t))
    wide = _mm_crc32_u64(wide, Load(at));
  state = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++at) state = _mm_crc32_u8(state, *at);
  return state;
}

#else

bool ProcessorHasCrc32c() {
  return false;
}

uint32_t Crc32cByProcessor(uint32_t, const void*, size_t) {
  CLEAT_CHECK(ProcessorHasCrc32c());
  return 0;
}

#endif

void SetCrc32cByTable() {
  way = Crc32cByTable;
}

void Crc32c::Update(const void* data, size_t bytes) {
  state_ = way(state_, data, bytes);
}

}  // namespace cleat::nvme::tcp
