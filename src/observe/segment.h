// SPDX-License-Identifier: Apache-2.0
// The engine's side of the segment (layout.h): makes it, gives out its cells. On the control reactor, or before there
// is one; outlives all that it gives out. The memory is a memfd that can't shrink; pages that were never written take no memory, and
// those of a cell that is given back are freed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "observe/disk_counters.h"
#include "observe/layout.h"

namespace cleat::observe {

inline constexpr uint64_t kCellsMax = 16384;    // disks times the reactors that serve them
inline constexpr uint64_t kSlowRingCount = 64;  // slow requests of a reactor that a reader may be late by
inline constexpr uint64_t kSlowAfterNs = 500 * uint64_t{1'000'000};

struct SegmentOptions {
  std::string engine;
  uint64_t incarnation = 0;
  std::vector<std::string> reactors;
  uint64_t now_ns = 0;
  uint64_t slow_after_ns = kSlowAfterNs;
};

class Segment {
 public:
  static Result<std::unique_ptr<Segment>> Make(const SegmentOptions& options);
  ~Segment();  // no cell is left
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Result<UniqueFd> OpenForReaders() const;  // a descriptor that can't be written through
  const SegmentHeader& header() const { return *reinterpret_cast<const SegmentHeader*>(base_); }
  ReactorHead& reactor(uint32_t index);
  SlowEntry* slow_ring(uint32_t reactor);  // kSlowRingCount of them

  // resource_exhausted: all cells are taken; the disk can be served without.
  Result<std::unique_ptr<DiskCounters>> Add(const std::string& controller, const std::string& disk,
                                            uint32_t target, uint32_t reactor, uint64_t now_ns);

 private:
  friend class DiskCounters;
  Segment(UniqueFd fd, uint8_t* base, uint64_t bytes) : fd_(std::move(fd)), base_(base), bytes_(bytes) {}
  uint8_t* CellAt(uint64_t index);
  void GiveBack(uint64_t index);

  const UniqueFd fd_;
  uint8_t* const base_;
  const uint64_t bytes_;
  std::vector<uint64_t> free_;
  uint64_t in_use_ = 0;
};

}  // namespace cleat::observe
