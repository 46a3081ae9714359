// SPDX-License-Identifier: Apache-2.0
// Bytes in a buffer of one size: added behind, taken from the front. The buffer is made when its space is asked for. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "base/check.h"

namespace cleat::nvme::tls {

class ByteQueue {
 public:
  explicit ByteQueue(size_t size_bytes) : size_bytes_(size_bytes) {}

  std::span<uint8_t> bytes() const { return {buffer_.get() + begin_, end_ - begin_}; }
  bool empty() const { return begin_ == end_; }
  void Take(size_t bytes) {
    CLEAT_CHECK(bytes <= end_ - begin_);
    begin_ += bytes;
    if (begin_ == end_) begin_ = end_ = 0;
  }

  // Behind the bytes; Pack makes it as large as it can be, and moves the bytes.
  std::span<uint8_t> space() {
    if (buffer_ == nullptr && size_bytes_ > 0)
      buffer_ = std::make_unique_for_overwrite<uint8_t[]>(size_bytes_);
    return {buffer_.get() + end_, size_bytes_ - end_};
  }
  void Add(size_t bytes) {
    CLEAT_CHECK(bytes <= size_bytes_ - end_);
    end_ += bytes;
  }
  void Pack() {
    if (begin_ == 0) return;
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  // Gives the buffer back where it is empty, until its space is asked for again.
  void Release() {
    if (empty()) buffer_.reset();
  }
  bool has_buffer() const { return buffer_ != nullptr; }
  // Gives the buffer back for good: without bytes and without space from then on.
  void Free() {
    buffer_.reset();
    size_bytes_ = begin_ = end_ = 0;
  }

 private:
  std::unique_ptr<uint8_t[]> buffer_;
  size_t size_bytes_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace cleat::nvme::tls
