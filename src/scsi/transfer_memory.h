// SPDX-License-Identifier: Apache-2.0
// Memory for commands that look at a disk's data themselves (VERIFY) or make it up (WRITE SAME): buffers of one size,
// a few at a time, so that no initiator makes us hold more than that. When all are out a command ends with BUSY and
// is tried again by the initiator.
//
// Belongs to one reactor and outlives its buffers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/check.h"
#include "block/memory.h"

namespace cleat::scsi {

class TransferMemory {
 public:
  static constexpr uint32_t kBufferBytes = 256 << 10;
  static constexpr uint32_t kBuffersMax = 4;

  class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(TransferMemory& owner)
        : owner_(&owner),
          bytes_(static_cast<uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes))),
          region_(block::MemoryRegion::Borrow(bytes_.get(), kBufferBytes)) {
      CLEAT_CHECK(bytes_ != nullptr);
      ++owner.out_;
    }
    Buffer(Buffer&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)),
          bytes_(std::move(other.bytes_)),
          region_(std::move(other.region_)) {}
    Buffer& operator=(Buffer&&) = delete;
    ~Buffer() {
      if (owner_ != nullptr) --owner_->out_;
    }
    explicit operator bool() const { return owner_ != nullptr; }
    uint8_t* data() { return bytes_.get(); }
    block::Segment Piece(uint32_t bytes) const { return {region_.get(), 0, bytes}; }

   private:
    struct Free {
      void operator()(uint8_t* bytes) const { std::free(bytes); }
    };
    TransferMemory* owner_ = nullptr;
    std::unique_ptr<uint8_t, Free> bytes_;
    std::shared_ptr<block::MemoryRegion> region_;
  };

  TransferMemory() = default;
  ~TransferMemory() { CLEAT_CHECK(out_ == 0); }
  TransferMemory(const TransferMemory&) = delete;
  TransferMemory& operator=(const TransferMemory&) = delete;

  // An empty one when all are out.
  Buffer Take() { return out_ < kBuffersMax ? Buffer(*this) : Buffer(); }

 private:
  static constexpr size_t kAlignment = 4096;  // what direct I/O wants
  uint32_t out_ = 0;
};

}  // namespace cleat::scsi
