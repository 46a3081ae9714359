// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli), the digest of NVMe/TCP headers and data: initial value and final complement as in iSCSI.
//
// The checksum is made by the processor's instruction where there is one (SSE4.2), in three streams that are folded together; by a table
// else. Which is decided once, before main, but for measurements (SetCrc32cByTable). Source: RFC 3720, 12.1 and B.4. Pure; any thread.
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

// All checksums from now on by the table, to measure what the instruction spares. Before any other thread makes one.
void SetCrc32cByTable();

// ---- The two ways, for tests: the state that follows on `state`, without the complement.
uint32_t Crc32cByTable(uint32_t state, const void* data, size_t bytes);
bool ProcessorHasCrc32c();
// Only where the processor has it.
uint32_t Crc32cByProcessor(uint32_t state, const void* data, size_t bytes);

}  // namespace cleat::nvme::tcp
