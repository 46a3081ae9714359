// SPDX-License-Identifier: Apache-2.0
// One buffer that the guest made available: a chain of descriptors (virtio 1.2, 2.7.5; packed rings: 2.8.6),
// checked and translated. What every ring format hands to a device, which need not know how it was laid out:
// the readable bytes come first, then the writable ones (2.7.4.2), each as segments of mapped memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "base/check.h"
#include "block/memory.h"
#include "block/segments.h"
#include "virtio/guest_access.h"

namespace cleat::virtio {

// Data segments that a driver may use in one request (virtio-blk's seg_max, virtio-scsi's): what fits, with a
// header and a status, a queue of 128 without indirect descriptors.
inline constexpr uint32_t kDataSegmentsMax = 126;

// Descriptors in a chain. A driver that keeps to kDataSegmentsMax needs at most 143: it may also put each
// byte of the 16-byte header, and the status byte, into a descriptor of its own; one more refers to the
// indirect table. The rest is slack for drivers that overdo it. What a driver wants beyond that is an attack
// or a bug.
inline constexpr uint32_t kChainDescriptorsMax = 256;

// Segments of a chain: a descriptor that crosses the border of two memory regions becomes two.
inline constexpr uint32_t kChainSegmentsMax = kChainDescriptorsMax + block::MemoryMap::kEntriesMax;

// Bytes in a chain (virtio 1.2, 2.7.5.2), readable and writable together.
inline constexpr uint64_t kChainBytesMax = uint64_t{1} << 32;

// Large (about 8 KiB) and left uninitialised: made on the stack, once for each batch.
class Chain {
 public:
  Chain() {}  // NOLINT(modernize-use-equals-default): `= default` would let `Chain{}` zero it all
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  uint16_t head() const { return head_; }  // what the ring wants back (packed: the buffer id)
  uint32_t descriptors() const { return descriptors_; }
  uint64_t readable_bytes() const { return readable_bytes_; }
  uint64_t writable_bytes() const { return writable_bytes_; }
  std::span<const block::Segment> readable() const { return {segments(), readable_count_}; }
  std::span<const block::Segment> writable() const { return {segments() + readable_count_, writable_count_}; }

  // ---- For the rings that fill it
  void Reset(uint16_t head) {
    head_ = head;
    descriptors_ = readable_count_ = writable_count_ = 0;
    readable_bytes_ = writable_bytes_ = 0;
  }
  void CountDescriptor() { ++descriptors_; }
  bool full() const { return readable_count_ + writable_count_ == kChainSegmentsMax; }
  void Add(const block::Segment& segment, bool writable) {
    CLEAT_DCHECK(!full() && (writable || writable_count_ == 0));
    new (storage_ + (readable_count_ + writable_count_) * sizeof(block::Segment)) block::Segment(segment);
    if (writable) {
      ++writable_count_;
      writable_bytes_ += segment.length_bytes;
    } else {
      ++readable_count_;
      readable_bytes_ += segment.length_bytes;
    }
  }

 private:
  const block::Segment* segments() const {
    return std::launder(reinterpret_cast<const block::Segment*>(storage_));
  }

  uint16_t head_;
  uint32_t descriptors_;
  uint32_t readable_count_;
  uint32_t writable_count_;
  uint64_t readable_bytes_;
  uint64_t writable_bytes_;
  alignas(block::Segment) std::byte storage_[kChainSegmentsMax * sizeof(block::Segment)];
};

using block::Cut;
using block::Gather;

}  // namespace cleat::virtio
