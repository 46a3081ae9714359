// SPDX-License-Identifier: Apache-2.0
// How much one command may do, and where a request is cut. From what controller and namespace say (identify.h) and what the way to them
// allows. Pure; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "nvme/data_piece.h"
#include "nvme/identify.h"

namespace cleat::nvme {

// What the way to the drive allows beside: a kernel's queue, a driver's lists of pages. 0: no limit.
struct TransportLimits {
  uint64_t transfer_bytes_max = 0;
  uint64_t write_zeroes_bytes_max = 0;
  bool write_zeroes = true;   // false: not to be used, whatever the drive says of it
  uint32_t pages_max = 0;     // that one command's data may touch
  uint32_t memory_align = 4;  // of addresses and lengths, a power of two (base 4.1.1: PRP entries)
};

class Limits {
 public:
  Limits() = default;
  Limits(const ControllerInfo& controller, const NamespaceInfo& space, const CommandSetLimits& command_set,
         const TransportLimits& transport);

  uint32_t block_bytes() const { return 1U << block_shift_; }
  uint32_t block_shift() const { return block_shift_; }
  uint64_t transfer_bytes_max() const { return transfer_bytes_max_; }
  // The most of one Write Zeroes or one Dataset Management command; 0: the drive has no such command.
  uint64_t write_zeroes_bytes_max() const { return write_zeroes_bytes_max_; }
  uint64_t discard_bytes_max() const { return discard_bytes_max_; }
  const DataLimits& data() const { return data_; }

  // How much of a transfer one command does: `left_bytes` from `offset_bytes` on, both multiples of the block, as is the answer. Up to the
  // next boundary that the drive would rather not have crossed.
  uint64_t TransferBytes(uint64_t offset_bytes, uint64_t left_bytes) const {
    const uint64_t bytes = std::min(left_bytes, transfer_bytes_max_);
    if (boundary_bytes_ == 0) return bytes;
    return std::min(bytes, boundary_bytes_ - offset_bytes % boundary_bytes_);
  }

 private:
  uint32_t block_shift_ = 9;
  DataLimits data_;
  uint64_t transfer_bytes_max_ = 0;
  uint64_t boundary_bytes_ = 0;  // 0: none
  uint64_t write_zeroes_bytes_max_ = 0;
  uint64_t discard_bytes_max_ = 0;
};

}  // namespace cleat::nvme
