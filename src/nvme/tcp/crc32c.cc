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

// Folding: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), here of 512 bits at once.
// A lane of 128 bits is the polynomial A = H x^64 + L, H its first eight bytes. When d bits more follow up to where another lane stands,
// A x^d = H x^(d+64) + L x^d may be added there instead, and each power may be its remainder: the checksum remains the same. So H is
// multiplied with PowerFor(d / 8 + 8), L with PowerFor(d / 8): as above, reversed bits and the power's own 32 make 33 less.
constexpr size_t kLaneBytes = 16;
constexpr size_t kWideBytes = 64;
constexpr ptrdiff_t kFoldBytes = 4 * kWideBytes;
static_assert(kCrc32cFoldedFrom >= kWideBytes);

struct alignas(kWideBytes) FoldPowers {
  std::array<uint64_t, 8> of{};
};
// Lane i goes `bytes` + i * `step` on; by 0 bytes nowhere: it is multiplied with nothing.
constexpr FoldPowers FoldBy(size_t bytes, int step = 0) {
  FoldPowers powers;
  for (int lane = 0; lane < 4; ++lane) {
    const size_t distance = bytes + static_cast<size_t>(lane * step);
    if (distance == 0) continue;
    powers.of[2 * lane] = PowerFor(distance + 8);
    powers.of[2 * lane + 1] = PowerFor(distance);
  }
  return powers;
}
constexpr FoldPowers kByOne = FoldBy(kWideBytes);
constexpr FoldPowers kByTwo = FoldBy(2 * kWideBytes);
constexpr FoldPowers kByThree = FoldBy(3 * kWideBytes);
constexpr FoldPowers kByFour = FoldBy(kFoldBytes);
constexpr FoldPowers kToLastLane = FoldBy(3 * kLaneBytes, -static_cast<int>(kLaneBytes));

// The lanes moved on and added to `there`.
__attribute__((target("avx512f,vpclmulqdq"))) inline __m512i Moved(__m512i lanes, const FoldPowers& by,
                                                                   __m512i there) {
  constexpr int kSumOfThree = 0x96;
  const __m512i powers = _mm512_load_si512(by.of.data());
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, powers, 0x00),
                                   _mm512_clmulepi64_epi128(lanes, powers, 0x11), there, kSumOfThree);
}

// `bytes` is a multiple of kWideBytes, and not 0. A function of its own that ends by returning: before a tail call GCC 12 leaves VZEROUPPER
// out, and what uses narrow registers is slow from then on.
__attribute__((target("sse4.2,avx512f,vpclmulqdq"))) uint32_t Fold(uint32_t state, const uint8_t* at,
                                                                   size_t bytes) {
  const uint8_t* const end = at + bytes;
  // The state is added to the first four bytes.
  __m512i sum = _mm512_xor_si512(_mm512_loadu_si512(at),
                                 _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  at += kWideBytes;
  if (bytes >= kFoldBytes) {
    // A product takes about as long as eight multiplications begin: of four sums, two each.
    __m512i second = _mm512_loadu_si512(at);
    __m512i third = _mm512_loadu_si512(at + kWideBytes);
    __m512i fourth = _mm512_loadu_si512(at + 2 * kWideBytes);
    for (at += 3 * kWideBytes; end - at >= kFoldBytes; at += kFoldBytes) {
      sum = Moved(sum, kByFour, _mm512_loadu_si512(at));
      second = Moved(second, kByFour, _mm512_loadu_si512(at + kWideBytes));
      third = Moved(third, kByFour, _mm512_loadu_si512(at + 2 * kWideBytes));
      fourth = Moved(fourth, kByFour, _mm512_loadu_si512(at + 3 * kWideBytes));
    }
    sum = _mm512_xor_si512(Moved(sum, kByThree, Moved(third, kByOne, fourth)),
                           Moved(second, kByTwo, _mm512_setzero_si512()));
  }
  for (; at < end; at += kWideBytes) sum = Moved(sum, kByOne, _mm512_loadu_si512(at));
  // Three lanes onto the last one, whose sixteen bytes are left of all.
  constexpr __mmask8 kLastLane = 0xc0;
  constexpr __mmask8 kAll = 0xff;  // without a mask, GCC 12 warns of its own headers
  sum = Moved(sum, kToLastLane, _mm512_maskz_mov_epi64(kLastLane, sum));
  const __m256i half = _mm256_xor_si256(_mm512_maskz_extracti64x4_epi64(kAll, sum, 0),
                                        _mm512_maskz_extracti64x4_epi64(kAll, sum, 1));
  const __m128i lane = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const uint64_t first = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(lane)));
  return static_cast<uint32_t>(_mm_crc32_u64(first, static_cast<uint64_t>(_mm_extract_epi64(lane, 1))));
}

#endif

using Function = uint32_t (*)(uint32_t, const void*, size_t);
Function FunctionOf(Crc32cWay fastest) {
  if (fastest >= Crc32cWay::kFolded && ProcessorFoldsCrc32c()) return Crc32cFolded;
  if (fastest >= Crc32cWay::kInstruction && ProcessorHasCrc32c()) return Crc32cByProcessor;
  return Crc32cByTable;
}
Function way = FunctionOf(Crc32cWay::kFolded);

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

// The compiler's support asks the kernel too, which may keep the wide registers from programs (XGETBV).
bool ProcessorFoldsCrc32c() {
  return ProcessorHasCrc32c() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("vpclmulqdq") != 0;
}

uint32_t Crc32cFolded(uint32_t state, const void* data, size_t bytes) {
  if (bytes < kCrc32cFoldedFrom) return Crc32cByProcessor(state, data, bytes);
  const auto* at = static_cast<const uint8_t*>(data);
  const size_t left = bytes % kWideBytes;
  state = Fold(state, at, bytes - left);
  return Crc32cByProcessor(state, at + bytes - left, left);
}

#else

bool ProcessorHasCrc32c() {
  return false;
}

uint32_t Crc32cByProcessor(uint32_t, const void*, size_t) {
  CLEAT_CHECK(ProcessorHasCrc32c());
  return 0;
}

bool ProcessorFoldsCrc32c() {
  return false;
}

uint32_t Crc32cFolded(uint32_t, const void*, size_t) {
  CLEAT_CHECK(ProcessorFoldsCrc32c());
  return 0;
}

#endif

void SetCrc32cWay(Crc32cWay fastest) {
  way = FunctionOf(fastest);
}

void Crc32c::Update(const void* data, size_t bytes) {
  state_ = way(state_, data, bytes);
}

}  // namespace cleat::nvme::tcp
