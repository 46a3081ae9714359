// SPDX-License-Identifier: Apache-2.0
// Pieces of memory that are to be sent, gathered in iovecs from somewhere in the middle on. Plain value; any thread.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace cleat::nvme::tcp {

// Adds pieces of memory to iovecs, without the first `skip_bytes` of them all.
class Pieces {
 public:
  Pieces(std::span<iovec> iovecs, uint64_t skip_bytes) : iovecs_(iovecs), skip_bytes_(skip_bytes) {}

  void Add(const void* data, uint64_t bytes) {
    if (skip_bytes_ >= bytes) {
      skip_bytes_ -= bytes;
      return;
    }
    if (full()) return;
    // iovec has no const: a send only reads.
    auto* const from = static_cast<uint8_t*>(const_cast<void*>(data)) + skip_bytes_;
    iovecs_[count_++] = {from, bytes - skip_bytes_};
    skip_bytes_ = 0;
  }

  bool full() const { return count_ == iovecs_.size(); }
  uint32_t count() const { return static_cast<uint32_t>(count_); }

 private:
  std::span<iovec> iovecs_;
  uint64_t skip_bytes_;
  size_t count_ = 0;
};

}  // namespace cleat::nvme::tcp
