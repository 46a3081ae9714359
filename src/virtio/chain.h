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

// Large (about 8 KiB) and left uninitialised: made on the stack, a few for each batch.
class Chain {
 public:
  Chain() {}  // NOLINT(modernize-use-equals-default): `= default` would let `Chain{}` zero it all
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  uint16_t head() const { return head_; }  // what the ring wants back (packed: the buffer id)
  uint32_t descriptors() const { return counts_.descriptors; }
  uint64_t bytes() const { return counts_.bytes; }
  uint64_t readable_bytes() const { return counts_.readable_bytes; }
  uint64_t writable_bytes() const { return counts_.bytes - counts_.readable_bytes; }
  std::span<const block::Segment> readable() const { return {segments(), counts_.readable}; }
  std::span<const block::Segment> writable() const {
    return {segments() + counts_.readable, counts_.segments - counts_.readable};
  }

  // What the device looks at first and what it writes last - header and status - comes into this core's cache while
  // other chains are being worked on: both lie where the guest's core wrote a moment ago. Always inline: GCC takes a
  // function that only prefetches for one without effect, and drops its calls.
  [[gnu::always_inline]] void Prefetch() const {
    const uint8_t* status = nullptr;
    if (counts_.segments > counts_.readable) [[likely]] {
      const block::Segment& last = segments()[counts_.segments - 1];
      status = last.data() + last.length_bytes - 1;
      __builtin_prefetch(status, /*rw=*/1);
    }
    if (counts_.readable == 0) [[unlikely]]
      return;
    const uint8_t* header = segments()->data();
    constexpr uintptr_t kLineBytes = 64;
    if ((reinterpret_cast<uintptr_t>(header) ^ reinterpret_cast<uintptr_t>(status)) >= kLineBytes)
      __builtin_prefetch(header);
  }

 private:
  friend class ChainFiller;
  struct Counts {
    uint32_t descriptors;
    uint32_t segments;
    uint32_t readable;  // the first so many segments
    uint64_t bytes;
    uint64_t readable_bytes;
  };
  const block::Segment* segments() const {
    return std::launder(reinterpret_cast<const block::Segment*>(storage_));
  }

  uint16_t head_;
  Counts counts_;
  alignas(block::Segment) std::byte storage_[kChainSegmentsMax * sizeof(block::Segment)];
};

// For the rings: fills a chain and keeps its counts in registers until Commit. In the chain itself each segment that is
// stored would have the compiler write and read all of them again.
class ChainFiller {
 public:
  ChainFiller(Chain& chain, uint16_t head) : chain_(chain), counts_{} { chain.head_ = head; }
  // Goes on with one that was committed.
  explicit ChainFiller(Chain& chain) : chain_(chain), counts_(chain.counts_) {}
  ChainFiller(const ChainFiller&) = delete;
  ChainFiller& operator=(const ChainFiller&) = delete;

  Chain& Commit() {
    chain_.counts_ = counts_;
    return chain_;
  }
  // Another filler went on with it since Commit.
  void Reload() { counts_ = chain_.counts_; }

  // False: the chain has as many as one may have.
  bool CountDescriptor() { return counts_.descriptors++ < kChainDescriptorsMax; }
  // Whether a buffer of so many bytes may come next.
  bool Takes(uint32_t bytes, bool writable) const {
    return (writable || !any_writable()) && !full() && HasRoomFor(bytes);
  }
  bool any_writable() const { return counts_.segments > counts_.readable; }
  bool full() const { return counts_.segments == kChainSegmentsMax; }
  bool HasRoomFor(uint64_t bytes) const { return counts_.bytes + bytes <= kChainBytesMax; }
  void Add(const block::Segment& segment, bool writable) {
    CLEAT_DCHECK(!full() && (writable || !any_writable()));
    new (chain_.storage_ + counts_.segments * sizeof(block::Segment)) block::Segment(segment);
    ++counts_.segments;
    counts_.bytes += segment.length_bytes;
    if (writable) return;
    counts_.readable = counts_.segments;
    counts_.readable_bytes = counts_.bytes;
  }

  // ---- For a way that takes only what is usual: one segment a descriptor, at most kChainDescriptorsMax of them, which
  // can't be too many. Both false when there is something else about the chain.
  bool AddUsual(const block::Segment& segment, bool writable) {
    if (!writable && any_writable()) [[unlikely]]
      return false;
    Add(segment, writable);
    return true;
  }
  // `others`: descriptors that are none of the segments.
  bool CommitUsual(uint32_t others) {
    counts_.descriptors = counts_.segments + others;
    Commit();
    return counts_.bytes <= kChainBytesMax;
  }

 private:
  Chain& chain_;
  Chain::Counts counts_;
};

using block::Cut;
using block::Gather;

}  // namespace cleat::virtio
