// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli), the digest of NVMe/TCP headers and data: initial value and final complement as in iSCSI.
//
// The checksum is made by folding where the processor multiplies polynomials in 512 bits (AVX-512, VPCLMULQDQ) and there are bytes enough;
// else by its instruction (SSE4.2), in three streams that are folded together; else by a table. Which is decided once, before main, but for
// measurements (SetCrc32cWay). Source: RFC 3720, 12.1 and B.4. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cleat::nvme::tcp {

// The bytes of several calls, as if they lay side by side.
class Crc32c {
 public:
  void Update(const void* data, size_t bytes);
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = 0xffff'ffff;
};

inline uint32_t Crc32cOf(const void* data, size_t bytes) {
  Crc32c crc;
  crc.Update(data, bytes);
  return crc.value();
}

enum class Crc32cWay { kTable, kInstruction, kFolded };
// All checksums from now on by nothing faster than this, to measure what the faster ones spare. Before any other thread makes one.
void SetCrc32cWay(Crc32cWay fastest);
inline void SetCrc32cByTable() {
  SetCrc32cWay(Crc32cWay::kTable);
}

// ---- The three ways, for tests: the state that follows on `state`, without the complement.
uint32_t Crc32cByTable(uint32_t state, const void* data, size_t bytes);
bool ProcessorHasCrc32c();
// Only where the processor has it.
uint32_t Crc32cByProcessor(uint32_t state, const void* data, size_t bytes);
bool ProcessorFoldsCrc32c();
// Only where the processor can. Less than this many bytes, and what is left of more, are by the instruction.
inline constexpr size_t kCrc32cFoldedFrom = 256;
uint32_t Crc32cFolded(uint32_t state, const void* data, size_t bytes);

}  // namespace cleat::nvme::tcp
