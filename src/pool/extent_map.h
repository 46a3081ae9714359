// SPDX-License-Identifier: Apache-2.0
// Where on its drive each byte of a disk lies. A value that never changes, and whose copies share what it knows: each channel of a disk has
// one, so that a disk that grows exchanges them one by one, each on its own reactor. Any thread. What goes on with each request costs two
// loads, and the same for a disk that is its drive: no request asks which of the two it is.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pool/extents.h"

namespace cleat::pool {

struct DriveRange {
  uint64_t first_byte = 0;
  uint64_t bytes = 0;

  uint64_t end() const { return first_byte + bytes; }
  bool operator==(const DriveRange&) const = default;
};

class ExtentMap {
 public:
  // Each byte lies where it is: a disk that has its drive, or its file, to itself.
  ExtentMap();
  // `runs`: at least one extent, each at most once, in the disk's order. `extent_bytes`: a power of two.
  ExtentMap(uint64_t extent_bytes, const ExtentRuns& runs);

  // What lies on the drive in one piece, from that byte of the disk on: nothing at the disk's end.
  DriveRange At(uint64_t disk_byte) const {
    const Entry& entry = entries_[disk_byte >> shift_];
    return {disk_byte + entry.distance, entry.end - disk_byte};
  }

  bool is_whole_drive() const { return shift_ == kWholeShift; }
  // What the disk has room for.
  uint64_t size_bytes() const { return all_->back().end; }
  // The disk's pieces in its order, neighbours as one. Not of a whole drive.
  std::vector<DriveRange> Ranges() const;

 private:
  static constexpr uint32_t kWholeShift = 63;
  struct Entry {
    uint64_t distance = 0;  // from a byte of the disk to that of the drive, modulo 2^64
    uint64_t end = 0;       // of the piece, as the disk counts
  };

  void Set(std::shared_ptr<const std::vector<Entry>> all);

  uint32_t shift_ = kWholeShift;
  std::shared_ptr<const std::vector<Entry>>
      all_;                         // of each extent of the disk, and of what begins at its end
  const Entry* entries_ = nullptr;  // the same, without a load more
};

}  // namespace cleat::pool
