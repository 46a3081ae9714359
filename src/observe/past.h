// SPDX-License-Identifier: Apache-2.0
// What another engine has counted of a controller's disks, for this one's counters to go on from when the controller
// comes over: totals and histograms rise for ever, whoever serves.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "observe/cell.h"
#include "observe/reader.h"

namespace cleat::observe {

// One disk's, over all reactors.
struct Past {
  std::string disk;
  uint64_t since_ns = 0;
  std::vector<OpCount> ops;                        // by OpColumn
  std::vector<std::vector<Histogram>> histograms;  // [OpColumn][Stage]

  // Adds it to a cell of the same disk. On the cell's reactor.
  void AddTo(Cell& cell) const;
};

// By target. `counters` is what that engine's Segment::OpenForReaders gave. failed_precondition: its operations or
// stages are others, as another version's may be. `cells`: the controller's, by index; others are passed over. Without
// them all are looked at, which takes milliseconds where there are thousands of disks.
Result<std::map<uint32_t, Past>> ReadPast(UniqueFd counters, const std::string& controller,
                                          std::span<const uint64_t> cells = {});

}  // namespace cleat::observe
