// SPDX-License-Identifier: Apache-2.0
#include "nvmf_target/memory/receive_buffers.h"

#include "base/check.h"

namespace cleat::nvmf_target {

ReceiveBuffers::ReceiveBuffers() {
  Make(0);
}

ReceiveBuffers::~ReceiveBuffers() {
  CLEAT_CHECK(kept_ == 0);
}

void ReceiveBuffers::Make(uint32_t number) {
  Buffer& buffer = buffers_[number];
  buffer.bytes = std::make_unique_for_overwrite<uint8_t[]>(kBytes);
  buffer.region = block::MemoryRegion::Borrow(buffer.bytes.get(), kBytes);
}

// The first that is free: the fewer there are in use, the more of them is in the cache.
std::span<uint8_t> ReceiveBuffers::Current() {
  if (current().kept > 0) [[unlikely]] {
    current_ = 0;
    while (current().kept > 0) {
      ++current_;
      CLEAT_CHECK(current_ < kMost);  // Keep has left one
    }
    if (current().bytes == nullptr) Make(current_);
  }
  return {current().bytes.get(), kBytes};
}

bool ReceiveBuffers::Keep(std::span<const uint8_t> bytes, block::Segment& piece) {
  Buffer& buffer = current();
  if (buffer.kept == 0 && kept_buffers_ == kMost - 1) return false;
  const auto offset = static_cast<uint64_t>(bytes.data() - buffer.bytes.get());
  CLEAT_CHECK(offset < kBytes && bytes.size() <= kBytes - offset);
  piece = {buffer.region.get(), offset, static_cast<uint32_t>(bytes.size())};
  if (buffer.kept++ == 0) ++kept_buffers_;
  ++kept_;
  return true;
}

void ReceiveBuffers::LetGo(const block::Segment& piece) {
  Buffer* buffer = &current();
  if (piece.region != buffer->region.get()) {
    buffer = buffers_.data();
    while (buffer->region.get() != piece.region) {
      ++buffer;
      CLEAT_CHECK(buffer < buffers_.data() + kMost);
    }
  }
  CLEAT_CHECK(buffer->kept > 0);
  if (--buffer->kept == 0) --kept_buffers_;
  --kept_;
}

void ReceiveBuffers::Trim() {
  for (Buffer& buffer : buffers_) {
    if (buffer.kept == 0 && &buffer != &current()) buffer = {};
  }
}

}  // namespace cleat::nvmf_target
