// SPDX-License-Identifier: Apache-2.0
#include "pool/extent_map.h"

#include <bit>

#include "base/check.h"
#include "pool/layout.h"

namespace cleat::pool {

ExtentMap::ExtentMap() : entries_{{.distance = 0, .end = uint64_t{1} << kWholeShift}} {}

ExtentMap::ExtentMap(uint64_t extent_bytes, const ExtentRuns& runs)
    : shift_(static_cast<uint32_t>(std::countr_zero(extent_bytes))) {
  CLEAT_CHECK(std::has_single_bit(extent_bytes));
  entries_.reserve(CountOf(runs) + 1);
  for (const ExtentRun& run : runs) {
    for (uint64_t extent = run.first; extent < run.end(); ++extent) {
      const uint64_t at = entries_.size() << shift_;
      entries_.push_back({kDataOffset + (extent << shift_) - at, at + extent_bytes});
    }
  }
  CLEAT_CHECK(!entries_.empty());
  // Neighbours are as far from the disk's bytes as each other.
  for (size_t i = entries_.size() - 1; i-- > 0;) {
    if (entries_[i].distance == entries_[i + 1].distance) entries_[i].end = entries_[i + 1].end;
  }
  entries_.push_back(entries_.back());
}

std::vector<DriveRange> ExtentMap::Ranges() const {
  CLEAT_CHECK(!is_whole_drive());
  std::vector<DriveRange> ranges;
  for (uint64_t at = 0; at < size_bytes();) {
    ranges.push_back(At(at));
    at += ranges.back().bytes;
  }
  return ranges;
}

}  // namespace cleat::pool
