// SPDX-License-Identifier: Apache-2.0
#include "pool/extent_map.h"

#include <bit>
#include <utility>

#include "base/check.h"
#include "pool/layout.h"

namespace cleat::pool {

ExtentMap::ExtentMap() {
  static const auto whole = std::make_shared<const std::vector<Entry>>(
      std::vector<Entry>{{.distance = 0, .end = uint64_t{1} << kWholeShift}});
  Set(whole);
}

ExtentMap::ExtentMap(uint64_t extent_bytes, const ExtentRuns& runs)
    : shift_(static_cast<uint32_t>(std::countr_zero(extent_bytes))) {
  CLEAT_CHECK(std::has_single_bit(extent_bytes));
  std::vector<Entry> entries;
  entries.reserve(CountOf(runs) + 1);
  for (const ExtentRun& run : runs) {
    for (uint64_t extent = run.first; extent < run.end(); ++extent) {
      const uint64_t at = entries.size() << shift_;
      entries.push_back({kDataOffset + (extent << shift_) - at, at + extent_bytes});
    }
  }
  CLEAT_CHECK(!entries.empty());
  // Neighbours are as far from the disk's bytes as each other.
  for (size_t i = entries.size() - 1; i-- > 0;) {
    if (entries[i].distance == entries[i + 1].distance) entries[i].end = entries[i + 1].end;
  }
  entries.push_back(entries.back());
  Set(std::make_shared<const std::vector<Entry>>(std::move(entries)));
}

void ExtentMap::Set(std::shared_ptr<const std::vector<Entry>> all) {
  all_ = std::move(all);
  entries_ = all_->data();
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
