// SPDX-License-Identifier: Apache-2.0
// What a request costs its disk and its group.
//
//   one request   every request, whatever its size; reads as reads, all others as writes
//   bytes         the length of reads, writes, write zeroes, and compare and write; nothing for flushes and discards,
//                 which move no data
//
// COMPARE AND WRITE comes here as what the entrance makes of it, a read and a write of the range (block/pipeline.h).
// What never reaches the storage (INQUIRY, a request beyond the disk's end) never comes here.
#pragma once

#include <algorithm>
#include <cstdint>

#include "block/request.h"
#include "qos/token_bucket.h"

namespace cleat::qos {

enum class Kind : uint8_t { kRead, kWrite };

struct Cost {
  uint64_t bytes = 0;
  Kind kind = Kind::kRead;

  static Cost Of(const block::Request& request) {
    const uint64_t bytes = std::min(request.length_bytes, kAmountMax);
    switch (request.op) {
      case block::Op::kRead:
        return {bytes, Kind::kRead};
      case block::Op::kFlush:
      case block::Op::kDiscard:
        return {0, Kind::kWrite};
      case block::Op::kWrite:
      case block::Op::kWriteZeroes:
      case block::Op::kCompareAndWrite:
        break;
    }
    return {bytes, Kind::kWrite};
  }
};

}  // namespace cleat::qos
