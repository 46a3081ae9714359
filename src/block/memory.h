// SPDX-License-Identifier: Apache-2.0
// The memory that requests point into. A MemoryRegion is one mapping (of a guest's memory, of a pool of
// ours); a MemoryMap is a guest's set of them at one time, and what translates guest-physical addresses.
//
// Life: a map is immutable. Whoever has requests in flight against it holds a reference (shared_ptr), so a
// completion that comes late - from a hung cluster, after the peer is gone - touches memory that is still
// mapped. The last reference unmaps. Immutable, so any thread reads it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "block/memory_guard.h"
#include "block/memory_registration.h"

namespace cleat::block {

class MemoryRegion : public std::enable_shared_from_this<MemoryRegion> {
 public:
  // kInvalidArgument for a file of another file system than tmpfs (memfd) and hugetlbfs: a reactor that touches a page of
  // it would wait for storage, or for a FUSE server of the peer's own. Never waits itself.
  static Status CheckInMemory(const UniqueFd& fd);

  // Maps `size_bytes` of `fd` from `fd_offset` on, shared and writable; keeps no descriptor. Guarded (see
  // memory_guard.h): whoever owns the file can take it away, and then this reads as zeros. In memory, as above.
  // `registration`: it may be registered (memory_registration.h); nullptr: it may not.
  static Result<std::shared_ptr<MemoryRegion>> Map(
      const UniqueFd& fd, uint64_t fd_offset, uint64_t size_bytes,
      std::unique_ptr<MemoryRegistration> registration = nullptr);
  // Memory that somebody else owns and keeps alive (tests, pools).
  static std::shared_ptr<MemoryRegion> Borrow(void* base, uint64_t size_bytes,
                                              std::unique_ptr<MemoryRegistration> registration = nullptr);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  uint8_t* base() const { return base_; }
  uint64_t size_bytes() const { return size_bytes_; }
  // nullptr: it may not be registered.
  MemoryRegistration* registration() const { return registration_.get(); }
  // The file's owner has taken pages of it away, and somebody looked at one: what is read here is no longer
  // what the guest wrote. Any thread.
  bool broken() const { return guard_ && guard_->broken(); }

 private:
  MemoryRegion(uint8_t* base, uint64_t size_bytes, void* mapping, uint64_t mapping_bytes, MemoryGuard guard,
               std::unique_ptr<MemoryRegistration> registration);
  uint8_t* base_;
  uint64_t size_bytes_;
  void* mapping_;  // nullptr when borrowed
  uint64_t mapping_bytes_;
  std::optional<MemoryGuard> guard_;  // until just before it is unmapped
  const std::unique_ptr<MemoryRegistration> registration_;
};

// A piece of a region: the handle, not a bare pointer, so that a back end can find what it registered for the
// region.
struct Segment {
  const MemoryRegion* region = nullptr;
  uint64_t offset_bytes = 0;
  uint32_t length_bytes = 0;

  uint8_t* data() const { return region->base() + offset_bytes; }
};

class MemoryMap {
 public:
  struct Entry {
    uint64_t guest_address = 0;  // guest-physical
    std::shared_ptr<MemoryRegion> region;
  };

  // Refuses overlapping and wrapping entries, and more than kEntriesMax.
  static constexpr size_t kEntriesMax = 64;
  static Result<std::shared_ptr<const MemoryMap>> Make(std::vector<Entry> entries);

  std::span<const Entry> entries() const { return entries_; }

  // The piece that holds `guest_address`, cut at the region's end (length 0 when nothing is mapped there). A
  // range that goes over a region's end takes several calls.
  Segment Translate(uint64_t guest_address, uint64_t length_bytes) const {
    for (const Range& range : ranges_) {
      const uint64_t offset = guest_address - range.guest_address;  // wraps to huge when below
      if (offset < range.size_bytes) {
        const uint64_t room = range.size_bytes - offset;
        const uint64_t length = length_bytes < room ? length_bytes : room;
        return {range.region, offset, static_cast<uint32_t>(length < kSegmentMax ? length : kSegmentMax)};
      }
    }
    return {};
  }

  // The same for a range that lies in one region, as nearly all do; false for any other, for one of length 0, and for
  // one of kSegmentMax or more: both tests are one of the sign.
  bool TranslateWhole(uint64_t guest_address, uint32_t length_bytes, Segment& segment) const {
    for (const Range& range : ranges_) {
      const uint64_t offset = guest_address - range.guest_address;  // wraps to huge when below
      if (offset >= range.size_bytes) continue;
      segment = {range.region, offset, length_bytes};
      return static_cast<int32_t>(length_bytes) > 0 && length_bytes <= range.size_bytes - offset;
    }
    return false;
  }

  // Where the byte is mapped, or nullptr: for prefetches, which can't go wrong, before anything is checked.
  const uint8_t* Hint(uint64_t guest_address) const {
    for (const Range& range : ranges_) {
      const uint64_t offset = guest_address - range.guest_address;  // wraps to huge when below
      if (offset < range.size_bytes) return range.region->base() + offset;
    }
    return nullptr;
  }

  // The whole range in one piece, or nullptr: for rings and headers, which may not be split.
  uint8_t* Contiguous(uint64_t guest_address, uint64_t length_bytes) const;

 private:
  static constexpr uint32_t kSegmentMax = 0x80000000;  // bytes in a segment
  // What translation needs of an entry, side by side: it is done for every descriptor.
  struct Range {
    uint64_t guest_address;
    uint64_t size_bytes;
    const MemoryRegion* region;
  };
  explicit MemoryMap(std::vector<Entry> entries);
  std::vector<Entry> entries_;
  std::vector<Range> ranges_;
};

}  // namespace cleat::block
