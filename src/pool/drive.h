// SPDX-License-Identifier: Apache-2.0
// A drive as what looks after a pool needs it. Calls may block for as long as the drive takes: they belong on a thread that may hang with it.
// Implemented by control/pools/block_drive.h, and by a drive in memory that loses power, for tests.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"

namespace cleat::pool {

class Drive {
 public:
  virtual ~Drive() = default;

  virtual uint64_t size_bytes() const = 0;
  // Offsets and lengths are multiples of kBlockBytes, within the drive. Errors are kIo and name the drive.
  virtual Status Read(uint64_t offset_bytes, std::span<uint8_t> to) = 0;
  // Done, and not yet sure to outlast a loss of power; until Flush has returned any part of it may be there, or not.
  virtual Status Write(uint64_t offset_bytes, std::span<const uint8_t> from) = 0;
  // Works as a write of zeroes. The drive may give the space back if it promises that it reads as zeroes then.
  virtual Status Zero(uint64_t offset_bytes, uint64_t length_bytes) = 0;
  // All that was done before outlasts a loss of power.
  virtual Status Flush() = 0;
};

}  // namespace cleat::pool
